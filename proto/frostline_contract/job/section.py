"""The base of every section of a job file, and how a field says whether it may change while a run goes on (docs/protocols.md 9)."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

SECONDS_MAX = 1e7
"""The longest time that a field takes: four months. Beyond it clocks and timeouts of the system no longer count."""

AUTO: Literal["auto"] = "auto"
"""The value of a field that the run settles by itself, once (`job.automatic`)."""
NUMBER_TAG = "number"
"""Names the number among the kinds of value that a field takes; no part of a field's place."""


def number_or_auto(**limits: Any) -> Any:
    """The type of a whole number within `limits` that the run may settle by itself: a mistake is reported of the number alone."""
    number = Annotated[int, Field(**limits), Tag(NUMBER_TAG)]
    word = Annotated[Literal["auto"], Tag(AUTO)]
    return Annotated[number | word, Discriminator(lambda value: AUTO if value == AUTO else NUMBER_TAG)]


class Section(BaseModel):
    """A part of the job file: unknown keys are refused, values are checked, nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, values: Any) -> Any:
        """YAML has many words for a truth value; taken for 1 or 0 it would be the answer to a question that nobody asked."""
        for name, value in values.items() if isinstance(values, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and takes_numbers(field.annotation):
                raise ValueError(f"{name} is {str(value).lower()}, a truth value; write a number")
        return values


def takes_numbers(annotation: Any) -> bool:
    """Whether a field of this type is a number, or one or nothing, and never a truth value."""
    kinds = {annotation, *(part for one in get_args(annotation) for part in (one, *get_args(one)))}
    return bool(kinds & {int, float}) and bool not in kinds


def fixed(default: Any = ..., *, doc: str, later: bool = False, **limits: Any) -> Any:
    """A field that a run keeps for its whole life; a changed value is refused with an Event that names it.

    later: the field came when runs had been begun without it. At its default it is in no digest of the job, so that such a run is
    still the same one.
    """
    marks: dict[str, Any] = {"change": "fixed", "later": True} if later else {"change": "fixed"}
    return Field(default, description=doc, json_schema_extra=marks, **limits)


def live(default: Any = ..., *, doc: str, **limits: Any) -> Any:
    """A field that may change while the run goes on: numerics by a numbered decision, placement by a new generation."""
    return Field(default, description=doc, json_schema_extra={"change": "live"}, **limits)
