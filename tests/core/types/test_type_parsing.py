"""From what users write to types, and back to DDL and to Spark's JSON."""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import sys
import types
import typing
from decimal import Decimal
from typing import Any, NamedTuple, Optional

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark_types

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.ddl import parse_ddl
from state_engine.core.types.durations import Instant
from state_engine.core.types.spark_types import spark_field, spark_schema, spark_type
from state_engine.core.types.type_parsing import from_spark_json, to_type
from state_engine.core.types.types_namespace import Types

_LEAVES = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(),
    pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(10, 0), pa.decimal128(38, 18),
]  # fmt: skip
_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6) | st.sampled_from(
    ["a", "a b", "`", "at.time", "ü"]
)


def _structs(names: list[str], kinds: list[pa.DataType]) -> pa.DataType:
    return pa.struct(list(zip(names, kinds, strict=False)))


def arrow_types() -> st.SearchStrategy[pa.DataType]:
    """Stored types of all kinds, nested, with any field names."""
    names = st.lists(_NAMES, min_size=1, max_size=3, unique=True)

    def deeper(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
        records = st.builds(_structs, names, st.lists(inner, min_size=3, max_size=3))
        return st.builds(pa.list_, inner) | st.builds(pa.map_, st.sampled_from(_LEAVES), inner) | records

    return st.recursive(st.sampled_from(_LEAVES), deeper, max_leaves=6)


@given(kind=arrow_types())
def test_spark_reads_its_json_form_and_gives_it_back(kind: pa.DataType) -> None:
    field = spark_types.StructField.fromJson(spark_field(pa.field("c", kind)))
    assert to_type(field.dataType, parameter="c").arrow == kind
    assert from_spark_json(spark_type(kind)).arrow == kind


@given(kind=arrow_types())
def test_spark_type_and_arrow_type_of_pyspark_agree(kind: pa.DataType) -> None:
    from pyspark.sql.pandas.types import to_arrow_type

    read = spark_types.StructType.fromJson(spark_schema(pa.schema([("c", kind)])))["c"].dataType
    # the zone of times has a parameter from Spark 4.2 on, and is UTC before
    zone: dict[str, Any] = (
        {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
    )
    assert to_arrow_type(read, **zone).equals(kind)


DDL = [
    ("bigint", pa.int64()),
    ("LONG", pa.int64()),
    ("  int ", pa.int32()),
    ("varchar(10)", pa.string()),
    ("decimal", pa.decimal128(10, 0)),
    ("decimal(5)", pa.decimal128(5, 0)),
    ("numeric( 5 , 2 )", pa.decimal128(5, 2)),
    ("array<map<string, array<int>>>", pa.list_(pa.map_(pa.string(), pa.list_(pa.int32())))),
    ("a bigint", pa.struct([("a", pa.int64())])),
    ("a: bigint, b string", pa.struct([("a", pa.int64()), ("b", pa.string())])),
    ("a bigint NOT NULL COMMENT 'the, key', b string", pa.struct([("a", pa.int64()), ("b", pa.string())])),
    ("date date, int int", pa.struct([("date", pa.date32()), ("int", pa.int32())])),
    ("map map<string, int>", pa.struct([("map", pa.map_(pa.string(), pa.int32()))])),
    (
        "struct<a: int, b: struct<c: date>>",
        pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.date32())]))]),
    ),
    (
        "a timestamp, b timestamp_ntz",
        pa.struct([("a", pa.timestamp("us", "UTC")), ("b", pa.timestamp("us"))]),
    ),
]


@pytest.mark.parametrize(("text", "kind"), DDL)
def test_ddl_in_the_spellings_that_spark_knows(text: str, kind: pa.DataType) -> None:
    assert parse_ddl(text).arrow == kind


def test_a_quoted_name_may_hold_anything() -> None:
    kind = parse_ddl("`odd ``name, <` string, `comment` int, `not` date").arrow
    assert [f.name for f in kind] == ["odd `name, <", "comment", "not"]


WRONG_DDL = ["", "  ", "bigint bigint bigint", "a", "a bigint,", "array<bigint", "array<>", "a decimal(x)", "a ?",
             "nothing", "struct<a int", "a bigint b string", "map<string>"]  # fmt: skip


@pytest.mark.parametrize("text", WRONG_DDL)
def test_wrong_ddl_is_refused_and_the_parameter_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="output_type"):
        to_type(text, parameter="output_type")


