"""A clock that is years ahead is refused; where it was recorded, status says so, and there is a way back."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from state_engine.core.errors import SetupError
from state_engine.monitoring.job_status import JobStatus, status_of
from tests.support.tiny import Site, Sum

DAY_MS = 86_400_000


def status(site: Site, now_ms: int) -> JobStatus:
    with site.engine() as engine:
        path = engine.context.history("tiny").path(engine.checkpoints("tiny")[-1].checkpoint_id)
    return status_of("tiny", path, unpublished=[], lag=None, now_ms=now_ms, stuck_after=timedelta(days=1))


def test_ten_years_ahead_and_back(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    site, now_ms = Site(tmp_path, spark), time.time_ns() // 1_000_000
    ahead_ms = now_ms + 3650 * DAY_MS
    job = site.put({"k": ["a"], "v": [1]}, "0").job()
    with site.engine() as engine:
        engine.run(job, clock=now_ms)
        site.put({"k": ["a"], "v": [2]}, "1")
        with pytest.raises(SetupError, match=r"3,6\d\d days later, and max_clock_jump of the job is"):
            engine.run(job, clock=ahead_ms)
        assert [row.clock_ms for row in engine.checkpoints(job)] == [now_ms]

        engine.run(job, clock=ahead_ms, accept_clock=True)
        site.put({"k": ["a"], "v": [3]}, "2")
        engine.run(job, clock=now_ms + 5)
        assert [row.clock_ms for row in engine.checkpoints(job)] == [now_ms, ahead_ms, ahead_ms]
        assert "processing time stands at" in caplog.text
    stands = status(site, now_ms)
    assert stands.clock_ahead_s == 3650 * 86_400
    with site.engine() as engine:
        engine.restore(job, checkpoint_id=1)
        engine.run(job, clock=now_ms + 9)
        assert engine.checkpoints(job)[-1].clock_ms == now_ms + 9
        assert site.state() == {"a": 6}
    assert status(site, now_ms).clock_ahead_s is None


def test_replays_and_letters_are_checked_as_runs_are(tmp_path: Path, spark: SparkSession) -> None:
    site, now_ms = Site(tmp_path, spark), time.time_ns() // 1_000_000
    ahead_ms = now_ms + 3650 * DAY_MS
    job = site.put({"k": ["a"], "v": [1]}, "0").job(on_error="dead_letter")
    with site.engine() as engine:
        engine.run(site.job(Sum(lambda *_: 1 / 0), on_error="dead_letter"), clock=now_ms)
        with pytest.raises(SetupError, match=r"checkpoint 1 was .*max_clock_jump .*accept_clock=True"):
            engine.replay_dead_letters(job, clock=ahead_ms)
        with pytest.raises(SetupError, match=r"the clock of this machine says .*accept_clock=True"):
            engine.replay(job, clock=ahead_ms)
        assert len(engine.checkpoints(job)) == 1

        assert engine.replay_dead_letters(job, clock=ahead_ms, accept_clock=True).refused == 0
        assert engine.replay(job, to_checkpoint=2).remaining == 0  # as recorded, ten years ahead
        engine.replay(job, clock=ahead_ms, accept_clock=True)
        assert {row.clock_ms for row in engine.checkpoints(job)[2:]} == {now_ms, ahead_ms}
    assert site.state() == {"a": 1}


def test_a_bootstrap_is_checked_as_a_run_is(tmp_path: Path, spark: SparkSession) -> None:
    site, ahead_ms = Site(tmp_path, spark), time.time_ns() // 1_000_000 + 3650 * DAY_MS
    job = site.put({"k": ["a"], "v": [1]}, "0").job()
    with site.engine() as engine:
        processor = engine.state_processor(job)
        given = {"sums": {"total": spark.createDataFrame([("z", 5)], "k string, value bigint")}}
        refusal = r"the clock of this machine says .*max_clock_jump .*366.*Correct"
        for dry_run in (True, False):
            with pytest.raises(SetupError, match=refusal):
                processor.bootstrap(given, clock=ahead_ms, dry_run=dry_run)
        assert engine.checkpoints(job) == []
        processor.bootstrap(given, clock=ahead_ms, accept_clock=True)
        assert [row.clock_ms for row in engine.checkpoints(job)] == [ahead_ms]
