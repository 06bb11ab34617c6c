"""The advice of operations, queries, the state processor, replays, Dagster and commands, followed: then the call works.

Each entry of ``ADVICE`` is a call that is refused, the words of the message that say what to do, and the call as they
say. The calls of a table are made of one root, in the order of the table; most that change something are dry runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine import (
    DeltaSink,
    DeltaStateTable,
    FileSource,
    KeyedProcessFunction,
    MapStateDescriptor,
    StateEngine,
    StatefulJob,
    TimePartitions,
    ValueStateDescriptor,
)
from state_engine.cli.form import one_form
from state_engine.cli.options import key_columns, outputs_policy
from state_engine.core.checkpoints.history import History
from state_engine.core.errors import StatelakeError
from state_engine.dagster import JobOptions, PipesLaunch, output_check, state_check
from state_engine.dagster.component import loaded_job
from state_engine.testing import subtasks_in_process

pytestmark = pytest.mark.spark
ROWS = "k string, v bigint, at timestamp"
OUT = "k string, total bigint"
DAYS = ("2026-01-05", "2026-01-06", "2026-01-07")


class Sums(KeyedProcessFunction):
    """The sum of each key, and the last value of each day."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int, default=0))
        self.days = runtime_context.get_map_state(MapStateDescriptor("days", str, int))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.total.update(self.total.value() + value.v)
        self.days.put(str(value.at.date()), value.v)
        yield value.k, self.total.value()


