"""Conversion between contract records and protobuf messages, which have the same field names. The contract checks the values.

Fields are copied one by one, without a text form in between, since a plan of a thousand workers has tens of thousands of numbers.
"""

from functools import lru_cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from pydantic import BaseModel, ValidationError

from frostline_contract.state_tag import GenerationId
from frostline_proto.v1 import plan_pb2
from frostline_rpc.errors import InvalidRequest

Record = TypeVar("Record", bound=BaseModel)
Wire = TypeVar("Wire", bound=Message)


def to_message(record: BaseModel, message_type: type[Wire]) -> Wire:
    """The message with the content of `record`. Infinities and NaN survive."""
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
            part.SetInParent()  # so that the message is present even if all of its fields have defaults
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
    """The checked record of a message. Raises InvalidRequest, whose text names the field and its value."""
    try:
        return record_type.model_validate(_values(message))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"{record_type.__name__}.{place} is {first['input']!r}: {first['msg']}") from None


def generation_of(message: plan_pb2.GenerationId) -> GenerationId:
    """The record of a generation's identifier; quicker than `to_record`, since every heartbeat has one."""
    return GenerationId(incarnation=message.incarnation, counter=message.counter)


@lru_cache(maxsize=256)
def _deprecated(descriptor: Descriptor) -> tuple[str, ...]:
    """Names of a message's deprecated fields, kept for older readers.

    The record has a property of the same name; when a message is read, the record itself takes the field's value.
    """
    return tuple(field.name for field in descriptor.fields if field.GetOptions().deprecated)


def _values(message: Message) -> dict[str, Any]:
    """All fields by name, those with their default included, except inner messages and deprecated fields that are absent."""
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
