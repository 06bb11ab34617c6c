"""Replays on the real engine: recorded micro-batches run again on a branch, compared, promoted or dropped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import (
    BatchReport,
    DataStream,
    KeyedProcessFunction,
    Row,
    RuntimeContext,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint, SourceProgress
from state_engine.core.errors import ConfigurationError, SourceError, StateMigrationError
from state_engine.microbatch.coordinator import CheckpointCoordinator
from state_engine.replay.replay import was_drained
from tests.core.checkpoints.rows import checkpoint, tree
from tests.support.pipelines import Pipeline
from tests.support.tiny import Site, Sum

pytestmark = [pytest.mark.spark, pytest.mark.long]


BATCHES = [
    {"k": ["a", "b", "a"], "v": [1, 2, 3]},
    {"k": ["b", "c"], "v": [4, 5]},
    {"k": ["a", "c", "d"], "v": [6, 7, 8]},
]
TOTALS = {"a": 10, "b": 6, "c": 12, "d": 8}


class OddSum(Sum):
    """The corrected code: even values do not count, and are only emitted."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        if value.v % 2:
            yield from super().process_element(value, ctx)
        else:
            yield value.k, value.v, self.total.value() or 0


def history(site: Site) -> list[tuple[Any, ...]]:
    """A path of micro-batches, without names and times of attempts."""
    return [
        (r.checkpoint_id, r.parent_id, r.branch, r.kind, r.clock_ms, r.rows_in, r.sources[0].position_to)
        for r in site.engine().checkpoints("tiny")
    ]


