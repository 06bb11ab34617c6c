"""Time partitions under real Dagster and the real engine: order, ranges, backfills, late rows, and triggers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partialmethod
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from state_engine import CheckpointRow, StatefulJob
from state_engine.cli.status import look, now_ms
from state_engine.core.checkpoints.checkpoint import MAIN
from state_engine.core.errors import SetupError
from state_engine.core.time.partitions import TimePartitions
from state_engine.dagster import job_health
from state_engine.dagster.engine_resource import StateEngineResource
from state_engine.dagster.micro_batches import DATA_VERSION_TAG
from state_engine.dagster.time_partitions import definition_of, request_for
from state_engine.microbatch.coordinator import CheckpointCoordinator
from state_engine.microbatch.partition_runs import PartitionStatus
from state_engine.microbatch.reports import RunReport
from state_engine.registry import load_jobs
from state_engine.replay.backfill import BackfillReport
from tests.core.checkpoints.rows import checkpoint
from tests.dagster.days import ASSETS, CHECKPOINT, JOB, KEYS, SUMS, TABLE, TOTAL, Days
from tests.dagster.sites import QUIET, failure_of

LATER = datetime(2040, 1, 1, tzinfo=UTC)
RIGHT = [(1, "a", 1), (2, "b", 2), (3, "a", 4), (4, "b", 6), (5, "a", 9), (6, "b", 12)]
D8, D9, D10, D11, D12 = KEYS


@pytest.fixture
def days(tmp_path: Path) -> Iterator[Days]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Days(tmp_path, instance)


@pytest.mark.parametrize("every", ["day", "hour"])
@pytest.mark.parametrize(
    ("start", "end"),
    [("2013-01-01", "2014-01-01"), ("2012-11-03", "2012-11-05"), ("2013-03-10", None)],
    ids=str,
)
def test_keys_are_the_engines(every: str, start: str, end: str | None) -> None:
    own = TimePartitions("at", every=every, start=start, end=end, timezone="America/New_York")
    now = datetime(2014, 1, 2, 7, 30, tzinfo=UTC)
    keys = [one.key for one in own.from_to(own.first(), int(now.timestamp() * 1000))]
    assert definition_of(own).get_partition_keys(current_time=now) == keys
    assert len(keys) > 1


def test_bounds_are_the_engines_where_clocks_are_changed() -> None:
    # the second of two equal hours is a start like any other
    for start, end in (("2013-11-03-01:00-0500", "2013-11-04"), ("2013-03-09", "2013-03-11-05:00")):
        own = TimePartitions("at", every="hour", start=start, end=end, timezone="America/New_York")
        definition = definition_of(own)
        keys = [one.key for one in own.from_to(own.first(), 10**14)]
        assert definition.get_partition_keys(current_time=LATER) == keys
        windows = [definition.time_window_for_partition_key(key) for key in keys]
        assert [tuple(int(at.timestamp() * 1000) for at in w) for w in windows] == [
            (own.at(key).start_ms, own.at(key).end_ms) for key in keys
        ]


def test_every_asset_of_such_a_job_is_partitioned_and_a_range_is_one_run(days: Days) -> None:
    specs = {s.key: s for s in days.defs.resolve_all_asset_specs()}
    expected = definition_of(TimePartitions("at", start=D8, end="2013-03-13", timezone="America/New_York"))
    assert [specs[key].partitions_def for key in ASSETS] == [expected] * len(ASSETS)
    assert expected.get_partition_keys() == KEYS
    [itself] = [d for d in specs[CHECKPOINT].deps if d.asset_key == CHECKPOINT]
    assert itself.partition_mapping == dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
    assets_definitions = [a for a in days.defs.assets or [] if isinstance(a, dg.AssetsDefinition)]
    [assets] = [a for a in assets_definitions if a.op.name == f"{JOB}_micro_batches"]
    assert assets.backfill_policy == dg.BackfillPolicy.single_run()
    assert days.defs.resolve_job_def(JOB).partitions_def == expected


@pytest.mark.spark
def test_a_partition_that_is_not_next_is_refused_and_nothing_is_lost(days: Days, spark: SparkSession) -> None:
    with pytest.raises(dg.Failure, match=f"run {D8} first") as refused:
        days.run(D9)
    assert refused.value.allow_retries is False
    assert days.log() == []

    days.run(D8)
    for key in ASSETS:
        assert days.log(key) == [("08", "1")]
    days.run(D9)
    assert days.log() == [("08", "1"), ("09", "2")]
    assert days.outputs() == RIGHT[:3]
    shown = days.shown(D9)
    assert (shown["partition"], shown["rows_in"], shown["partitions_done"]) == (D9, 1, 2)
    assert days.totals() == {"a": 4, "b": 2}
    assert days.shown(D9, TABLE) == {"rows_came": 1, "rows_went": 0, "shows_checkpoint": 2}


@pytest.mark.long
@pytest.mark.spark
def test_the_last_one_is_not_run_twice_and_one_that_ran_elsewhere_is_shown(
    days: Days, spark: SparkSession
) -> None:
    days.run(D8)
    again = days.run(D8)
    assert again.success
    assert again.get_asset_materialization_events() == []
    assert days.log() == [("08", "1")]
    [registered] = load_jobs(days.settings)
    days.engine(spark).run(registered.job, partition=D9)
    days.run(D9)
    assert days.log() == [("08", "1"), ("09", "2")] == days.log(SUMS)
    for allowed, state in (
        (timedelta(hours=-23), "ok"),
        (timedelta(hours=-25), "stuck"),
    ):  # besides the day itself
        job_status, _ = look(days.settings.root, JOB, registered.job, stuck_after=allowed, now_ms=now_ms())
        assert (job_status.state, job_status.lag) == (state, {f"partition {D10}": True})
    # asked for in so many words, it is
    days.factor = 10
    days.run(D9, mode="roll_forward")
    assert days.log()[2:] == [("09", "3")]
    assert days.outputs() == [(1, "a", 1), (2, "b", 2), (3, "a", 31)]


@pytest.mark.spark
def test_a_clock_that_jumps_is_accepted_for_one_partition_for_ranges_and_for_backfills(
    days: Days, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound of the job is a millisecond, so any two runs are a jump."""
    bounded = partialmethod(StatefulJob.__init__, max_clock_jump=timedelta(milliseconds=1))
    days.run(D8)
    monkeypatch.setattr(StatefulJob, "__init__", bounded)
    for asked in ((D9,), (D9, D11)):
        with pytest.raises(SetupError, match="in Dagster accept_clock: true in the configuration"):
            days.run(*asked)
    assert days.log() == [("08", "1")]
    days.run(D9, accept_clock=True)
    days.run(D10, D11, accept_clock=True)
    assert days.log() == [("08", "1"), ("09", "2"), ("10", "3"), ("11", "4")]
    days.factor = 10
    days.run(D11, mode="roll_forward")  # at the times that were recorded, which were accepted
    with pytest.raises(SetupError, match="accept_clock"):
        days.run(D11, D12, mode="roll_forward")
    assert days.outputs() == [*RIGHT[:4], (5, "a", 54)]
    days.run(D11, D12, mode="roll_forward", accept_clock=True)
    assert days.outputs() == [*RIGHT[:4], (5, "a", 54), (6, "b", 66)]


