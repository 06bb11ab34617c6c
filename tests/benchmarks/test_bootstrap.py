"""The benchmark of given state: both engines hold the same state after every step, or no time is reported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from benchmarks.bootstrap import STEPS, check, one_round
from benchmarks.unequal import UnequalResultsError
from benchmarks.workload import Workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.long
@pytest.mark.spark
def test_both_engines_go_on_from_the_same_state(tmp_path: Path, spark: SparkSession) -> None:
    shown: list[str] = []
    timing = one_round(spark, 1000, tmp_path, on_step=shown.append)
    assert tuple(timing.seconds) == STEPS
    assert [t.split(": ", 1)[0] for t in shown] == [f"1,000 keys, {step}".split(": ", 1)[0] for step in STEPS]
    assert timing.ratio > 0


def windows(changed: dict[int, tuple[int, float]]) -> pa.Table:
    """State of five keys after their first event, with some that are otherwise, in no order."""
    state = Workload(5).expected(5).state | changed
    rows = sorted(state.items(), reverse=True)
    return pa.table(
        {"k": [k for k, _ in rows], "count": [w[0] for _, w in rows], "total": [w[1] for _, w in rows]}
    )


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (windows({3: (2, 4.0)}), "the state of 1 keys is wrong"),
        (windows({3: (1, 99.0)}), "the state of 1 keys is wrong"),
        (windows({7: (1, 1.0)}), "6 keys have state"),
        (windows({}).slice(1), "4 keys have state"),
    ],
    ids=["count", "total", "too_many", "missing"],
)
def test_any_difference_is_an_error(result: pa.Table, message: str) -> None:
    check("same", windows({}), Workload(5), 5)
    with pytest.raises(UnequalResultsError, match=message):
        check("other", result, Workload(5), 5)
