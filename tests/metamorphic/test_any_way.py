"""However a job is run, it gives the same, and its user finds his session as it was.

Rows within the bound of their order, over any cuts, parallelism, backend, settings of a time to live, options of the
session, beside another engine and with interrupts: outputs, tables, states, timers and event time are those of one
plain run. ``STATELAKE_TEST_WAYS=100 pytest tests/metamorphic -m long`` tries so many ways of each job.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.metamorphic.files import Results
from tests.metamorphic.jobs import CASES
from tests.metamorphic.sessions import switches
from tests.metamorphic.variations import check_any_way, plain_run, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.spark_tasks]

WAYS = int(os.environ.get("STATELAKE_TEST_WAYS", "2"))
SAME_ROWS = 8
"""So many ways are tried with the same rows: a plain run costs as much as another way."""
SHORT = {
    "every state, event time": 1, "hours in order": 2, "joined": 1, "operators": 1, "zones": 2, "history": 1,
    "template ledger": 3, "example broadcast_rules": 1, "raw state of subtasks": 2, "outages": 4,
}  # fmt: skip
"""Ways that ``make test-all`` tries: which of which job."""
WAYS_OF_CASES = [
    pytest.param(name, seed, id=f"{name}-{seed}", marks=() if SHORT.get(name) == seed else pytest.mark.long)
    for name in CASES
    for seed in sorted({*range(1, WAYS + 1), *([SHORT[name]] if name in SHORT else [])})
]


@pytest.fixture(scope="module")
def turned(spark: SparkSession) -> dict[str, str]:
    return switches(spark.newSession())


@pytest.fixture(scope="module")
def plain_runs() -> dict[tuple[str, int], Results]:
    return {}


@pytest.mark.parametrize(("name", "seed"), WAYS_OF_CASES)
def test_any_way_gives_the_same(
    name: str,
    seed: int,
    tmp_path: Path,
    spark: SparkSession,
    turned: dict[str, str],
    plain_runs: dict[Any, Results],
) -> None:
    case, data = CASES[name], (name, seed // SAME_ROWS)
    rows = rows_of(case, data[1])
    if data not in plain_runs:
        plain_runs[data] = plain_run(case, rows, tmp_path / "plain", spark)
    check_any_way(case, seed, turned, rows, tmp_path / "varied", spark, plain_runs[data])