@pytest.mark.long
@pytest.mark.spark
def test_partitions_without_rows_are_done_in_all_assets(days: Days, spark: SparkSession) -> None:
    (days.directory / "feed" / "a.parquet").unlink()
    days.arrive("b", [("a", 3, 9, 12)])
    days.run(D8, D10)
    days.run(D11)
    for key in ASSETS:
        assert days.log(key) == [("08", "1"), ("09", "2"), ("10", "3"), ("11", "4")]
    assert [days.shown(day, SUMS)["rows_out"] for day in (D8, D9, D10, D11)] == [0, 1, 0, 0]


@pytest.mark.long
@pytest.mark.spark
def test_a_range_forward_and_again_from_any_day(days: Days, spark: SparkSession) -> None:
    days.run(D8, D11)
    ran = [("08", "1"), ("09", "2"), ("10", "3"), ("11", "4")]
    for key in ASSETS:
        assert days.log(key) == ran
    assert "run_batches" not in days.shown(D8)
    table = days.shown(D11)["partitions"].splitlines()
    assert table[0] == "| partition | state | checkpoint | rows | late rows |"
    assert table[2:4] == [f"| {D8} | done | 1 | 2 | 0 |", f"| {D9} | done | 2 | 1 | 0 |"]
    assert [days.shown(D11)[f"partitions_{s}"] for s in ("done", "stale", "missing")] == [4, 0, 1]

    days.factor = 10
    days.run(D9, D10, dry_run=True)
    assert days.observed()["dry_run"] is True
    assert days.observed()["partitions_of_run"] == [D9, D10, D11]
    assert days.log() == ran

    # one that is older, by a click: the later ones follow, and each has a version of its own
    days.run(D10)
    assert days.log()[4:] == [("10", "5"), ("11", "6")]
    assert days.outputs() == [(1, "a", 1), (2, "b", 2), (3, "a", 4), (4, "b", 42), (5, "a", 54)]
    assert days.totals() == {"a": 54, "b": 42}
    days.run(D9, D12)  # the last of them is run for the first time
    assert days.log(TOTAL)[6:] == [("09", "8"), ("10", "9"), ("11", "10"), ("12", "11")]
    assert days.outputs()[2:] == [(3, "a", 31), (4, "b", 42), (5, "a", 81), (6, "b", 102)]
    assert days.states(spark) == [f"{key[8:]} done" for key in KEYS]