def delta_commits(site: Site) -> list[dict[str, int]]:
    """How many files every version of the sink added and removed."""
    commits = []
    for file in sorted((site.sink / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        commits.append({kind: sum(kind in a for a in actions) for kind in ("add", "remove", "txn")})
    return commits


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Site:
    """After three micro-batches at the times 100, 200 and 300."""
    site = Site(tmp_path, spark)
    for i, rows in enumerate(BATCHES):
        site.put(rows, f"{i}")
        site.engine().run(site.job(), clock=100 * (i + 1))
    return site


def test_the_same_code_gives_the_same_on_a_branch_that_nobody_sees(site: Site) -> None:
    outputs, commits = site.outputs(), delta_commits(site)
    printed: list[BatchReport] = []
    report = site.engine().replay(site.job(), from_checkpoint=1, on_progress=printed.append)
    assert (report.branch, report.begin_id, report.remaining) == ("replay_1", 1, 0)
    assert (report.branch_head_id, report.main_head_id, report.batches) == (5, 3, printed)
    rows = history(site)
    assert [r[:4] for r in rows[3:]] == [(4, 1, "replay_1", "checkpoint"), (5, 4, "replay_1", "checkpoint")]
    assert [r[4:] for r in rows[3:]] == [r[4:] for r in rows[1:3]]
    assert (site.outputs(), delta_commits(site), site.state()) == (outputs, commits, TOTALS)

    comparison = site.engine().compare("tiny", "replay_1")
    assert comparison.is_equal
    assert (comparison.old_id, comparison.new_id, comparison.ancestor_id) == (3, 5, 1)
    assert [(s.operator, s.state) for s in comparison.states] == [("sums", "total")]
    branch = site.engine().read_state("tiny", "sums", "total", checkpoint_id=5).collect()
    assert {row[0]: row["value"] for row in branch} == TOTALS

    # main goes on beside it as if nothing was there
    site.put({"k": ["a"], "v": [1]}, "more")
    assert site.engine().run(site.job()).checkpoint_id == 6
    assert history(site)[5][1:3] == (3, "main")

    site.engine().drop_branch("tiny", "replay_1")
    last = site.engine().checkpoints("tiny")[-1]
    assert (last.kind, last.branch, last.retired) == ("retention", "main", [5])
    for call in (site.engine().promote, site.engine().drop_branch):
        with pytest.raises(ConfigurationError, match=r"no .*branch 'replay_1' to (promote|drop)"):
            call("tiny", "replay_1")
    with pytest.raises(ConfigurationError, match="'replay_1' was promoted or dropped"):
        site.engine().replay(site.job(), branch="replay_1")


def test_a_bug_fix_is_replayed_after_a_crash_compared_caught_up_and_promoted(
    site: Site, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replay() -> Any:
        return site.engine().replay(site.job(), code=site.job(OddSum()), branch="fix", from_checkpoint=0)

    commit, calls = CheckpointCoordinator.commit, []

    def crashing(self: Any, attempt: Any) -> Any:
        calls.append(attempt)
        if len(calls) == 2:
            raise OSError("killed")
        return commit(self, attempt)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointCoordinator, "commit", crashing)
        with pytest.raises(OSError, match="killed"):
            replay()
    assert [r[:3] for r in history(site)[3:]] == [(4, None, "fix")]
    assert [b.checkpoint_id for b in replay().batches] == [5, 6]
    assert not replay().batches

    scratch = Site(tmp_path / "scratch", spark)
    for i, rows in enumerate(BATCHES):
        scratch.put(rows, f"{i}")
        scratch.engine().run(scratch.job(OddSum()))
    comparison = site.engine().compare("tiny", "fix")
    assert not comparison.is_equal
    assert comparison.ancestor_id is None
    out = comparison.outputs["out"]
    assert (out.rows_only_old, out.rows_only_new) == (4, 4)
    old, new = set(site.outputs()), set(scratch.outputs())
    assert {tuple(row) for row in out.only_old.collect()} == {(*row, 1) for row in old - new}
    assert {tuple(row) for row in out.only_new.collect()} == {(*row, 1) for row in new - old}
    (total,) = comparison.states
    assert (total.added, total.removed, total.changed) == (0, 2, 1)
    assert "sink out" in comparison.summary()
    assert "2 removed, 1 changed" in comparison.summary()

    # main goes on: what was reviewed is not what would be replaced
    site.put({"k": ["a", "d"], "v": [2, 3]}, "3")
    site.engine().run(site.job(), clock=400)
    with pytest.raises(ConfigurationError, match="the head is checkpoint 7, not 3"):
        site.engine().promote("tiny", "fix", expected_head=3)
    report = replay()
    assert ([b.checkpoint_id for b in report.batches], report.main_head_id) == ([8], 7)

    before = delta_commits(site)
    promoted = site.engine().promote("tiny", "fix", expected_head=report.main_head_id)
    assert promoted.committed_id == 9
    (swap,) = delta_commits(site)[len(before) :]
    assert swap["txn"] == 1
    assert min(swap["add"], swap["remove"]) >= 1
    scratch.put({"k": ["a", "d"], "v": [2, 3]}, "3")
    scratch.engine().run(scratch.job(OddSum()))
    assert site.outputs() == scratch.outputs()
    assert site.state() == scratch.state() == {"a": 4, "c": 12, "d": 3}
    assert site.engine().publish_pending(site.job()) == []

    for one in (site, scratch):
        one.put({"k": ["a", "b"], "v": [1, 1]}, "4")
    report = site.engine().run(site.job(OddSum()))
    assert ([b.rows_in for b in report.batches], report.checkpoint_id) == ([2], 10)
    scratch.engine().run(scratch.job(OddSum()))
    assert site.outputs() == scratch.outputs()
    assert site.state() == scratch.state()


def test_main_goes_on_while_a_branch_runs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = CheckpointCoordinator.stage

    def attempts_of(begin: int) -> list[str]:
        """The branches of all attempts where main commits just before the branch."""
        attempts: list[str] = []

        def late(self: Any, attempt: Any) -> Any:
            staged = stage(self, attempt)
            attempts.append(attempt.batch.branch)
            if len(attempts) == 1:
                site.put({"k": ["a"], "v": [1]}, f"more-{begin}")
                site.engine().run(site.job())
            return staged

        with monkeypatch.context() as patch:
            patch.setattr(CheckpointCoordinator, "stage", late)
            site.engine().replay(
                site.job(), branch=f"from_{begin}", from_checkpoint=begin, to_checkpoint=begin + 1
            )
        return attempts

    # without a parent there is nothing that the batch could be put upon: it runs again
    assert attempts_of(0) == ["from_0", "main", "from_0"]
    assert attempts_of(1) == ["from_1", "main"]
    assert [r[:3] for r in history(site)[3:]] == [
        (4, 3, "main"),
        (5, None, "from_0"),
        (6, 4, "main"),
        (7, 1, "from_1"),
    ]
    assert site.state() == TOTALS | {"a": 12}


def test_other_cuts_up_to_the_recorded_end(site: Site) -> None:
    site.put({"k": ["z"], "v": [1]}, "z")  # nobody consumed it yet
    code = site.job(batch_rows=4)
    part = site.engine().replay(site.job(), code=code, rebatch=True, branch="cut", to_checkpoint=2)
    assert ([b.rows_in for b in part.batches], part.remaining) == ([4, 1], 1)
    rest = site.engine().replay(site.job(), code=code, rebatch=True, branch="cut")
    assert ([b.rows_in for b in rest.batches], rest.remaining) == ([3], 0)
    assert [r[4] for r in history(site)[3:]] == [200, 200, 300]
    assert site.engine().compare("tiny", "cut").is_equal
    with pytest.raises(ConfigurationError, match="its input was cut differently"):
        site.engine().replay(site.job(), code=code, branch="cut")


def test_inputs_and_code_that_do_not_fit(site: Site) -> None:
    engine = site.engine()
    with pytest.raises(ConfigurationError, match="Fix it"):
        engine.replay(site.job(), branch="Fix it", from_checkpoint=1)
    with pytest.raises(StateMigrationError, match="sums"):
        engine.replay(site.job(), code=site.job(uid="renamed"), from_checkpoint=1)
    with pytest.raises(StateMigrationError, match="total"):
        engine.replay(site.job(), code=site.job(TextSum()), from_checkpoint=1)
    (site.feed / "1.parquet").unlink()
    with pytest.raises(SourceError, match=r"source 'events', replay of checkpoint 2: .*1\.parquet changed"):
        engine.replay(site.job(), from_checkpoint=1)
    with pytest.raises(ConfigurationError, match="'main' cannot be dropped"):
        engine.drop_branch("tiny", "main")
    assert len(engine.checkpoints("tiny")) == 3


class TextSum(Sum):
    """Keeps another type under the same name."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", str))


class Late(KeyedProcessFunction):
    """Emits the count of a key ten milliseconds of event time after its last element."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> None:
        self.count.update(self.count.value() + 1)
        at = ctx.timestamp()
        assert at is not None
        ctx.timer_service().register_event_time_timer(at + 10)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield (
            ctx.get_current_key(),
            timestamp,
            self.count.value(),
            ctx.timer_service().current_processing_time(),
        )


def test_timers_the_end_of_the_input_and_directories_of_files(tmp_path: Path, spark: SparkSession) -> None:
    rows = [
        (k, datetime.fromtimestamp(at / 1000, UTC))
        for k, at in [("a", 1), ("b", 5), ("a", 20), ("b", 22), ("a", 40)]
    ]

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        source = job.from_collection(rows, "k string, at timestamp", max_rows_per_batch=2, event_time="at")
        late = source.key_by("k").process(
            Late(), uid="late", output_type="k string, t bigint, n int, now bigint"
        )
        return {"late": late}

    def shown() -> list[tuple[Any, ...]]:
        files = sorted((tmp_path / "out" / "late").glob("checkpoint_id=*/*.parquet"))
        return sorted(tuple(row.values()) for f in files for row in pq.ParquetFile(f).read().to_pylist())

    pipeline = Pipeline(tmp_path, spark, build, parallelism=1)
    assert len(pipeline.run(clock=7, drain=True).batches) == 4
    outputs = [("a", 11, 2, 7), ("a", 30, 3, 7), ("a", 50, 3, 7), ("b", 15, 1, 7), ("b", 32, 2, 7)]
    assert shown() == outputs
    with pipeline.engine() as engine:
        report = engine.replay(pipeline.job(), from_checkpoint=1)
        assert [b.rows_in for b in report.batches] == [2, 1, 0]
        assert engine.compare("pipeline", "replay_1").is_equal
        assert shown() == outputs
        # the same once more by other cuts and another clock: compared with files that are staged, and published
        again = engine.replay(pipeline.job(), branch="again", rebatch=True, clock=9)
        assert [b.rows_in for b in again.batches] == [2, 2, 1, 0]
        late = engine.compare("pipeline", "again").outputs["late"]
        assert (late.rows_only_old, late.rows_only_new) == (5, 5)
        assert engine.promote("pipeline", "again").rows_withdrawn == {"late": 5}
        assert shown() == [(k, t, n, 9) for k, t, n, _ in outputs]
        late = engine.compare("pipeline", "replay_1", against="main").outputs["late"]
        assert (late.rows_only_old, late.rows_only_new) == (5, 5)


def test_a_drained_batch_is_distinguished_from_others() -> None:
    def row(i: int, waiting: dict[str, int], *, read: str = "") -> CheckpointRow:
        operator = OperatorCheckpoint("x", 1, 128, "", [], [], [], 0, next_timers_ms=waiting)
        source = SourceProgress("s", "", read, 0, None)
        parent = 1 if i == 2 else None
        return checkpoint(i, parent, clock_ms=10, operators=[operator], sources=[source])

    for before, after, read, expected in (
        ({"event": 5}, {}, "", True),
        ({"processing": 11}, {}, "", True),
        ({"processing": 10}, {}, "", False),
        ({"event": 5}, {"event": 5}, "", False),
        ({"event": 5}, {}, "1", False),
    ):
        rows = {1: row(1, before), 2: row(2, after, read=read)}
        assert was_drained(tree(rows), rows[2]) is expected
