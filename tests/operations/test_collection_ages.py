"""A collection measures ages by the clock of each storage, never by the machine's."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from state_engine.operations import file_collector
from state_engine.operations.file_collector import ORPHAN_AGE, _Ages
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores.store_clock import StoreClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Tables:
    """The tables of a job, reduced to their clock."""

    def __init__(self, root: Path) -> None:
        self.layout = JobLayout(f"file://{root}", "tiny")
        self.clock = StoreClock(self.layout.root)


@pytest.fixture
def tables(tmp_path: Path) -> Any:
    return Tables(tmp_path / "root")


def test_the_machines_clock_decides_nothing(tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = tables.clock.now_ms()
    for days in (-2, 2):
        moment = type(
            "Moment", (), {"time_ns": staticmethod(lambda by=days: (right + by * DAY_MS) * 1_000_000)}
        )
        monkeypatch.setattr(file_collector, "time", moment)
        ages = _Ages(ORPHAN_AGE, tables, [], None)
        assert abs(ages.before_ms("") - (right - DAY_MS)) < HOUR_MS
        ahead = ages.machine_is_ahead()  # VACUUM goes by it, and must keep more
        assert abs(ahead - timedelta(days=max(days, 0))) < timedelta(hours=1)


def test_a_sink_on_other_storage_is_measured_by_its_own_clock(
    tables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, gone = tmp_path / "sink", tmp_path / "gone"
    there.mkdir()
    sinks = [f"file://{there}", f"file://{gone}"]
    here = _Ages(ORPHAN_AGE, tables, sinks, None)
    assert here.before_ms(sinks[0]) == here.before_ms(""), "on the root's storage"

    class Behind(StoreClock):
        def now_ms(self) -> int:
            return super().now_ms() - 2 * DAY_MS

    monkeypatch.setattr(file_collector, "same_store", lambda *_: False)
    monkeypatch.setattr(file_collector, "StoreClock", Behind)
    ages = _Ages(ORPHAN_AGE, tables, sinks, None)
    assert abs(ages.before_ms("") - ages.before_ms(sinks[0]) - 2 * DAY_MS) < HOUR_MS
    assert ages.before_ms(sinks[1]) < 0, "nothing is old where no time is known"


def test_a_time_that_is_given_is_that_of_all_places(tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_collector, "same_store", lambda *_: False)
    ages = _Ages(ORPHAN_AGE, tables, ["s3a://bucket/sink"], 10 * DAY_MS)
    assert ages.before_ms("") == ages.before_ms("s3a://bucket/sink") == 9 * DAY_MS