@pytest.mark.long
@pytest.mark.spark
def test_stop_leaves_later_ones_stale_and_branch_leaves_all(days: Days, spark: SparkSession) -> None:
    days.run(D8, D11)
    days.factor = 10
    before = days.log()
    days.run(D9, D10, mode="branch")
    assert days.observed()["branch"] == "backfill_1"
    assert days.log() == before
    assert days.outputs() == RIGHT[:5]

    assert days.totals() == {"a": 9, "b": 6}

    days.run(D9, D9, mode="stop")
    assert days.shown(D9)["stale"] == [D10, D11]
    assert [days.shown(D9)[f"partitions_{s}"] for s in ("done", "stale", "missing")] == [2, 2, 1]
    assert [p for p, _ in days.log()[4:]] == ["09"]
    assert days.outputs() == [(1, "a", 1), (2, "b", 2), (3, "a", 31), (4, "b", 6), (5, "a", 9)]
    assert days.totals() == {"a": 31, "b": 2}, "as of the end of the range"
    days.run(D10)
    days.run(D11)
    assert [p for p, _ in days.log()[4:]] == ["09", "10", "11"]
    assert days.outputs()[3:] == [(4, "b", 42), (5, "a", 81)]


@pytest.mark.long
@pytest.mark.spark
def test_a_range_that_failed_half_way_goes_on(
    days: Days, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = CheckpointCoordinator.publish

    def die(self: CheckpointCoordinator, attempt: object) -> object:
        if days.engine(spark).checkpoints(JOB)[-1].checkpoint_id == 3:
            raise RuntimeError("killed after the commit")
        return publish(self, attempt)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointCoordinator, "publish", die)
        assert not days.run(D8, D12, raise_on_error=False).success
    # the third is committed, and shown; its outputs are not there yet, and not shown
    assert days.log() == [("08", "1"), ("09", "2"), ("10", "3")]
    assert days.log(SUMS) == days.log()[:2]
    assert days.outputs() == RIGHT[:3]
    assert days.totals() == {"a": 4, "b": 2}
    days.run(D8, D12)
    assert days.totals() == {"a": 9, "b": 12}
    assert days.outputs() == RIGHT
    assert [one.parent_id for one in days.engine(spark).checkpoints(JOB)] == [None, 1, 2, 3, 4]
    # that the third was published is shown by the run that did it
    assert days.log(SUMS)[2:] == [("11", "4"), ("10", "3"), ("12", "5")]


