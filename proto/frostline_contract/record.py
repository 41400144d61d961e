"""What immutable records have in common: the bases of all that crosses the wire or is written to the run directory."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from frostline_contract.mesh import check_degrees, with_degrees


class Frozen(BaseModel):
    """Base of every immutable record: unknown fields are refused. Cached properties hold what follows from the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic's, without the cached properties: they follow from the fields that `update` replaces."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(copied).model_fields.keys():
            del copied.__dict__[name]
        return copied


Degrees = Annotated[dict[str, int], AfterValidator(check_degrees)]
"""A shape as its degrees by axis name; see `frostline_contract.mesh`."""


class Shaped(Frozen):
    """Base of records that carry a shape, in a field `degrees`. They can also be read as they were written before it had that
    name, with `pp_degree` and `dp_degree`.
    """

    @model_validator(mode="before")
    @classmethod
    def _with_degrees(cls, values: Any) -> Any:
        return with_degrees(values)

    def __hash__(self) -> int:
        """Records are keys of tables; pydantic's hash takes no field that is a dictionary."""
        values = (getattr(self, name) for name in type(self).model_fields)
        return hash(tuple(tuple(sorted(value.items())) if isinstance(value, dict) else value for value in values))

    @property
    def pp_degree(self) -> int:
        """Depth of the pipeline."""
        return self.degrees["pp"]

    @property
    def dp_degree(self) -> int:
        """Number of replicas."""
        return self.degrees["dp"]
