"""One converter between contract records and protobuf messages: same field names on both sides, checked by the contract."""

from typing import Any, TypeVar

from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message
from pydantic import BaseModel, ValidationError

from frostline_rpc.errors import InvalidRequest

Record = TypeVar("Record", bound=BaseModel)
Wire = TypeVar("Wire", bound=Message)


def to_message(record: BaseModel, message_type: type[Wire]) -> Wire:
    """The message that says what `record` says. Infinities and NaN survive."""
    return ParseDict(_finite(record.model_dump(mode="python", exclude_none=True)), message_type())


def to_record(message: Message, record_type: type[Record]) -> Record:
    """The checked record of a message. Raises InvalidRequest that names the field and its value."""
    values = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    try:
        return record_type.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"{record_type.__name__}.{place} is {first['input']!r}: {first['msg']}") from None


def _finite(value: Any) -> Any:
    """Protobuf's JSON writes non-finite numbers as strings."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not (-float("inf") < value < float("inf")):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value