@pytest.mark.long
@pytest.mark.spark
def test_what_waits_is_asked_for_and_late_rows_are_reported(
    days: Days, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = definition_of(TimePartitions("at", start=D8)).time_window_for_partition_key(D12).start
    monkeypatch.setattr(job_health, "now_ms", lambda: int(now.timestamp() * 1000))
    schedule = days.defs.resolve_schedule_def(f"{JOB}_schedule")
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("10 0 * * *", "America/New_York")
    [wanted] = _asked(days, "schedule")
    assert wanted.tags["dagster/asset_partition_range_start"] == D8
    assert wanted.tags["dagster/asset_partition_range_end"] == D10  # in New York it is still the 11th
    days.run(D8, D10, missing_only=True)
    assert days.run(D8, D10, missing_only=True).get_asset_materialization_events() == []
    assert _asked(days, "schedule") == _asked(days, "sensor") == []
    printed = _check(days, "moves_on")
    assert printed.passed
    assert "no other partition is over" in (printed.description or "")

    assert _check(days, "late_rows").passed
    days.arrive("b", [("c", 100, 9, 13), ("c", 200, 10, 13), ("c", 300, 11, 13)])
    later = now.timestamp() * 1000 + 4 * 86_400_000
    monkeypatch.setattr(job_health, "now_ms", lambda: int(later))
    assert [r.tags.get("dagster/asset_partition_range_start") for r in _asked(days, "sensor")] == [D11]
    days.run()  # without a partition: what waits
    assert days.log()[3:] == [("11", "4"), ("12", "5")]
    assert (days.shown(D11)["late_rows"], days.shown(D12)["late_rows"]) == (2, 0)
    evaluation = _check(days, "late_rows")
    assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.WARN)
    command = f"statelake backfill {JOB} --from {D9} --to {D10} --rebatch"
    assert (evaluation.description or "").endswith(f"Take them in: {command}")
    assert (evaluation.description or "").startswith(f"2 rows of {D9} to {D10} came after")
    assert str(evaluation.metadata["found_with"].value).splitlines()[2:] == [f"| {D11} | 2 |"]
    days.late = "ignore"
    assert _check(days, "late_rows").passed
    days.late = "warn"

    days.run(D9, D10, rebatch=True)
    assert _check(days, "late_rows").passed
    assert (300, "c", 600) in days.outputs()


@pytest.mark.parametrize(
    ("first", "config", "message"),
    [
        (D8, {"mode": "sideways"}, "roll_forward"),
        (D8, {"missing_only": True, "rebatch": True}, "missing_only runs nothing again"),
        (None, {"dry_run": True}, "--partition-range"),
    ],
    ids=["mode", "two wishes", "no partition"],
)
@pytest.mark.spark
def test_nonsense_is_refused(
    days: Days, spark: SparkSession, first: str | None, config: dict[str, Any], message: str
) -> None:
    refused = days.run(first, raise_on_error=False, **config)
    assert not refused.success
    assert message in failure_of(refused)
    assert days.engine(spark).checkpoints(JOB) == []


def _asked(days: Days, by: str) -> list[dg.RunRequest]:
    """The runs that the schedule or the sensor for new data asks for."""
    if by == "schedule":
        repository = days.defs.get_repository_def()
        with dg.build_schedule_context(instance=days.instance, repository_def=repository) as context:
            tick = days.defs.resolve_schedule_def(f"{JOB}_schedule").evaluate_tick(context)
        return list(tick.run_requests or [])
    with dg.build_sensor_context(instance=days.instance) as sensor_context:
        request = days.defs.resolve_sensor_def(f"{JOB}__new_data")(sensor_context)
    return [request] if isinstance(request, dg.RunRequest) else []


def _check(days: Days, name: str) -> dg.AssetCheckEvaluation:
    done = days.defs.resolve_job_def(f"{JOB}__check").execute_in_process(
        instance=days.instance, run_config=QUIET
    )
    [evaluation] = [e for e in done.get_asset_check_evaluations() if e.check_name == name]
    return evaluation


D8, D9, D10, D11, D12 = KEYS