class Place:
    """A root with a job that ran three micro-batches, one that is new, and one of time partitions."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.directory, self.spark = directory, spark
        self.engine = StateEngine(directory / "root", spark)
        self.empty = StateEngine(directory / "empty", spark)
        (directory / "in").mkdir()
        for number, day in enumerate(DAYS):
            text = "".join(f'{{"k": "{k}", "v": {number}, "at": "{day}T12:00:00Z"}}\n' for k in "ab")
            (directory / "in" / f"{number}.json").write_text(text)
        self.shop, self.days = (
            self.job("shop"),
            self.job("days", TimePartitions("at", start=DAYS[0], end="2026-01-08")),
        )
        for job in (self.shop, self.days):
            self.engine.run(job)
        self.processor = self.engine.state_processor(self.shop)
        self.savepoints = self.engine.savepoints(self.shop)
        self.kept = self.savepoints.create("kept", directory / "kept").path

    @property
    def head(self) -> int:
        """Of the first job."""
        head = History(self.engine.checkpoints(self.shop)).head
        assert head is not None
        return head.checkpoint_id

    def job(self, name: str, partitions: Any = None, uid: str = "sums", **options: Any) -> StatefulJob:
        job = StatefulJob(name, partitions=partitions, **options)
        source = FileSource(
            str(self.directory / "in"),
            schema=ROWS,
            format="json",
            max_files_per_batch=None if partitions else 1,
        )
        rows = job.source("rows", source, order_by=["at"], event_time="at" if partitions else None)
        sums = rows.key_by("k").process(Sums(), uid=uid, output_type=OUT)
        sums.sink("out", DeltaSink(str(self.directory / name / "out"), lineage=True))
        sums.publish_state("total", DeltaStateTable(str(self.directory / name / "shown")), name="shown")
        return job

    def frame(self, columns: str = "k string, value bigint", *rows: tuple[Any, ...]) -> DataFrame:
        return self.spark.createDataFrame(list(rows or [("a", 1)]), columns)

    def given(self, **states: DataFrame) -> Any:
        """Bootstrap a new job with states of ``sums``."""
        processor = self.engine.state_processor(self.job("bootstrapped"))
        return processor.bootstrap({"sums": states}, dry_run=True)


class Advice(NamedTuple):
    """A refused call, what its message says to do, and calls that do it."""

    wrong: Callable[[Place], object]
    message: str
    right: Callable[[Place], object]


def loaded() -> StatefulJob:
    """A job that a text can name."""
    job = StatefulJob("loaded")
    job.source("rows", FileSource("/data/in", schema=ROWS)).sink("out", DeltaSink("/data/out"))
    return job


def judge(rows: Any) -> bool:
    """A check that passes."""
    return rows is not None


def written(place: Place, file: str, **options: Any) -> Path:
    """A test of what a key did."""
    path = place.directory / file
    place.engine.debug(place.shop, {"k": "a"}, operator="sums").write_test(path, **options)
    return path


def tried(*calls: Any) -> None:
    """Nothing: the calls are arguments, so they were made."""


ADVICE: dict[str, Advice] = {
    # -- engine
    "a name for the code": Advice(
        lambda p: p.engine.rescale("shop", parallelism=2, dry_run=True),  # type: ignore[arg-type]
        "rescale needs the job itself",
        lambda p: p.engine.rescale(p.shop, parallelism=2, dry_run=True),
    ),
    "a job that never ran": Advice(
        lambda p: p.engine.compact("fresh", dry_run=True),
        "job 'fresh' has no checkpoint in .* yet: run it first",
        lambda p: tried(p.engine.run(p.job("fresh")), p.engine.compact("fresh", dry_run=True)),
    ),
    "neither checkpoint nor savepoint": Advice(
        lambda p: p.engine.restore(p.shop),
        "restore takes either a checkpoint_id or a savepoint",
        lambda p: tried(
            p.engine.restore(p.shop, checkpoint_id=2, dry_run=True),
            p.engine.restore(p.shop, savepoint="kept", dry_run=True),
        ),
    ),
    "the head itself": Advice(
        lambda p: p.engine.restore(p.shop, checkpoint_id=p.head, dry_run=True),
        r"checkpoint \d+ is already the head: there is nothing to restore",
        lambda p: p.engine.restore(p.shop, checkpoint_id=2, dry_run=True),
    ),
    "no list of jobs": Advice(
        lambda p: p.engine.register("spark_catalog", "default", jobs="shop", dry_run=True),
        r"jobs= takes a list of jobs: jobs=\['shop'\]",
        lambda p: p.engine.register("spark_catalog", "default", jobs=["shop"], dry_run=True),
    ),
    "a root without a job": Advice(
        lambda p: p.empty.register("spark_catalog", "default", dry_run=True),
        "no job ran in .* yet: run one first",
        lambda p: tried(
            p.empty.run(p.job("first")), p.empty.register("spark_catalog", "default", dry_run=True)
        ),
    ),
    "rows of letters": Advice(
        lambda p: p.engine.replay_dead_letters(p.shop, max_rows=0),
        "max_rows must be at least 1",
        lambda p: p.engine.replay_dead_letters(p.shop, max_rows=1),
    ),
    # -- operations
    "an unknown operator to rescale": Advice(
        lambda p: p.engine.rescale(p.shop, parallelism={"totals": 2}, dry_run=True),
        r"has no operators \['totals'\]; it has \['sums'\]",
        lambda p: p.engine.rescale(p.shop, parallelism={"sums": 2}, dry_run=True),
    ),
    "an unknown operator to compact": Advice(
        lambda p: p.engine.compact("shop", ["totals"], dry_run=True),
        r"no keyed state of operators \['totals'\]; there is of \['sums'\]",
        lambda p: p.engine.compact("shop", ["sums"], dry_run=True),
    ),
    "an age below that of attempts": Advice(
        lambda p: p.engine.vacuum("shop", orphan_age=timedelta(hours=1), dry_run=True),
        "orphan_age must be at least 1 day, 0:00:00",
        lambda p: p.engine.vacuum("shop", orphan_age=timedelta(days=1), dry_run=True),
    ),
    "a policy of no kind": Advice(
        lambda p: p.engine.restore(p.shop, checkpoint_id=2, outputs="drop", dry_run=True),  # type: ignore[arg-type]
        "outputs must be 'withdraw' or 'keep', or a policy by name",
        lambda p: tried(
            p.engine.restore(p.shop, checkpoint_id=2, outputs="withdraw", dry_run=True),
            p.engine.restore(p.shop, checkpoint_id=2, outputs="keep", dry_run=True),
            p.engine.restore(p.shop, checkpoint_id=2, outputs={"out": "keep"}, dry_run=True),
        ),
    ),
    "a policy of an unknown sink": Advice(
        lambda p: p.engine.restore(p.shop, checkpoint_id=2, outputs={"output": "keep"}, dry_run=True),
        r"outputs names the sinks \['output'\], which it does not have; its sinks: \['out', 'shown'\]",
        lambda p: p.engine.restore(
            p.shop, checkpoint_id=2, outputs={"out": "keep", "shown": "keep"}, dry_run=True
        ),
    ),
    "a table of a state that is withdrawn": Advice(
        lambda p: p.engine.restore(p.shop, checkpoint_id=2, outputs={"shown": "withdraw"}, dry_run=True),
        "a table that shows a state: it takes 'follow', 'keep' or 'rebuild'",
        lambda p: tried(
            *(
                p.engine.restore(p.shop, checkpoint_id=2, outputs={"shown": policy}, dry_run=True)
                for policy in ("follow", "keep", "rebuild")
            )
        ),
    ),
    "an unknown sink to leave alone": Advice(
        lambda p: p.engine.restore(p.shop, checkpoint_id=2, leave_alone=["output"], dry_run=True),
        r"has no sinks \['output'\] to leave alone; it has \['dead_letters', 'out', 'shown'\]",
        lambda p: p.engine.restore(p.shop, checkpoint_id=2, leave_alone=["out", "shown"], dry_run=True),
    ),
    "an unknown sink to leave alone, of a job by name": Advice(
        lambda p: p.engine.restore("shop", checkpoint_id=2, leave_alone=["output"], dry_run=True),
        r"has no sinks \['output'\] to leave alone; it has \['out', 'shown'\]",
        lambda p: p.engine.restore("shop", checkpoint_id=2, leave_alone=["out"], dry_run=True),
    ),
    "an unknown sink to leave alone in a promotion": Advice(
        lambda p: tried(
            p.engine.replay(p.shop, branch="left"),
            p.engine.promote(p.shop, "left", leave_alone=["output"], dry_run=True),
        ),
        r"has no sinks \['output'\] to leave alone",
        lambda p: tried(
            p.engine.promote(p.shop, "left", leave_alone=["out"], dry_run=True),
            p.engine.drop_branch(p.shop, "left"),
        ),
    ),
    "appended outputs that follow": Advice(
        lambda p: p.engine.restore(p.shop, checkpoint_id=2, outputs={"out": "follow"}, dry_run=True),
        "to which outputs are appended: it takes 'withdraw' or 'keep'",
        lambda p: p.engine.restore(p.shop, checkpoint_id=2, outputs={"out": "withdraw"}, dry_run=True),
    ),
    "a directory that is not empty": Advice(
        lambda p: p.savepoints.create("second", p.directory / "in"),
        "is not empty: choose another directory",
        lambda p: p.savepoints.create("second", p.directory / "second"),
    ),
    "a savepoint that is not there": Advice(
        lambda p: p.savepoints.delete("third", dry_run=True),
        r"there is no savepoint 'third'; there are \['kept', 'second'\]",
        lambda p: p.savepoints.delete("second", dry_run=True),
    ),
    "no savepoint in a directory": Advice(
        lambda p: p.savepoints.verify(p.directory / "in"),
        "holds no savepoint.* Either it is another directory, or the savepoint was not finished; take another one",
        lambda p: p.savepoints.verify(p.directory / "kept"),
    ),
    "a savepoint into a job by name": Advice(
        lambda p: p.engine.restore("copy", savepoint=p.kept, dry_run=True),
        "give the StatefulJob itself",
        lambda p: p.engine.restore(p.job("copy"), savepoint=p.kept, dry_run=True),
    ),
    "a savepoint of another job": Advice(
        lambda p: p.engine.restore(p.days, savepoint=p.kept, dry_run=True),
        "this job has checkpoints already: restore it under another job name, or into another root",
        lambda p: tried(
            p.engine.restore(p.job("copy"), savepoint=p.kept, dry_run=True),
            p.empty.restore(p.job("days"), savepoint=p.kept, dry_run=True),
        ),
    ),
    "a savepoint of other key groups": Advice(
        lambda p: p.engine.restore(p.job("wide", max_parallelism=64), savepoint=p.kept, dry_run=True),
        "Declare the old number, and change it by a rescale afterwards",
        lambda p: tried(
            p.engine.restore(p.job("wide"), savepoint=p.kept),
            p.engine.rescale(p.job("wide", max_parallelism=64), max_parallelism=64),
            p.engine.run(p.job("wide", max_parallelism=64)),
        ),
    ),
    # -- replay
    "code of another job": Advice(
        lambda p: p.engine.replay(p.shop, code=p.job("store"), branch="mine"),
        "is of job 'store': give it the same name",
        lambda p: p.engine.replay(p.shop, code=p.job("shop"), branch="mine"),
    ),
    "a replay on main": Advice(
        lambda p: p.engine.replay(p.shop, branch="main"),
        "runs on a branch of its own, not on 'main'",
        lambda p: p.engine.replay(p.shop, branch="other"),
    ),
    "a replay to what is no micro-batch": Advice(
        lambda p: p.engine.replay(p.shop, branch="short", to_checkpoint=99),
        r"checkpoint 99 is not a micro-batch on the path of 'main'.*; those are \[1, 2, 3\]",
        lambda p: p.engine.replay(p.shop, branch="short", to_checkpoint=2),
    ),
    "a branch that begins elsewhere": Advice(
        lambda p: p.engine.replay(p.shop, branch="short", from_checkpoint=1),
        "leave from_checkpoint out to go on with it, or choose another branch",
        lambda p: tried(
            p.engine.replay(p.shop, branch="short"),
            p.engine.replay(p.shop, branch="later", from_checkpoint=1),
        ),
    ),
    "a branch that was dropped": Advice(
        lambda p: tried(p.engine.drop_branch(p.shop, "later"), p.engine.replay(p.shop, branch="later")),
        "branch 'later' was promoted or dropped: choose another name",
        lambda p: p.engine.replay(p.shop, branch="later_2"),
    ),
    "an unknown branch to drop": Advice(
        lambda p: p.engine.drop_branch(p.shop, "yours"),
        r"no open branch 'yours' to drop; there are \['later_2', 'mine', 'other', 'short'\]",
        lambda p: p.engine.drop_branch(p.shop, "later_2"),
    ),
    "a branch whose head was copied": Advice(
        lambda p: tried(
            p.savepoints.create("copied", checkpoint_id=p.engine.branches(p.shop)["short"].checkpoint_id),
            p.engine.drop_branch(p.shop, "short"),
        ),
        r"savepoints \['copied'\] are copies of the head of branch 'short': delete them first",
        lambda p: tried(p.savepoints.delete("copied"), p.engine.drop_branch(p.shop, "short")),
    ),
    "an unknown branch to promote": Advice(
        lambda p: p.engine.promote(p.shop, "yours", dry_run=True),
        r"no branch 'yours' to promote; open branches: \['mine', 'other'\]",
        lambda p: p.engine.promote(p.shop, "mine", dry_run=True),
    ),
    "another head than expected": Advice(
        lambda p: p.engine.promote(p.shop, "mine", expected_head=2, dry_run=True),
        r"the head is checkpoint \d+, not 2: look at what came since, and replay it too or name the new head",
        lambda p: p.engine.promote(
            p.shop,
            "mine",
            expected_head=p.head,
            dry_run=True,
        ),
    ),
    "a checkpoint of a branch": Advice(
        lambda p: p.engine.restore(
            p.shop, checkpoint_id=p.engine.branches(p.shop)["mine"].checkpoint_id, dry_run=True
        ),
        "is of the branch 'mine': promote that branch to go on from its head",
        lambda p: p.engine.promote(p.shop, "mine", dry_run=True),
    ),
    "an unknown branch to compare": Advice(
        lambda p: p.engine.compare(p.shop, "yours"),
        r"there is no branch 'yours'; there are \[.*'mine'.*\]",
        lambda p: p.engine.compare(p.shop, "mine"),
    ),
    "a state that is not there to compare": Advice(
        lambda p: p.engine.diff(p.shop, 1, 3, state="sum"),
        r"no state 'sum' of operator 'any'.*; there are sums\.days, sums\.total",
        lambda p: p.engine.diff(p.shop, 1, 3, operator="sums", state="total"),
    ),
    "a key of other columns": Advice(
        lambda p: p.engine.explain(p.shop, {"user": "a"}),
        r"no operator is keyed like .*; operators and their keys: .*sums.*k",
        lambda p: p.engine.explain(p.shop, {"k": "a"}),
    ),
    "a checkpoint that is not on the path": Advice(
        lambda p: p.engine.explain(p.shop, {"k": "a"}, to_checkpoint=99),
        "checkpoint 99 is not on the path of the head, which is .*3",
        lambda p: p.engine.explain(p.shop, {"k": "a"}, to_checkpoint=3),
    ),
    "a key of other columns to debug": Advice(
        lambda p: p.engine.debug(p.shop, {"user": "a"}),
        r"no operator is keyed like .*; operators of its code that have run, and their keys: .*sums.*k",
        lambda p: p.engine.debug(p.shop, {"k": "a"}),
    ),
    "a key of another type to debug": Advice(
        lambda p: p.engine.debug(p.shop, {"k": None}),
        r"operator '.*': .* cannot be a key, or not one of type",
        lambda p: p.engine.debug(p.shop, {"k": "a"}),
    ),
    "a micro-batch that is not on the path to debug": Advice(
        lambda p: p.engine.debug(p.shop, {"k": "a"}, checkpoint_id=99),
        "checkpoint 99 is no micro-batch on the path of the head; those are .*3",
        lambda p: p.engine.debug(p.shop, {"k": "a"}, checkpoint_id=3),
    ),
    "a range to debug that ends before it begins": Advice(
        lambda p: p.engine.debug(p.shop, {"k": "a"}, from_checkpoint=3, to_checkpoint=1),
        "the first checkpoint, 3, comes after the last one, 1",
        lambda p: p.engine.debug(p.shop, {"k": "a"}, from_checkpoint=1, to_checkpoint=3),
    ),
    "one micro-batch to debug, and a range": Advice(
        lambda p: p.engine.debug(p.shop, {"k": "a"}, checkpoint_id=3, to_checkpoint=3),
        "takes checkpoint_id, or from_checkpoint and to_checkpoint, and not both: leave one of them out",
        lambda p: p.engine.debug(p.shop, {"k": "a"}, checkpoint_id=3),
    ),
    "a test of a key to which nothing happened": Advice(
        lambda p: p.engine.debug(p.shop, {"k": "nobody"}, operator="sums").write_test(
            p.directory / "test_k.py"
        ),
        r"nothing came for the key in the micro-batches that were looked at.*: name others with --checkpoint",
        lambda p: written(p, "test_k.py"),
    ),
    "a test in a file that is there": Advice(
        lambda p: [written(p, "test_twice.py") for _ in range(2)],
        "there is a file .*: remove it, or name another one",
        lambda p: written(p, "test_other.py"),
    ),
    "a column to replace that nothing has": Advice(
        lambda p: written(p, "test_wrong.py", replace=["user"]),
        r"no input, key, state or output has a field 'user' to replace; fields are \[.*'k'",
        lambda p: written(p, "test_replaced.py", replace=["k"]),
    ),
    "a mode that is not there": Advice(
        lambda p: p.engine.backfill(p.days, DAYS[0], DAYS[1], "forward", dry_run=True),
        "mode must be one of roll_forward, .*not 'forward'",
        lambda p: p.engine.backfill(p.days, DAYS[0], DAYS[1], "roll_forward", dry_run=True),
    ),
    "outputs that are kept in another mode": Advice(
        lambda p: p.engine.backfill(p.days, DAYS[0], DAYS[1], "stop", outputs="keep", dry_run=True),
        "outputs='keep' goes with the mode roll_forward",
        lambda p: p.engine.backfill(p.days, DAYS[0], DAYS[1], "roll_forward", outputs="keep", dry_run=True),
    ),
    "other code of a backfill": Advice(
        lambda p: p.engine.backfill(p.days, DAYS[0], DAYS[1], code=p.job("days"), dry_run=True),
        "the code to backfill job 'days' with must have its name and its partitions",
        lambda p: p.engine.backfill(
            p.days, DAYS[0], DAYS[1], code=p.job("days", p.days.partitions), dry_run=True
        ),
    ),
    # -- queries
    "an unknown view": Advice(
        lambda p: p.engine.sql(p.shop, "SELECT * FROM totals").collect(),
        "there is no view totals; there are .*sums__total",
        lambda p: p.engine.sql(p.shop, "SELECT * FROM sums__total").collect(),
    ),
    "what is no query": Advice(
        lambda p: p.engine.sql(p.shop, "DROP TABLE checkpoints"),
        r"only queries can be run over the views of a job \(SELECT, WITH, VALUES\)",
        lambda p: tried(
            p.engine.sql(p.shop, "VALUES (1)").collect(), p.engine.sql(p.shop, "SELECT 1").collect()
        ),
    ),
    "a query that reaches Java": Advice(
        lambda p: p.engine.sql(p.shop, "SELECT java_method('java.lang.Math', 'abs', -1)"),
        r"allow that: engine\.sql\(…, unrestricted=True\)",
        lambda p: p.engine.sql(
            p.shop, "SELECT java_method('java.lang.Math', 'abs', -1)", unrestricted=True
        ).collect(),
    ),
    "an unknown state": Advice(
        lambda p: p.engine.read_state(p.shop, "sums", "sum"),
        r"operator 'sums' has no state 'sum'; its states: \['total', 'days'\]",
        lambda p: p.engine.read_state(p.shop, "sums", "total").collect(),
    ),
    "state of an unknown operator": Advice(
        lambda p: p.engine.read_state(p.shop, "totals", "total"),
        r"there is no state of an operator 'totals'; operators with state: \['sums'\]",
        lambda p: p.engine.read_state(p.shop, "sums", "total").collect(),
    ),
    # -- publishing
    "an unknown table": Advice(
        lambda p: p.engine.published(p.shop).rebuild("show", dry_run=True),
        r"publishes no state to a table 'show'; its tables: \['shown'\]",
        lambda p: p.engine.published(p.shop).rebuild("shown", dry_run=True),
    ),
    # -- the state processor
    "state for a job that has some": Advice(
        lambda p: p.processor.bootstrap({"sums": {"total": p.frame()}}),
        "Use another job name, or transform_state to change the existing state",
        lambda p: tried(
            p.given(total=p.frame()),
            p.processor.transform_state("sums", "total", filter="value > 0", dry_run=True),
        ),
    ),
    "state for no operator": Advice(
        lambda p: p.engine.state_processor(p.job("bootstrapped")).bootstrap({"totals": {}}),
        r"state is given for operators \['totals'\]; the job has \['sums'\]",
        lambda p: p.given(total=p.frame()),
    ),
    "an operator without state": Advice(
        lambda p: p.given(),
        "no state is given; name at least one",
        lambda p: p.given(total=p.frame()),
    ),
    "no DataFrame": Advice(
        lambda p: p.given(total=[("a", 1)]),  # type: ignore[arg-type]
        "give a Spark DataFrame, not list",
        lambda p: p.given(total=p.frame()),
    ),
    "no column of the key": Advice(
        lambda p: p.given(total=p.frame("user string, value bigint")),
        r"no columns \['k'\] of the key; it has \['user', 'value'\]",
        lambda p: p.given(total=p.frame("user string, value bigint").withColumnRenamed("user", "k")),
    ),
    "no column of the value": Advice(
        lambda p: p.given(total=p.frame("k string, total bigint")),
        "needs a column 'value'",
        lambda p: p.given(total=p.frame("k string, total bigint").withColumnRenamed("total", "value")),
    ),
    "no column of the key of a map": Advice(
        lambda p: p.given(days=p.frame()),
        "is a map: the DataFrame needs a column 'map_key'",
        lambda p: p.given(days=p.frame().withColumn("map_key", F.lit("2026-01-05"))),
    ),
    "a further column": Advice(
        lambda p: p.given(total=p.frame().withColumn("note", F.lit("x"))),
        r"columns \['note'\] are not needed.*; drop them",
        lambda p: p.given(total=p.frame().withColumn("note", F.lit("x")).drop("note")),
    ),
    "a value of another type": Advice(
        lambda p: p.given(total=p.frame("k string, value string", ("a", "1"))),
        "is string, declared is what is stored as bigint: cast it",
        lambda p: p.given(
            total=p.frame("k string, value string", ("a", "1")).selectExpr("k", "bigint(value)")
        ),
    ),
    "a key twice": Advice(
        lambda p: p.given(total=p.frame("k string, value bigint", ("a", 1), ("a", 2))),
        r"2 rows have the key .*a.*: a .* has one; aggregate the DataFrame first",
        lambda p: p.given(
            total=p.frame("k string, value bigint", ("a", 1), ("a", 2))
            .groupBy("k")
            .agg(F.sum("value").alias("value"))
        ),
    ),
    "timers of no kind": Advice(
        lambda p: p.engine.state_processor(p.job("bootstrapped")).bootstrap(
            {"sums": {"total": p.frame()}},
            timers={"sums": {"clock": p.frame("k string, at bigint")}},
            dry_run=True,
        ),
        r"timers are given as 'event' and 'processing', not \['clock'\]",
        lambda p: p.engine.state_processor(p.job("bootstrapped")).bootstrap(
            {"sums": {"total": p.frame()}},
            timers={"sums": {"processing": p.frame("k string, at bigint")}},
            dry_run=True,
        ),
    ),
    "positions of no source": Advice(
        lambda p: p.engine.state_processor(p.job("bootstrapped")).bootstrap(
            {"sums": {"total": p.frame()}}, positions={"row": "latest"}, dry_run=True
        ),
        r"has no sources \['row'\]; it has \['rows'\]",
        lambda p: p.engine.state_processor(p.job("bootstrapped")).bootstrap(
            {"sums": {"total": p.frame()}}, positions={"rows": "all"}, dry_run=True
        ),
    ),
    "a position that names no file": Advice(
        lambda p: p.engine.state_processor(p.job("bootstrapped")).bootstrap(
            {"sums": {"total": p.frame()}}, positions={"rows": ["10.json"]}, dry_run=True
        ),
        r"'10\.json' names none of the 3 files in .*/in: give 'all', or names or patterns of existing files",
        lambda p: tried(
            *(
                p.engine.state_processor(p.job("bootstrapped")).bootstrap(
                    {"sums": {"total": p.frame()}}, positions={"rows": files}, dry_run=True
                )
                for files in ("all", ["0.json"], ["*.json"])
            )
        ),
    ),
    "nothing to do with a state": Advice(
        lambda p: p.processor.transform_state("sums", "total", dry_run=True),
        "takes one of map, filter and delete_keys, not none",
        lambda p: tried(
            p.processor.transform_state("sums", "total", map=lambda rows: rows, dry_run=True),
            p.processor.transform_state("sums", "total", filter="value > 0", dry_run=True),
            p.processor.transform_state("sums", delete_keys=["a"], dry_run=True),
        ),
    ),
    "a filter of no state": Advice(
        lambda p: p.processor.transform_state("sums", filter="value > 0", dry_run=True),
        "needs the name of a state for filter",
        lambda p: p.processor.transform_state("sums", "total", filter="value > 0", dry_run=True),
    ),
    "a map to other columns": Advice(
        lambda p: p.processor.transform_state(
            "sums", "total", map=lambda rows: rows.select("k"), dry_run=True
        ),
        r"map is to give a DataFrame with the columns \['k', 'value'",
        lambda p: p.processor.transform_state(
            "sums", "total", map=lambda rows: rows.withColumn("value", F.col("value") + 1), dry_run=True
        ),
    ),
    "a key type of an unknown operator": Advice(
        lambda p: p.processor.change_key_type("totals", dry_run=True),
        r"job 'shop' has no operator 'totals'; it has \['sums'\]",
        lambda p: p.processor.change_key_type("sums", dry_run=True),
    ),
    "a dry run of a purge": Advice(
        lambda p: p.processor.erase_keys({"k": "a"}, dry_run=True, purge=True),
        "takes either dry_run or purge: a dry run reports what a purge would do",
        lambda p: p.processor.erase_keys({"k": "a"}, dry_run=True),
    ),
    "a key of no operator": Advice(
        lambda p: p.processor.erase_keys({"user": "a"}, dry_run=True),
        r"no operator is keyed by \['user'\]; operators and their keys: .*sums.*k",
        lambda p: p.processor.erase_keys({"k": "a"}, dry_run=True),
    ),
    "keys of different columns": Advice(
        lambda p: p.processor.erase_keys([{"k": "a"}, {"user": "b"}], dry_run=True),
        "takes keys as dicts of the same columns",
        lambda p: p.processor.erase_keys([{"k": "a"}, {"k": "b"}], dry_run=True),
    ),
    "an operator that is not there to drop": Advice(
        lambda p: p.processor.drop_operators("totals", dry_run=True),
        r"holds no state of operators \['totals'\]; it holds that of \['sums'\]",
        lambda p: p.engine.state_processor("shop").drop_operators("sums", dry_run=True),
    ),
    "an operator that the code has": Advice(
        lambda p: p.processor.drop_operators("sums", dry_run=True),
        r"its code still has operators \['sums'\]: take them out of the code first, or give them another uid",
        lambda p: p.engine.state_processor(p.job("shop", uid="totals")).drop_operators("sums", dry_run=True),
    ),
    "a purge of branches without a purge": Advice(
        lambda p: p.engine.state_processor("purged").erase_keys({"k": "a"}, sinks=True),
        "drops branches and deletes from sinks only with purge=True",
        lambda p: tried(
            p.engine.run(p.job("purged")),
            p.engine.state_processor("purged").erase_keys({"k": "a"}, sinks=True, purge=True),
        ),
    ),
    # -- Dagster
    "a check of no sink": Advice(
        lambda p: output_check(p.shop, "output"),
        r"no sink 'output' to check\. Sinks are \['out'\]",
        lambda p: output_check(p.shop, "out"),
    ),
    "a check of no operator": Advice(
        lambda p: state_check(p.shop, "totals", "total"),
        r"no operator 'totals' to check\. Operators are \['sums'\]",
        lambda p: state_check(p.shop, "sums", "total"),
    ),
    "a severity of no kind": Advice(
        lambda p: output_check(p.shop, "out", severity="warning")(lambda rows: True),  # type: ignore[arg-type]
        "severity must be one of .*AssetCheckSeverity.WARN",
        lambda p: output_check(p.shop, "out", severity=dg.AssetCheckSeverity.WARN)(judge),
    ),
    "an automation that is not there": Advice(
        lambda p: JobOptions(automation=["new_rows"]),  # type: ignore[list-item]
        r"JobOptions, automation: there is no 'new_rows'\. Known are .*new_data",
        lambda p: JobOptions(automation=["new_data"]),
    ),
    "a command as text": Advice(
        lambda p: PipesLaunch(command="spark-submit run_shop.py"),
        r"needs the command as a list of words, such as command=\['spark-submit'",
        lambda p: PipesLaunch(command=["spark-submit", "run_shop.py"]),
    ),
    "a place that names no job": Advice(
        lambda p: loaded_job("jobs.flights"),
        "write module:name",
        lambda p: loaded_job(f"{__name__}:loaded"),
    ),
    # -- commands
    "two forms": Advice(
        lambda p: one_form("json", "csv"),
        "give --json or --csv, not both",
        lambda p: tried(one_form("json", "table"), one_form("table", "csv")),
    ),
    "a key that is no JSON": Advice(
        lambda p: key_columns("k=a"),
        r"--key 'k=a' is not JSON .*: give the columns of the key",
        lambda p: key_columns('{"k": "a"}'),
    ),
    "a key without columns": Advice(
        lambda p: key_columns('"a"'),
        "is not a JSON object with the columns of the key",
        lambda p: key_columns('{"k": "a"}'),
    ),
    "a policy of all sinks beside one": Advice(
        lambda p: outputs_policy(["keep", "out=keep"]),
        "of one sink say --outputs SINK=keep",
        lambda p: p.engine.restore(
            p.shop, checkpoint_id=2, outputs=outputs_policy(["out=keep"]), dry_run=True
        ),
    ),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Place]:
    with subtasks_in_process(spark):
        yield Place(tmp_path_factory.mktemp("advice"), spark)


def test_the_advice_of_a_message_helps(place: Place) -> None:
    """In the order of the table: what an advice makes is there for those behind it."""
    unhelpful = []
    for what, (wrong, message, right) in ADVICE.items():
        with pytest.raises(StatelakeError, match=f"(?s){message}"):
            wrong(place)
        try:
            right(place)
        except StatelakeError as error:
            unhelpful.append(f"{what}: {error}")
    assert unhelpful == []
