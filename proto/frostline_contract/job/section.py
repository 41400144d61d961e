"""The base of every section of a job file, and how a field says whether it may change while a run goes on (docs/protocols.md 9)."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

SECONDS_MAX = 1e7
"""The longest time that a field takes: four months. Beyond it clocks and timeouts of the system no longer count."""


class Section(BaseModel):
    """A part of the job file: unknown keys are refused, values are checked, nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


def fixed(default: Any = ..., *, doc: str, **limits: Any) -> Any:
    """A field that a run keeps for its whole life; a changed value is refused with an Event that names it."""
    return Field(default, description=doc, json_schema_extra={"change": "fixed"}, **limits)


def live(default: Any = ..., *, doc: str, **limits: Any) -> Any:
    """A field that may change while the run goes on: numerics by a numbered decision, placement by a new generation."""
    return Field(default, description=doc, json_schema_extra={"change": "live"}, **limits)
