"""Base classes of the immutable records that cross the wire or are written to the run directory."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from frostline_contract.mesh import check_degrees, with_degrees


class Frozen(BaseModel):
    """Base of every immutable record. Unknown fields are refused; values derived from the fields are cached properties."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic's, without the cached properties, since `update` may replace the fields that they derive from."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(copied).model_fields.keys():
            del copied.__dict__[name]
        return copied


Degrees = Annotated[dict[str, int], AfterValidator(check_degrees)]
"""A shape as its degrees by axis name; see `frostline_contract.mesh`."""


class Shaped(Frozen):
    """Base of records that carry a shape in a field `degrees`.

    Records of older versions, which have `pp_degree` and `dp_degree` instead, can be read too.
    """

    @model_validator(mode="before")
    @classmethod
    def _with_degrees(cls, values: Any) -> Any:
        return with_degrees(values)

    def __hash__(self) -> int:
        """A hash, since records are keys of tables and pydantic's own refuses fields that are dictionaries."""
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
