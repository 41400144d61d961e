"""Records from files and from other services' answers, with a one-line error where the data are no such record."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from frostline_contract.mesh import with_degrees

Model = TypeVar("Model", bound=BaseModel)


def read_as(model: type[Model], values: dict[str, Any], where: str) -> Model:
    """A record of `model`, without keys that this version does not know. Raises ValueError whose text begins with `where`."""
    if "degrees" in model.model_fields:  # a shape, perhaps as older versions wrote it
        values = with_degrees(values)
    try:
        return model.model_validate({name: value for name, value in values.items() if name in model.model_fields})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where} holds a broken {model.__name__}: {place}: {first['msg']}") from None