class Named(NamedTuple):
    a: int
    b: str | None


@dataclasses.dataclass
class Data:
    a: int
    b: list[float]


DECLARED: list[tuple[Any, str]] = [
    (int, "bigint"),
    (float, "double"),
    (str, "string"),
    (bool, "boolean"),
    (bytes, "binary"),
    (datetime.date, "date"),
    (datetime.datetime, "timestamp"),
    (Decimal, "decimal(38,18)"),
    (list[int], "array<bigint>"),
    (dict[str, list[bool]], "map<string, array<boolean>>"),
    (tuple[int, str], "f0 bigint, f1 string"),
    (int | None, "bigint"),
    (typing.List[int], "array<bigint>"),  # noqa: UP006 - the old spelling is the point
    (typing.Dict[str, Optional[int]], "map<string, bigint>"),  # noqa: UP006, UP045
    (typing.Tuple[int, str], "f0 bigint, f1 string"),  # noqa: UP006
    (typing.Union[None, float], "double"),  # noqa: UP007
    (list[int | None], "array<bigint>"),
    (datetime.time, "bigint"),
    (Instant, "timestamp"),
    (Types.ROW_NAMED(["a"], [Types.LIST(Types.SHORT())]), "a array<smallint>"),
    (Optional[str], "string"),  # noqa: UP045 - the old spelling is the point
    (Named, "a bigint, b string"),
    (Data, "a bigint, b array<double>"),
    (pa.int16(), "smallint"),
    (pa.large_string(), "string"),
    (pa.schema([("a", pa.int64())]), "a bigint"),
    (spark_types.LongType(), "bigint"),
    (spark_types.VarcharType(5), "string"),
    (spark_types.CharType(5), "string"),
    (
        spark_types.StructType().add("a", "long").add("b", spark_types.ArrayType(spark_types.DateType())),
        "a bigint, b array<date>",
    ),
    (spark_types.TimestampNTZType(), "timestamp_ntz"),
    (parse_ddl("float"), "float"),
]


@pytest.mark.parametrize(("declared", "ddl"), DECLARED)
def test_types_in_all_spellings(declared: Any, ddl: str) -> None:
    assert to_type(declared, parameter="p").arrow == parse_ddl(ddl).arrow


UNTYPED: list[Any] = [
    None, object, list, dict, tuple, tuple[int, ...], set[int], int | str, pa.uint8(), pa.time32("s"), pa.duration("s"),
    pa.null(), spark_types.CalendarIntervalType(), 5, lambda: None,
]  # fmt: skip


@pytest.mark.parametrize("declared", UNTYPED, ids=lambda kind: repr(kind).split(" at 0x")[0])
def test_what_is_no_type_is_refused_and_the_parameter_named(declared: Any) -> None:
    with pytest.raises(ConfigurationError, match="value_type_info"):
        to_type(declared, parameter="value_type_info")


def test_a_namedtuple_without_types_is_refused() -> None:
    from collections import namedtuple

    with pytest.raises(ConfigurationError, match=r"declares no types for \['a'\]"):
        to_type(namedtuple("Bare", ["a"]), parameter="p")


def test_an_arrow_type_without_a_delta_type_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no Delta type"):
        spark_type(pa.uint64())


def test_a_tuple_of_any_length_is_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigurationError, match=r"use list\[\.\.\.\]"):
        to_type(tuple[int, ...], parameter="p")


def test_times_and_instants_come_back_as_declared() -> None:
    for value in (datetime.time(5, 17), Instant(1, 500_000)):
        kind = to_type(type(value), parameter="p")
        assert kind.from_arrow(kind.to_arrow([value], storage=True)) == [value]


@pytest.mark.parametrize("record", ["NamedTuple", "object"])
def test_records_of_a_script_that_postpones_annotations_are_known_where_its_module_is_not(
    record: str,
) -> None:
    """As in a worker that was sent the class by value."""
    script = types.ModuleType("a_script_that_workers_do_not_have")
    source = f"""
from __future__ import annotations
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

class Seen({record}):
    at: datetime
    carrier: str | None

if {record} is object:
    Seen = dataclass(Seen)
"""
    sys.modules[script.__name__] = script
    try:
        exec(source, vars(script))
    finally:
        del sys.modules[script.__name__]
    assert (
        str(to_type(script.Seen, parameter="value")) == "struct<at: timestamp[us, tz=UTC], carrier: string>"
    )
