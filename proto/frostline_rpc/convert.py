"""One converter between contract records and protobuf messages: same field names on both sides, checked by the contract.

Field by field and without a text form in between: a plan of a thousand workers has tens of thousands of numbers.
"""

from functools import lru_cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from pydantic import BaseModel, ValidationError

from frostline_rpc.errors import InvalidRequest

Record = TypeVar("Record", bound=BaseModel)
Wire = TypeVar("Wire", bound=Message)


def to_message(record: BaseModel, message_type: type[Wire]) -> Wire:
    """The message that says what `record` says. Infinities and NaN survive."""
    message = message_type()
    _fill(message, record)
    return message


def _fill(message: Message, record: BaseModel) -> None:
    for name in (*type(record).model_fields, *_deprecated(message.DESCRIPTOR)):
        value = getattr(record, name)
        if value is None:
            continue
        if isinstance(value, BaseModel):
            part = getattr(message, name)
            part.SetInParent()  # present, whatever its fields are
            _fill(part, value)
        elif isinstance(value, dict):
            getattr(message, name).update(value)
        elif not isinstance(value, (list, tuple)):
            setattr(message, name, value)
        elif value and isinstance(value[0], BaseModel):
            repeated = getattr(message, name)
            for one in value:
                _fill(repeated.add(), one)
        else:
            getattr(message, name).extend(value)


def to_record(message: Message, record_type: type[Record]) -> Record:
    """The checked record of a message. Raises InvalidRequest that names the field and its value."""
    try:
        return record_type.model_validate(_values(message))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"{record_type.__name__}.{place} is {first['input']!r}: {first['msg']}") from None


@lru_cache(maxsize=256)
def _deprecated(descriptor: Descriptor) -> tuple[str, ...]:
    """Fields that an older reader looks at: the record has a property of the name, and takes the value where it is read."""
    return tuple(field.name for field in descriptor.fields if field.GetOptions().deprecated)


def _values(message: Message) -> dict[str, Any]:
    """Every field by name, also where it has its default; without messages, and deprecated fields, that are absent."""
    values: dict[str, Any] = {}
    deprecated = _deprecated(message.DESCRIPTOR)
    for field in message.DESCRIPTOR.fields:
        name, kind = field.name, field.message_type
        if field.is_repeated:
            items = getattr(message, name)
            if kind is None:
                values[name] = list(items)
            else:
                values[name] = dict(items) if kind.GetOptions().map_entry else [_values(one) for one in items]
        elif name in deprecated and not getattr(message, name):
            continue
        elif not field.has_presence:
            values[name] = getattr(message, name)
        elif message.HasField(name):
            values[name] = _values(getattr(message, name)) if kind is not None else getattr(message, name)
    return values
