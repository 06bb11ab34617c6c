"""The names of PyFlink's types: all exist, and values are read as a PyFlink function sees them."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.types.durations import Instant
from state_engine.core.types.every_type import TypeInformation
from state_engine.core.types.row import Row
from state_engine.core.types.types_namespace import Types

PYFLINK = {
    "BASIC_ARRAY", "BIG_DEC", "BIG_INT", "BOOLEAN", "BYTE", "CHAR", "DOUBLE", "FLOAT", "INSTANT", "INT", "LIST", "LONG",
    "MAP", "OBJECT_ARRAY", "PICKLED_BYTE_ARRAY", "PRIMITIVE_ARRAY", "ROW", "ROW_NAMED", "SHORT", "SQL_DATE", "SQL_TIME",
    "SQL_TIMESTAMP", "STRING", "TUPLE",
}  # fmt: skip
"""Members of ``pyflink.common.Types`` in PyFlink 2.3."""


def test_all_names_of_pyflink_are_there_and_no_other() -> None:
    assert {name for name in vars(Types) if not name.startswith("_")} == PYFLINK


AS_DECLARED: list[tuple[TypeInformation, Any, pa.DataType]] = [
    (Types.STRING(), "ä", pa.string()),
    (Types.BYTE(), -128, pa.int64()),
    (Types.BOOLEAN(), True, pa.bool_()),
    (Types.SHORT(), 2**15 - 1, pa.int64()),
    (Types.INT(), -(2**31), pa.int64()),
    (Types.LONG(), 2**63 - 1, pa.int64()),
    (Types.FLOAT(), 0.5, pa.float64()),
    (Types.DOUBLE(), 0.1, pa.float64()),
    (Types.CHAR(), "x", pa.string()),
    (Types.BIG_INT(), 10**38 - 1, pa.decimal128(38, 0)),
    (Types.BIG_DEC(), Decimal("1.5").quantize(Decimal("1e-18")), pa.decimal128(38, 18)),
    (Types.INSTANT(), Instant(-1, 999_999_000), pa.timestamp("us", "UTC")),
    (Types.SQL_DATE(), date(2013, 1, 1), pa.date32()),
    (Types.SQL_TIME(), time(23, 59, 59, 999_999), pa.int64()),
    (Types.SQL_TIMESTAMP(), datetime(2013, 1, 1, 5, 17), pa.timestamp("us")),
    (Types.PICKLED_BYTE_ARRAY(allow_pickle=True), {1}, pa.binary()),
    (Types.ROW([Types.INT(), Types.STRING()]), Row(1, "a"), pa.struct([("f0", pa.int64()), ("f1", pa.string())])),
    (Types.ROW_NAMED(["a"], [Types.LIST(Types.INT())]), Row(a=[1]), pa.struct([("a", pa.list_(pa.int64()))])),
    (Types.TUPLE([Types.INT(), Types.CHAR()]), (1, "x"), pa.struct([("f0", pa.int64()), ("f1", pa.string())])),
    (Types.PRIMITIVE_ARRAY(Types.INT()), [1, 2], pa.list_(pa.int64())),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"\x00\xff", pa.binary()),
    (Types.BASIC_ARRAY(Types.STRING()), ["a", None], pa.list_(pa.string())),
    (Types.OBJECT_ARRAY(Types.TUPLE([Types.INT()])), [(1,), None], pa.list_(pa.struct([("f0", pa.int64())]))),
    (Types.MAP(Types.STRING(), Types.SQL_TIME()), {"a": time(1), "b": None}, pa.map_(pa.string(), pa.int64())),
    (Types.LIST(int), [1, None], pa.list_(pa.int64())),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "storage"), AS_DECLARED, ids=lambda v: str(v))
def test_values_come_back_as_declared(kind: TypeInformation, value: Any, storage: pa.DataType) -> None:
    assert kind.storage == storage
    (back,) = kind.from_arrow(kind.to_arrow([kind.normalise(value)], storage=True))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("kind", "bits"), [(Types.BYTE(), 8), (Types.SHORT(), 16), (Types.INT(), 32), (Types.LONG(), 64)]
)
def test_whole_numbers_have_the_range_of_their_name(kind: TypeInformation, bits: int) -> None:
    assert kind.normalise(2 ** (bits - 1) - 1) == 2 ** (bits - 1) - 1
    for outside in (2 ** (bits - 1), -(2 ** (bits - 1)) - 1):
        with pytest.raises(ValueTypeError, match="must be between"):
            kind.normalise(outside)


def test_a_pickled_type_is_made_only_by_opting_in() -> None:
    for given in ({}, {"allow_pickle": False}):
        with pytest.raises(ConfigurationError, match=r"PICKLED_BYTE_ARRAY\(allow_pickle=True\)"):
            Types.PICKLED_BYTE_ARRAY(**given)


WRONG = [
    (lambda: Types.PRIMITIVE_ARRAY(Types.STRING()), "PRIMITIVE_ARRAY holds no string"),
    (lambda: Types.PRIMITIVE_ARRAY(Types.BIG_INT()), "PRIMITIVE_ARRAY holds no big integer"),
    (lambda: Types.BASIC_ARRAY(Types.SQL_DATE()), "use OBJECT_ARRAY or LIST"),
    (lambda: Types.ROW_NAMED(["a"], []), "1 field_names and 0 field_types"),
    (lambda: Types.ROW_NAMED(["a", "a"], [int, int]), "unique"),
    (lambda: Types.TUPLE([int, None]), r"field_types\[1\] is missing"),
    (lambda: Types.LIST(object), "element_type_info"),
    (lambda: Types.MAP(None, int), "key_type_info is missing"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_parts_are_refused_and_named(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
