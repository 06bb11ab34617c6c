"""``SameSum`` over columns of any kinds of numbers, and over others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from state_engine import SameSum
from state_engine.core.errors import ConfigurationError


@dataclass(frozen=True)
class Staged:
    """One column of two sinks."""

    one: pa.Array
    other: pa.Array

    def table(self, sink: str, columns: Sequence[str] | None) -> pa.Table:
        return pa.table({"v": self.one if sink == "one" else self.other})

    def rows(self, sink: str) -> int:
        return self.table(sink, None).num_rows

    def rows_before(self, sink: str, batches: int) -> list[int]:
        return []

    def entries(self, operator: str, state: str) -> pa.Table:
        raise AssertionError


def breach_of(one: Any, other: Any, tolerance: float = 0) -> Any:
    return SameSum("one", "v", "other", tolerance=tolerance).breach(Staged(one, other))


MOST = 2**63 - 1
CENTS = pa.array([Decimal("0.10"), None, Decimal("0.20")], pa.decimal128(10, 2))


@pytest.mark.parametrize(
    ("one", "other", "tolerance", "text"),
    [
        (pa.array([1, 2, None]), pa.array([3.0]), 0, None),
        (CENTS, pa.array([0.25, 0.05]), 0.001, None),
        (CENTS, pa.array([30]), 0, "0.30 and 30"),
        (pa.array([MOST, MOST]), pa.array([-2]), 0, "18,446,744,073,709,551,614 and -2"),
        (pa.array([2**64 - 1], pa.uint64()), pa.array([MOST, MOST, 1]), 0, None),
        (pa.array([1.0, float("nan")]), pa.array([float("nan")]), 0, "nan and nan"),
        (pa.array([1.0]), pa.array([float("inf")]), 10.0, "1.0 and inf"),
        (pa.nulls(0, pa.int64()), pa.nulls(2, pa.float64()), 0, None),
    ],
)  # fmt: skip
def test_sums_are_compared_as_they_are(one: Any, other: Any, tolerance: float, text: str | None) -> None:
    breach = breach_of(one, other, tolerance)
    assert (None if breach is None else breach.text) == text


def test_a_column_that_is_no_number_is_named() -> None:
    with pytest.raises(
        ConfigurationError, match="column 'v' of sink 'other' has the type string: name a column"
    ):
        breach_of(pa.array([1]), pa.array(["1"]))
