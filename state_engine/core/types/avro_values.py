"""Rows in the binary form of Avro, by a schema that their readers have, too.

A record is its fields one after the other, without names or header. Which Arrow types a schema takes:

    Avro                                        Arrow
    boolean, string, bytes                      bool, string, binary
    int; long                                   integers of at most 32 bits; all
    float; double                               float32; all floats
    int date                                    date32
    long timestamp-micros, timestamp-millis     timestamp with a zone; what is finer than that is cut off
    long local-timestamp-micros, …-millis       timestamp without a zone
    bytes or fixed decimal                      decimal of the same scale, and of no more digits
    fixed, enum                                 binary, string; its length, or the symbol, is checked with each value
    array, map                                  list, map of strings
    record                                      struct with the same fields
    union of null and one other                 the other, which may be null

Plays the part of Flink's ``AvroRowDataSerializationSchema``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.json_text import parsed_json
from state_engine.core.types.ddl import ddl_text

Write = Callable[[Any], bytes]
"""From a value in an Arrow array to its bytes."""
_TIMES = {
    f"{local}timestamp-{name}": (not local, timedelta(microseconds=micros))
    for local in ("", "local-")
    for name, micros in (("micros", 1), ("millis", 1000))
}
"""Whether values have a zone, and the unit, by logical type."""
_PRIMITIVES = ("boolean", "int", "long", "float", "double", "bytes", "string")


def record_fields(schema: str, *, of: str) -> dict[str, Any]:
    """The schema of each field of a record.

    Example:
        >>> text = '{"type": "record", "name": "Click", "fields": [{"name": "user", "type": "string"}]}'
        >>> record_fields(text, of="KafkaSink")
        {'user': 'string'}
    """
    try:
        parsed = parsed_json(schema)
        if parsed["type"] == "record":
            return {field["name"]: field["type"] for field in parsed["fields"]}
    except (ValueError, LookupError, TypeError):
        pass
    raise ConfigurationError(
        f"{of} of format 'avro' needs the schema of a record, as JSON: "
        '\'{"type": "record", "name": "Click", "fields": […]}\''
    )


def avro_writer(
    schema: str, columns: Mapping[str, pa.DataType], *, of: str
) -> Callable[[Mapping[str, Any]], bytes]:
    """What turns a row into the bytes of a record.

    Args:
        columns: types of the row's columns; those that the record has no field for are passed over.

    Example:
        >>> text = '{"type": "record", "name": "Click", "fields": [{"name": "n", "type": ["null", "long"]}]}'
        >>> avro_writer(text, {"n": pa.int64()}, of="KafkaSink")({"n": -1}).hex()
        '0201'
    """
    fields, named = record_fields(schema, of=of), _Named(of)
    if missing := [name for name in fields if name not in columns]:
        raise ConfigurationError(
            f"{of}: there is no column for the fields {missing} of the schema; the columns are {list(columns)}"
        )
    writers = {name: named.writer(kind, columns[name], name) for name, kind in fields.items()}

    def write(row: Mapping[str, Any]) -> bytes:
        return b"".join(own(row[name]) for name, own in writers.items())

    return write


class _Named:
    """Writers by schema; types that have names are known by them afterwards."""

    def __init__(self, of: str) -> None:
        self._of, self._known = of, dict[str, Any]()

    def writer(self, kind: Any, column: pa.DataType, path: str) -> Write:
        if isinstance(kind, str) and kind in self._known:
            return self.writer(self._known[kind], column, path)
        if isinstance(kind, list):
            return self._union(kind, column, path)
        own = kind if isinstance(kind, dict) else {"type": kind}
        write = self._write_of(own, column, path)
        if write is None:
            raise ConfigurationError(
                f"{self._of}: the column {path} is {ddl_text(column)}, which the type {json.dumps(kind)} of the schema "
                "does not take"
            )
        if "name" in own:
            self._known |= {own["name"]: own, f"{own.get('namespace', '')}.{own['name']}": own}
        return _refusing_null(write, path)

    def _write_of(self, own: dict[str, Any], column: pa.DataType, path: str) -> Write | None:
        logical = own.get("logicalType")
        try:
            if logical == "decimal" and own["type"] in ("bytes", "fixed"):
                return _decimal(own, column)
            match own["type"]:
                case "array" if pa.types.is_list(column):
                    return _blocks(self.writer(own["items"], column.value_type, f"{path}.element"))
                case "map" if pa.types.is_map(column) and pa.types.is_string(column.key_type):
                    value = self.writer(own["values"], column.item_type, f"{path}.value")
                    return _blocks(lambda pair: _text(pair[0]) + value(pair[1]))
                case "record" if pa.types.is_struct(column):
                    return self._record(own, column, path)
                case "enum" if pa.types.is_string(column):
                    return _enum(own["symbols"], path)
                case "fixed" if pa.types.is_binary(column):
                    return _fixed(own["size"], path)
                case dict() | list() as inner:
                    return self.writer(inner, column, path)
                case primitive if primitive in _PRIMITIVES:
                    return _primitive(primitive, logical, column)
        except KeyError as error:
            raise ConfigurationError(
                f"{self._of}: the type of the field {path} has no {error} in the schema"
            ) from None
        return None

    def _union(self, kinds: list[Any], column: pa.DataType, path: str) -> Write:
        others = [kind for kind in kinds if kind != "null"]
        if len(others) != 1 or len(kinds) > 2:
            raise ConfigurationError(
                f"{self._of}: the field {path} is a union of {json.dumps(kinds)}; the sink can write a union of null "
                "and one other type"
            )
        write, branch = self.writer(others[0], column, path), _long(kinds.index(others[0]))
        if len(kinds) == 1:
            return lambda value: branch + write(value)
        nothing = _long(kinds.index("null"))
        return lambda value: nothing if value is None else branch + write(value)

    def _record(self, own: dict[str, Any], column: pa.DataType, path: str) -> Write | None:
        kinds = {field["name"]: field["type"] for field in own["fields"]}
        parts = {field.name: field.type for field in column}
        if kinds.keys() != parts.keys():
            return None
        writers = {name: self.writer(kind, parts[name], f"{path}.{name}") for name, kind in kinds.items()}
        return lambda value: b"".join(write(value[name]) for name, write in writers.items())


def _primitive(kind: str, logical: str | None, column: pa.DataType) -> Write | None:
    p = pa.types
    if kind == "int" and logical == "date":
        return (lambda day: _long((day - date(1970, 1, 1)).days)) if p.is_date(column) else None
    if kind == "long" and logical in _TIMES:
        zoned, unit = _TIMES[logical]
        fits = p.is_timestamp(column) and (column.tz is not None) == zoned
        epoch = datetime(1970, 1, 1, tzinfo=UTC if zoned else None)
        return (lambda at: _long((at - epoch) // unit)) if fits else None
    takes: dict[str, tuple[bool, Write]] = {
        "boolean": (p.is_boolean(column), lambda value: b"\x01" if value else b"\x00"),
        "int": (p.is_integer(column) and column.bit_width <= 32, _long),
        "long": (p.is_integer(column), _long),
        "float": (p.is_float32(column), struct.Struct("<f").pack),
        "double": (p.is_floating(column), struct.Struct("<d").pack),
        "bytes": (p.is_binary(column), _bytes),
        "string": (p.is_string(column), _text),
    }
    fits, write = takes[kind]
    return write if fits else None


def _decimal(own: dict[str, Any], column: pa.DataType) -> Write | None:
    """Digits as a number in two's complement, the highest byte first."""
    scale = own.get("scale", 0)
    if not pa.types.is_decimal(column) or column.scale != scale or column.precision > own["precision"]:
        return None
    size = own["size"] if own["type"] == "fixed" else None

    def write(value: Decimal) -> bytes:
        number = int(value.scaleb(scale))
        length = size or (number if number >= 0 else ~number).bit_length() // 8 + 1
        digits = number.to_bytes(length, "big", signed=True)
        return digits if size else _bytes(digits)

    return write


