"""A Python worker that dies, or a function that raises, in the middle of a subtask; then plain runs: nothing differs.

Both on the route by which the driver sends few rows, and on Spark's. In ``local[n]`` Spark runs no task again, so the
micro-batch fails, and nothing of it is seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine.core.errors import SubtaskLostError, UserFunctionError
from state_engine.sources.frames import StreamFrame
from state_engine.spark.tasks import DriverTables
from tests.faults.cases import SavedSite
from tests.faults.subtask_faults import MESSAGE, UIDS, Planted, SubtaskFault, Where, breakable
from tests.faults.workloads import Site

pytestmark = pytest.mark.spark

PLACES: list[tuple[Where, int]] = [
    ("element", 3),
    ("snapshot_state", 1),
    ("file", 1),
    ("file", 2),
    ("user function", 3),
]
FAULTS = [SubtaskFault(where, nth, uid) for uid in UIDS for where, nth in PLACES]
QUICK = {("driver", SubtaskFault("file", 1, UIDS[1]))}
CASES = [
    pytest.param(
        route, fault, id=f"{route}-{fault}", marks=() if (route, fault) in QUICK else pytest.mark.faults
    )
    for route in ("driver", "spark")
    for fault in FAULTS
]


@pytest.fixture(scope="module")
def saved_site(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> SavedSite:
    return SavedSite.prepare(breakable(), tmp_path_factory.mktemp("subtasks"), spark)


@pytest.fixture
def sent_by_driver(monkeypatch: pytest.MonkeyPatch, route: str) -> Iterator[list[int]]:
    """Numbers of tables that the driver sent to subtasks."""
    sent, real = list[int](), DriverTables.answers

    def answers(given: DriverTables, spark: SparkSession, answer: Any) -> list[str]:
        sent.append(len(given.tables))
        return real(given, spark, answer)

    monkeypatch.setattr(DriverTables, "answers", answers)
    if route == "spark":
        monkeypatch.setattr(StreamFrame, "table", None)
    yield sent
    assert bool(sent) == (route == "driver")


@pytest.mark.parametrize(("route", "fault"), CASES)
def test_a_fault_in_a_subtask_changes_no_result(
    route: str, fault: SubtaskFault, saved_site: SavedSite, sent_by_driver: list[int], tmp_path: Path
) -> None:
    marker = tmp_path / "happened"
    site = saved_site.fresh()
    broken = Site(site.directory, breakable(Planted(fault, marker)), site.spark, cut=site.cut)
    kind = UserFunctionError if fault.where == "user function" else SubtaskLostError
    with pytest.raises(kind) as failed:
        broken.run()
    assert marker.exists()
    check_message(failed.value, fault)
    assert len(site.rows()) == 1
    assert site.seen() == saved_site.after[1]
    saved_site.check_recovery(broken)


def check_message(error: BaseException, fault: SubtaskFault) -> None:
    """Whether the error says what happened."""
    if fault.where == "user function":
        assert f"operator '{fault.uid}'" in str(error)
        assert MESSAGE in str(error)
    else:
        assert f"operator '{fault.uid}': the process of a subtask died" in str(error)
        assert len(str(error)) < 700
