"""Random histories of runs, operations, raises and zombies: each ends as if nobody had disturbed it.

pytest tests/faults/test_soak.py -k "[17]"      one seed again
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.soak import History
from tests.faults.workloads import CUT, WORKLOADS, Seen, Site

pytestmark = [pytest.mark.spark, pytest.mark.faults]
SEEDS = 200
Expected = Callable[[str], Seen]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Expected:
    """The results of an uninterrupted run of a workload."""
    seen_by_name: dict[str, Seen] = {}

    def seen(name: str) -> Seen:
        if name not in seen_by_name:
            site = Site(tmp_path_factory.mktemp(name), WORKLOADS[name], spark, cut=CUT)
            site.run()
            seen_by_name[name] = site.seen()
        return seen_by_name[name]

    return seen


@pytest.mark.parametrize("seed", list(range(SEEDS)))
def test_a_random_history_changes_no_result(
    seed: int, tmp_path: Path, spark: SparkSession, expected: Expected
) -> None:
    restorable = [workload for workload in WORKLOADS.values() if workload.withdraws]
    workload = restorable[seed % len(restorable)]
    history = History(Site(tmp_path, workload, spark, cut=CUT), seed)
    try:
        history.play()
        assert history.site.seen() == expected(workload.name)
    except BaseException:
        print(f"seed {seed}, workload {workload.name}:", *history.steps, sep="\n  ")
        raise