class WrittenDown:
    """Reports some partitions as done, as checkpoints 1, 2, …; runs nothing."""

    def __init__(self, done: int) -> None:
        self.keys, self.asked = KEYS[:done], list[Any]()

    def partitions(self, job: object) -> list[PartitionStatus]:
        done = [PartitionStatus(key, "done", i + 1, 1) for i, key in enumerate(self.keys)]
        return [*done, *(PartitionStatus(key, "missing") for key in KEYS[len(done) :])]

    def checkpoints(self, job: object) -> list[CheckpointRow]:
        return [
            replace(checkpoint(i + 1, i or None), partition=key, partition_start_ms=i, partition_end_ms=i + 1)
            for i, key in enumerate(self.keys)
        ]

    def run(self, job: object, *, partition: str | None, **_: object) -> RunReport:
        self.asked.append(("run", partition))
        return RunReport(JOB, [], True, [])

    def backfill(
        self, job: object, first: str, last: str, mode: str, *, dry_run: bool, rebatch: bool, **_: object
    ) -> BackfillReport:
        self.asked.append(("backfill", first, last, mode, *["dry"] * dry_run, *["rebatch"] * rebatch))
        keys = KEYS[KEYS.index(first) : KEYS.index(last) + 1]
        return BackfillReport(JOB, "roll_forward", MAIN, None, keys, [], {})


def launch(
    days: Days,
    engine: WrittenDown,
    monkeypatch: pytest.MonkeyPatch,
    *partitions: str,
    config: Mapping[str, Any] | None = None,
) -> list[Any]:
    monkeypatch.setattr(StateEngineResource, "engine", lambda self: engine)
    days.run(*partitions, **(config or {}))
    return engine.asked


@pytest.mark.parametrize(
    ("done", "asked", "config", "expected"),
    [
        (0, [D8], {}, [("run", D8)]),
        (0, [D8, D10], {}, [("backfill", D8, D10, "roll_forward")]),
        (0, [], {}, [("run", None)]),
        (2, [D9], {}, [("run", D9)]),
        (2, [D9], {"mode": "stop"}, [("backfill", D9, D9, "stop")]),
        (2, [D9], {"rebatch": True}, [("backfill", D9, D9, "roll_forward", "rebatch")]),
        (2, [D8], {}, [("backfill", D8, D8, "roll_forward")]),
        (2, [D9, D11], {}, [("backfill", D9, D11, "roll_forward")]),
        (2, [D9, D11], {"missing_only": True}, [("backfill", D10, D11, "roll_forward")]),
        (2, [D9, D10], {"missing_only": True}, [("run", D10)]),
        (2, [D8, D9], {"missing_only": True}, []),
        (2, [D8], {"dry_run": True}, [("backfill", D8, D8, "roll_forward", "dry")]),
        (2, [D9], {"dry_run": True}, [("backfill", D9, D9, "roll_forward", "dry")]),
    ],
    ids=str,
)
def test_what_is_asked_of_the_engine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    done: int,
    asked: list[str],
    config: dict[str, Any],
    expected: list[Any],
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        days = Days(tmp_path, instance)
        assert launch(days, WrittenDown(done), monkeypatch, *asked, config=config) == expected


def test_what_ran_elsewhere_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        days = Days(tmp_path, instance)
        assert launch(days, WrittenDown(3), monkeypatch, D8, D10, config={"missing_only": True}) == []
        shown = [(e.partition, (e.tags or {})[DATA_VERSION_TAG]) for e in days.events(CHECKPOINT)]
        assert shown == [(D8, "1"), (D9, "2"), (D10, "3")]


def test_a_request_names_partitions_and_runs_none_twice() -> None:
    own = TimePartitions("at", start=D8)
    one, many = request_for(JOB, own.between(D8, D8)), request_for(JOB, own.between(D8, D10), tags={"x": "y"})
    assert one.partition_key == D8
    assert many.partition_key is None
    assert many.tags["x"] == "y"
    for request in (one, many):
        assert request.run_config["ops"][f"{JOB}_micro_batches"]["config"] == {"missing_only": True}
