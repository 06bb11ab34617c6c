"""Values that Arrow holds and Python cannot are text, wherever they are nested."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from state_engine.core.types.beyond_python import python_rows, python_values

FAR_US, FAR = 1_709_251_200_000_000_000, "56134-01-06T00:00:00.000000Z"
INSTANT = pa.timestamp("us", "UTC")
CASES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "a timestamp": (INSTANT, FAR_US, FAR),
    "a timestamp without zone": (pa.timestamp("ms"), 253_402_300_800_000, "10000-01-01T00:00:00.000"),
    "the first instant that Spark holds": (INSTANT, -62_167_219_200_000_000, "0000-01-01T00:00:00.000000Z"),
    "a date": (pa.date32(), 2_932_897, "10000-01-01"),
    "a date before 1": (pa.date32(), -719_163, "0000-12-31"),
    "in a list": (pa.list_(INSTANT), [FAR_US, 0, None], [FAR, "1970-01-01T00:00:00.000000Z", None]),
    "in a record": (pa.struct([("at", INSTANT), ("k", pa.string())]), {"at": FAR_US, "k": "a"}, {"at": FAR, "k": "a"}),
    "in a map": (pa.map_(pa.string(), INSTANT), [("a", FAR_US)], [("a", FAR)]),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_what_python_cannot_hold_is_text(what: str) -> None:
    kind, value, shown = CASES[what]
    column = pa.array([value, None], kind)
    with pytest.raises((OverflowError, ValueError)):
        column.to_pylist()
    assert python_values(column) == [shown, None]
    assert python_values(pa.chunked_array([column])) == [shown, None]
    assert python_rows(pa.table({"v": column, "n": [1, 2]})) == [{"v": shown, "n": 1}, {"v": None, "n": 2}]


def test_others_are_as_they_are() -> None:
    values = [datetime(9999, 12, 31, tzinfo=UTC), None]
    assert python_values(pa.array(values, INSTANT)) == values
    assert python_values(pa.array([date.min], pa.date32())) == [date.min]
