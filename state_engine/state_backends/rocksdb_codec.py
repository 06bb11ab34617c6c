"""Items and map keys as bytes, by their declared type; nothing is ever pickled that was not declared so.

Whole numbers, text, bytes and booleans by the order-preserving encoding, all else as JSON text of the storage type.
Where items have a time to live, their time stands in front. Plays the part of Flink's serializers under RocksDB.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from state_engine.core.errors import InvalidKeyError
from state_engine.core.keys.ordering import key_order
from state_engine.core.state.descriptors import MapStateDescriptor, StateDescriptor
from state_engine.core.state.ttl import Stamped
from state_engine.core.types.every_type import (
    BooleanType,
    BytesType,
    IntegerType,
    StringType,
    TypeInformation,
)
from state_engine.core.types.json_values import from_json, to_json

_EXACT = (IntegerType, StringType, BytesType, BooleanType)
"""Types whose order-preserving encoding keeps every bit of a value."""
_TIME = struct.Struct(">?q")
_NONE, _SOME = b"\x00", b"\x01"

Code = tuple[Callable[[Any], bytes], Callable[[bytes], Any]]


def item_code(descriptor: StateDescriptor) -> Code:
    """How items of a state (values, list elements, map values) are written and read."""
    write, read = _nullable(*_value_code(descriptor.value_type))
    if descriptor.ttl is None:
        return write, read

    def write_stamped(item: Stamped) -> bytes:
        return _TIME.pack(item.at is not None, item.at or 0) + write(item.value)

    def read_stamped(data: bytes) -> Stamped:
        timed, at = _TIME.unpack_from(data)
        return Stamped(read(data[_TIME.size :]), at if timed else None)

    return write_stamped, read_stamped


def map_key_code(descriptor: MapStateDescriptor) -> Code:
    """How map keys are written and read: in their order where they have one."""
    try:
        order = key_order(descriptor.key_type)
    except InvalidKeyError:
        return _value_code(descriptor.key_type)
    decode = order.decode
    return order.encode, lambda data: decode(data, 0)[0]


def _value_code(kind: TypeInformation) -> Code:
    if type(kind) in _EXACT:
        order = key_order(kind)
        decode = order.decode
        return order.encode, lambda data: decode(data, 0)[0]
    return lambda value: to_json(kind, [value])[0].encode(), lambda data: from_json(kind, [data.decode()])[0]


def _nullable(write: Callable[[Any], bytes], read: Callable[[bytes], Any]) -> Code:
    return (
        lambda value: _NONE if value is None else _SOME + write(value),
        lambda data: None if data == _NONE else read(data[1:]),
    )