def _enum(symbols: list[str], path: str) -> Write:
    places = {symbol: _long(place) for place, symbol in enumerate(symbols)}

    def write(value: str) -> bytes:
        if value not in places:
            raise ValueTypeError(
                f"{path} is {value!r}, which is not among the symbols {symbols} of the schema"
            )
        return places[value]

    return write


def _fixed(size: int, path: str) -> Write:
    def write(value: bytes) -> bytes:
        if len(value) != size:
            raise ValueTypeError(f"{path} has {counted(len(value), 'byte')}, and {size} in the schema")
        return value

    return write


def _blocks(item: Write) -> Write:
    """Items of an array or a map: one block of all, and an empty one behind it."""

    def write(values: list[Any]) -> bytes:
        return b"".join([_long(len(values)), *map(item, values), b"\x00"]) if values else b"\x00"

    return write


def _refusing_null(write: Write, path: str) -> Write:
    def checked(value: Any) -> bytes:
        if value is None:
            raise ValueTypeError(f"{path} is null, and not in the schema: make its type a union with null")
        return write(value)

    return checked


def _long(number: int) -> bytes:
    """Zigzag, then seven bits a byte, the lowest first."""
    left = (number << 1) ^ (number >> 63)
    packed = bytearray()
    while left > 0x7F:
        packed.append(left & 0x7F | 0x80)
        left >>= 7
    packed.append(left)
    return bytes(packed)


def _bytes(value: bytes) -> bytes:
    return _long(len(value)) + value


def _text(value: str) -> bytes:
    return _bytes(value.encode())
