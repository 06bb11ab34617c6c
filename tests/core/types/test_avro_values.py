"""Rows in Avro's binary form: the examples of its specification, every type, and what a schema does not take.

That Spark reads the same values back is seen in ``tests/kafka``.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.types.avro_values import avro_writer


def record(*fields: tuple[str, Any]) -> str:
    return json.dumps(
        {"type": "record", "name": "Test", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    )


def written(avro: Any, kind: pa.DataType, value: Any) -> str:
    """The bytes of a record with one field, in hexadecimal; the value is one out of an Arrow array."""
    (plain,) = pa.array([value], kind).to_pylist()
    return avro_writer(record(("x", avro)), {"x": kind}, of="a test")({"x": plain}).hex()


LONGS = {
    0: "00", -1: "01", 1: "02", -2: "03", 2: "04", -64: "7f", 64: "8001",
    -(2**63): "ff" * 9 + "01", 2**63 - 1: "fe" + "ff" * 8 + "01",
}  # fmt: skip
"""The table of the specification, and the ends."""


@pytest.mark.parametrize("value", LONGS)
def test_whole_numbers_are_zigzags_of_variable_length(value: int) -> None:
    assert written("long", pa.int64(), value) == LONGS[value]


def test_a_record_is_its_fields() -> None:
    """The example of the specification: 27 and "foo"."""
    write = avro_writer(
        record(("a", "long"), ("b", "string")), {"b": pa.string(), "a": pa.int64()}, of="a test"
    )
    assert write({"b": "foo", "a": 27}).hex() == "3606666f6f"


MICROS = datetime(1970, 1, 1, 0, 0, 0, 1500, UTC)
UTC_MICROS, UTC_MILLIS, ANY_MICROS = (
    {"type": "long", "logicalType": name}
    for name in ("timestamp-micros", "timestamp-millis", "local-timestamp-micros")
)
ZONED = pa.timestamp("us", "UTC")
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
POINT = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "y", "type": "long"}, {"name": "x", "type": ["null", "long"]}],
}
OF_POINT = pa.struct([("x", pa.int64()), ("y", pa.int64())])
CASES: dict[str, tuple[Any, pa.DataType, Any, str]] = {
    "boolean": ("boolean", pa.bool_(), True, "01"),
    "int": ("int", pa.int32(), -65, "8101"),
    "long of a smaller one": ("long", pa.int16(), 3, "06"),
    "float": ("float", pa.float32(), 1.5, "0000c03f"),
    "double of a smaller one": ("double", pa.float32(), 1.5, "000000000000f83f"),
    "bytes": ("bytes", pa.binary(), b"\x00\xff", "0400ff"),
    "string": ("string", pa.string(), "ü", "04c3bc"),
    "date": ({"type": "int", "logicalType": "date"}, pa.date32(), date(1969, 12, 31), "01"),
    "micros": (UTC_MICROS, ZONED, MICROS, "b817"),
    "millis are cut off": (UTC_MILLIS, ZONED, MICROS, "02"),
    "a time without a zone": (ANY_MICROS, pa.timestamp("us"), MICROS.replace(tzinfo=None), "b817"),
    "decimal": (DECIMAL, pa.decimal128(6, 2), Decimal("-1.28"), "0280"),
    "decimal of two bytes": (DECIMAL, pa.decimal128(5, 2), Decimal("1.28"), "040080"),
    "fixed decimal": (
        {**DECIMAL, "type": "fixed", "name": "d", "size": 4}, pa.decimal128(6, 2), Decimal("-0.01"), "ffffffff",
    ),
    "fixed": ({"type": "fixed", "name": "f", "size": 2}, pa.binary(), b"ab", "6162"),
    "enum": ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, pa.string(), "B", "02"),
    "array": ({"type": "array", "items": "long"}, pa.list_(pa.int64()), [3, 27], "04063600"),
    "empty array": ({"type": "array", "items": "long"}, pa.list_(pa.int64()), [], "00"),
    "map": ({"type": "map", "values": "long"}, pa.map_(pa.string(), pa.int64()), [("a", 1)], "0202610200"),
    "null": (["null", "string"], pa.string(), None, "00"),
    "the second of a union": (["null", "string"], pa.string(), "a", "020261"),
    "the first of a union": (["string", "null"], pa.string(), "a", "000261"),
    "null as the second": (["string", "null"], pa.string(), None, "02"),
    "a union of one": (["string"], pa.string(), "a", "000261"),
    "a record in the schema's order": (POINT, OF_POINT, {"x": None, "y": 1}, "0200"),
    "a type in a type": ({"type": {"type": "array", "items": "long"}}, pa.list_(pa.int64()), [], "00"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_type_is_written_as_the_specification_says(case: str) -> None:
    avro, kind, value, expected = CASES[case]
    assert written(avro, kind, value) == expected


def test_a_named_type_is_known_by_its_name_afterwards() -> None:
    pair = {"type": "enum", "name": "Side", "namespace": "trade", "symbols": ["BUY", "SELL"]}
    schema = record(("a", pair), ("b", "trade.Side"), ("c", ["null", "Side"]))
    write = avro_writer(schema, dict.fromkeys("abc", pa.string()), of="a test")
    assert write({"a": "SELL", "b": "BUY", "c": "SELL"}).hex() == "02000202"


REFUSED: dict[str, tuple[Any, pa.DataType, str]] = {
    "a wider number": ("int", pa.int64(), 'the column x is bigint, which the type "int" of the schema does not take'),
    "a wider float": ("float", pa.float64(), 'the column x is double, which the type "float"'),
    "text for bytes": ("bytes", pa.string(), 'the column x is string, which the type "bytes"'),
    "a time without its zone": (UTC_MICROS, pa.timestamp("us"), "the column x is timestamp_ntz"),
    "another scale": (DECIMAL, pa.decimal128(6, 3), r"the column x is decimal\(6,3\)"),
    "more digits": (DECIMAL, pa.decimal128(7, 2), r"the column x is decimal\(7,2\)"),
    "keys that are no texts": (
        {"type": "map", "values": "long"}, pa.map_(pa.int64(), pa.int64()), "the column x is map",
    ),
    "a part that does not fit": (
        {"type": "array", "items": "int"}, pa.list_(pa.int64()), 'the column x.element is bigint, which the type "int"',
    ),
    "other fields": (POINT, pa.struct([("x", pa.int64())]), "the column x is struct"),
    "a union of two": (["string", "long"], pa.string(), "a union of null and one other type"),
    "an unknown type": ("Side", pa.string(), 'the type "Side" of the schema does not take'),
    "an enum without symbols": ({"type": "enum", "name": "e"}, pa.string(), "the field x has no 'symbols'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_schema_does_not_take_is_refused_by_name(case: str) -> None:
    avro, kind, message = REFUSED[case]
    with pytest.raises(ConfigurationError, match=message):
        avro_writer(record(("x", avro)), {"x": kind}, of="a test")


def test_a_field_needs_a_column() -> None:
    with pytest.raises(ConfigurationError, match="a test: there is no column for the fields"):
        avro_writer(record(("x", "long"), ("y", "long")), {"x": pa.int64()}, of="a test")


BAD: dict[str, tuple[Any, pa.DataType, Any, str]] = {
    "null": ("long", pa.int64(), None, "x is null, and not in the schema: make its type a union with null"),
    "null in an array": ({"type": "array", "items": "long"}, pa.list_(pa.int64()), [None], "x.element is null"),
    "a length": ({"type": "fixed", "name": "f", "size": 2}, pa.binary(), b"abc", "x has 3 bytes, and 2 in the"),
    "a symbol": ({"type": "enum", "name": "e", "symbols": ["A"]}, pa.string(), "B", "x is 'B', which is not among"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_value_that_does_not_fit_is_named(case: str) -> None:
    avro, kind, value, message = BAD[case]
    with pytest.raises(ValueTypeError, match=message):
        written(avro, kind, value)
