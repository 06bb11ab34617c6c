"""What a micro-batch may cost: Spark jobs, stages, shuffled bytes, Delta commits, files opened, bytes read and written.

Every number has its reason beside it. Whoever changes one changes what each micro-batch of each job costs; no time is
measured, so a loaded machine changes none of them.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from benchmarks.contenders.statelake_columns import CountWindowAverageOverColumns
from benchmarks.sized_jobs import Counting, SizedJob, Waiting
from state_engine import (
    DataStream,
    DeltaSink,
    DeltaStateTable,
    FileSource,
    KeyedStream,
    StatefulJob,
    count,
    sum_,
)
from state_engine.spark.placement import USUAL
from state_engine.storage.state import listed_files
from state_engine.storage.state.copy_directory import NO_COPIES, LocalCopies
from state_engine.storage.stores.kept_files import PROCESS_CACHE
from state_engine.storage.stores.parquet_reading import ReadSizes, open_parquet
from tests.support.costs import SparkRecords, counting_files, counting_java_calls, delta_commits
from tests.support.tiny import OUTPUT, ROWS, Site, Sum

Run = Callable[[], None]
"""Runs the micro-batch whose cost is counted."""

MANY = USUAL.rows + 1
REPLY_IN_ONE_PIECE = 8_192
"""Characters: the buffer of Java's writer."""


@dataclass(frozen=True)
class Budget:
    """What one micro-batch may cost; ``opens`` says that a new engine runs it, which reads all options and stores."""

    jobs: int
    stages: int
    shuffled: int
    commits: int
    opens: bool = False


# -- Spark and Delta ---------------------------------------------------------------------------------------------------


def few_rows(directory: Path, spark: SparkSession) -> Run:
    return tiny(directory, spark, 3)


def many_rows(directory: Path, spark: SparkSession) -> Run:
    return tiny(directory, spark, MANY)


def many_rows_for_many_subtasks(directory: Path, spark: SparkSession) -> Run:
    return tiny(directory, spark, MANY, parallelism=USUAL.readers + 1)


def tiny(directory: Path, spark: SparkSession, rows: int, *, parallelism: int = 2) -> Run:
    site = Site(directory, spark).put(ROWS)
    engine, job = site.engine(), site.job(parallelism=parallelism)
    engine.run(job)
    site.put({"k": [str(n) for n in range(rows)], "v": [1] * rows}, "1")
    return lambda: assert_one_batch(engine.run(job, max_batches=1).batches)


def timers(directory: Path, spark: SparkSession) -> Run:
    job = SizedJob(spark, directory, Waiting(), 1_000)
    job.run(3)
    return lambda: assert_equal(job.run(3, due=2).rows_out, 2)


def published_table(directory: Path, spark: SparkSession) -> Run:
    site = Site(directory, spark)

    def sums(keyed: KeyedStream) -> DataStream:
        stream = keyed.process(Sum(), uid="sums", output_type=OUTPUT)
        stream.publish_state("total", DeltaStateTable(str(directory / "table")))
        return stream

    return second_batch(site, sums)


def over_columns(directory: Path, spark: SparkSession) -> Run:
    averages = CountWindowAverageOverColumns()
    return second_batch(
        Site(directory, spark),
        lambda keyed: keyed.process(averages, uid="sums", output_type="k string, a double"),
    )


def aggregate(directory: Path, spark: SparkSession) -> Run:
    return second_batch(
        Site(directory, spark), lambda keyed: keyed.aggregate(uid="sums", n=count(), total=sum_("v"))
    )


def two_operators(directory: Path, spark: SparkSession) -> Run:
    def again(keyed: KeyedStream) -> DataStream:
        stream = keyed.process(Sum(), uid="sums", output_type=OUTPUT)
        return stream.key_by("total").process(Sum(), uid="again", output_type=OUTPUT)

    return second_batch(Site(directory, spark), again)


def second_batch(site: Site, process: Callable[[KeyedStream], DataStream]) -> Run:
    site.put(ROWS)
    job = StatefulJob("tiny", parallelism=2)
    keyed = job.source("events", FileSource(str(site.feed))).key_by("k")
    process(keyed).sink("out", DeltaSink(str(site.sink)))
    engine = site.engine()
    engine.run(job)
    site.put({"k": ["a", "b"], "v": [1, 1]}, "1")
    return lambda: assert_one_batch(engine.run(job).batches)


def catching_up(directory: Path, spark: SparkSession) -> Run:
    site = Site(directory, spark).put(ROWS)
    engine, job = site.engine(), site.job(batch_rows=4)
    engine.run(job)
    for name in "123":
        site.put(ROWS, name)
    return lambda: assert_equal(len(engine.run(job).batches), 3)


def small_files(directory: Path, spark: SparkSession) -> Run:
    """More bytes than the driver reads."""
    site = Site(directory, spark)
    records_of(site, 1)
    job = StatefulJob("tiny", parallelism=2)
    keyed = job.source(
        "events", FileSource(str(site.feed), schema="k string, v bigint", format="json")
    ).key_by("k")
    keyed.process(Sum(), uid="sums", output_type=OUTPUT).sink("out", DeltaSink(str(site.sink)))
    engine = site.engine()
    engine.run(job)
    records_of(site, 300, first=1, padding="x" * 1000)
    return lambda: assert_one_batch(engine.run(job).batches)


def records_of(site: Site, files: int, *, first: int = 0, padding: str = "") -> None:
    """Add files of JSON with a row each."""
    for number in range(first, first + files):
        record = {"k": str(number), "v": number, "padding": padding}
        (site.feed / f"{number:04}.json").write_text(json.dumps(record))


def no_input(directory: Path, spark: SparkSession) -> Run:
    site = Site(directory, spark).put(ROWS)
    engine, job = site.engine(), site.job()
    engine.run(job)
    return lambda: assert_equal(engine.run(job).batches, [])


def no_input_in_a_new_engine(directory: Path, spark: SparkSession) -> Run:
    site = Site(directory, spark).put(ROWS)
    site.engine().run(site.job())
    return lambda: assert_equal(site.engine().run(site.job()).batches, [])


def timers_that_wait(directory: Path, spark: SparkSession) -> Run:
    job = SizedJob(spark, directory, Waiting(), 1_000)
    job.run(3)
    return lambda: assert_equal(job.engine.run(job.job).batches, [])


BUDGETS: dict[Callable[[Path, SparkSession], Run], Budget] = {
    # The driver reads and routes them, so the only stage is that of the subtasks, and nothing is shuffled. Changes,
    # source positions, the row of the checkpoint and the sink are a commit each.
    few_rows: Budget(jobs=1, stages=1, shuffled=0, commits=4),
    # Two subtasks read all rows of files on a disk: that costs less than a stage more and a shuffle.
    many_rows: Budget(jobs=1, stages=1, shuffled=0, commits=4),
    # A stage more reads the rows with Arrow and routes them. Blocks of columns are shuffled: of a text of five digits,
    # a number, the places of the row and its hash some 20 bytes are left after compression.
    many_rows_for_many_subtasks: Budget(jobs=1, stages=2, shuffled=26 * MANY, commits=4),
    # Timers fire in the subtasks that have the rows; to find them is no job of its own. Timers are keyed state.
    timers: Budget(jobs=1, stages=1, shuffled=0, commits=4),
    # The driver applies the difference between two checkpoints to the table: no job, and one commit more.
    published_table: Budget(jobs=1, stages=1, shuffled=0, commits=5),
    # Whole columns are computed where single rows are.
    over_columns: Budget(jobs=1, stages=1, shuffled=0, commits=4),
    aggregate: Budget(jobs=1, stages=1, shuffled=0, commits=4),
    # The second one has a job of its own: the driver routes the rows of the first one, which are few. Each has a table
    # of changes.
    two_operators: Budget(jobs=2, stages=2, shuffled=0, commits=5),
    # What is executed ahead is kept, and no micro-batch is run twice: three times the cost of one.
    catching_up: Budget(jobs=3, stages=3, shuffled=0, commits=12),
    # However many there are, two tasks read and route them; to take text apart in each subtask would cost more than the
    # shuffle of a few blocks.
    small_files: Budget(jobs=1, stages=2, shuffled=40 * 300, commits=4),
    # Nothing new: no row of a checkpoint, so no commit, and no question to Spark.
    no_input: Budget(jobs=0, stages=0, shuffled=0, commits=0),
    no_input_in_a_new_engine: Budget(jobs=0, stages=0, shuffled=0, commits=0, opens=True),
    # The head knows when the first timer is due: while none is, the state is not looked at.
    timers_that_wait: Budget(jobs=0, stages=0, shuffled=0, commits=0),
}


@pytest.mark.spark_tasks
@pytest.mark.parametrize("prepare", BUDGETS, ids=lambda prepare: prepare.__name__)
def test_spark_jobs_stages_and_commits_of_a_micro_batch(
    tmp_path: Path, spark: SparkSession, prepare: Callable[[Path, SparkSession], Run]
) -> None:
    budget, run = BUDGETS[prepare], prepare(tmp_path, spark)
    records, commits = SparkRecords(spark), delta_commits(tmp_path)
    persisted = records.persisted()
    with counting_java_calls() as calls:
        run()
    # each is a fifth of a millisecond, and some are for each option of the session; a reply that Java sends in two
    # pieces waits 40 ms for the network between them
    assert calls.number <= 200 * (1 + budget.opens) + 150 * budget.jobs
    assert calls.longest_reply < REPLY_IN_ONE_PIECE
    assert len(records.new()) == budget.jobs
    assert records.stages() == {"completed": budget.stages, "skipped": 0, "failed": 0, "failed tasks": 0}
    assert delta_commits(tmp_path) - commits == budget.commits
    moved = records.moved()
    assert moved.pop("shuffled") <= budget.shuffled
    # Arrow reads what is plain, wherever it is read; and subtasks keep what they are given in memory
    assert moved == {"spilled": 0, "read by Spark": 0}
    assert records.persisted() == persisted


@pytest.mark.spark_tasks
def test_the_jobs_of_a_micro_batch_are_named_and_its_commits_reported(
    tmp_path: Path, spark: SparkSession
) -> None:
    site = Site(tmp_path, spark).put(ROWS)
    engine, job = site.engine(), site.job()
    engine.run(job)
    site.put(ROWS, "1")
    records, commits = SparkRecords(spark), delta_commits(tmp_path)
    (batch,) = engine.run(job).batches
    assert records.descriptions() == {"tiny: checkpoint 2, operator sums": 1}
    assert batch.delta_commits == delta_commits(tmp_path) - commits


@pytest.mark.spark_tasks
def test_a_compaction_is_one_job_and_no_query(tmp_path: Path, spark: SparkSession) -> None:
    """A query is planned, and its Python workers are others than those of subtasks."""
    site = Site(tmp_path, spark).put(ROWS)
    engine, job = site.engine(), site.job()
    engine.run(job)
    state: Any = spark._jsparkSession.sharedState()
    records, queries = SparkRecords(spark), state.statusStore().executionsCount()
    assert engine.compact(job).entries == {"sums": 3}
    assert records.descriptions() == {"tiny: base of operator sums as of checkpoint 1": 1}
    assert records.stages() == {"completed": 1, "skipped": 0, "failed": 0, "failed tasks": 0}
    assert state.statusStore().executionsCount() == queries


# -- files -------------------------------------------------------------------------------------------------------------

CHANGES, STATE = "root/tiny/operators/sums/changelog", "root/tiny/operator_state"
CHECKPOINTS, SINK_LOG = "root/tiny/checkpoints", "sink/_delta_log"


def test_files_of_a_micro_batch_of_a_few_rows(tmp_path: Path, spark: SparkSession) -> None:
    """The third one of a process."""
    site = Site(tmp_path, spark)
    engine, job = site.engine(), site.job()
    for name in "01":
        site.put({"k": ["a"], "v": [1]}, name)
        engine.run(job)
    site.put({"k": ["a"], "v": [1]}, "2")
    with counting_files(tmp_path) as files:
        (batch,) = engine.run(job).batches
    assert files.opened == {
        # its rows; and its ends, whose digest says later whether it is the same file, and which hold its footer
        "feed": 2,
        # that of the micro-batch before; the process keeps the one before that, which it has read
        CHANGES: 1,
        # that no other root writes to the table is looked up in its log by the process that made the job: the entry of
        # its creation and one each of two micro-batches
        SINK_LOG: 3,
    }
    assert files.written == {
        CHANGES: 1,
        "sink": 1,
        STATE: 1,
        CHECKPOINTS: 1,
    }  # one key, so one subtask writes
    input_bytes = (site.feed / "2.parquet").stat().st_size
    assert files.bytes_of("feed") <= 3 * input_bytes  # the footer, the rows, the ends
    _, before, _ = sorted((tmp_path / CHANGES).rglob("*.parquet"), key=batch_of)
    assert files.bytes_of(CHANGES) == before.stat().st_size  # once
    # a row of three columns, a change and the position of a file: nearly all of it are footers
    assert batch.bytes_written <= 8_192


def test_small_files_of_text_are_opened_twice_each(tmp_path: Path, spark: SparkSession) -> None:
    """For the ends, whose digest says later whether it is the same file, and for the rows; and read no more often."""
    site = Site(tmp_path, spark)
    records_of(site, 100)
    source = FileSource(str(site.feed), schema="k string, v bigint", format="json")
    job = StatefulJob("tiny", parallelism=2)
    job.source("events", source).sink("out", DeltaSink(str(site.sink)))
    with counting_files(tmp_path) as files:
        assert_one_batch(site.engine().run(job).batches)
    assert files.opened["feed"] == 200
    assert files.bytes_of("feed") == 2 * sum(file.stat().st_size for file in site.feed.iterdir())


def batch_of(file: Path) -> str:
    """The directory of the micro-batch that wrote a file."""
    return file.parent.name


def test_files_of_a_run_without_input(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark)
    engine, job = site.engine(), site.job()
    for name in "01":
        site.put({"k": ["a"], "v": [1]}, name)
        engine.run(job)
    with counting_files(tmp_path) as files:
        engine.run(job)
    assert (files.opened, files.written) == ({}, {})  # all that counts is known from the last micro-batch
    with counting_files(tmp_path) as files:
        site.engine().run(job)
    assert files.opened == {
        "root": 1,  # the marker
        f"{CHECKPOINTS}/_delta_log": 1,  # its end, in case of a power cut
        CHECKPOINTS: 2,  # a file a row
        STATE: 2,  # which files the source has given, a file a micro-batch
        SINK_LOG: 3,  # its newest entry: what it shows, of whom, and in which files
    }
    assert files.written == {}


def test_directories_read_by_a_run(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the input as often as the run looks for files: before and after a micro-batch."""
    job, read, scandir = SizedJob(spark, tmp_path, Counting(), 100), Counter[str](), os.scandir
    monkeypatch.setattr(os, "scandir", lambda path=".": read.update([str(path)]) or scandir(path))

    def listed() -> dict[str, int]:
        start = f"{tmp_path}/input"
        return {name.removeprefix(start): n for name, n in read.items() if name.startswith(start)}

    job.run(1, keys=np.array([7]))
    assert_equal(listed(), {"": 2, "/batch-0001": 2})
    read.clear()
    job.engine.run(job.job)
    assert_equal(listed(), {"": 1, "/batch-0001": 1})  # what waits is what the plan saw
    job.close()


@pytest.mark.parametrize("keys", [20_000, 60_000])
def test_files_opened_follow_touched_keys(tmp_path: Path, spark: SparkSession, keys: int) -> None:
    """However many keys have state; a base has a file for each of 128 key groups."""
    job, base = SizedJob(spark, tmp_path, Counting(), keys), "root/sized/operators/kept/base"
    with counting_files(tmp_path) as files:
        job.run(1, keys=np.array([7]))
    assert files.opened[base] == 1  # that of its key group
    with counting_files(tmp_path) as files:
        took = job.run(1_000, keys=np.arange(1_000))
    assert files.opened[base] == 127  # a thousand keys are in all of them, and the process kept the one
    assert files.opened["root/sized/operators/kept/changelog"] == 1  # of the one key, that its subtask wrote
    assert files.opened["input/batch-0002"] == 2  # its rows; and its ends, to know it again
    with counting_files(tmp_path) as files:
        job.run(1_000, keys=np.arange(1_000))
    assert files.opened[base] == 0  # all are kept
    assert files.opened["root/sized/operators/kept/changelog"] == 2  # that each subtask wrote
    job.engine.compact(job.job)
    job.run(1, keys=np.array([7]))
    kept = [uri for uri, _ in PROCESS_CACHE._files if uri.startswith(f"file://{tmp_path}")]
    assert len(kept) == 1  # that of its key group in the new base: nobody reads the others again
    # a change is a key, its hash, a number and what says so: some 25 bytes, and a footer for each of two subtasks
    assert took.changelog_bytes <= 30 * 1_000 + 2 * 4_096
    assert took.changed_entries == 1_000
    job.close()


def test_bytes_read_follow_touched_keys(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large file only the row groups are read that may hold one of them, where there are no local copies."""
    pieces = partial(open_parquet, sizes=ReadSizes(whole=2**16))  # smaller ones are read as a whole
    monkeypatch.setattr(listed_files, "open_parquet", pieces)
    keys = 60_000
    job = SizedJob(spark, tmp_path, Counting(), keys, max_parallelism=2, local_copies=NO_COPIES)
    base = tmp_path / "root/sized/operators/kept/base"
    sizes = [p.stat().st_size for p in base.rglob("*.parquet")]
    assert len(sizes) == 2
    taken = []
    for touched in (1, 4, USUAL.rows):
        with counting_files(tmp_path) as files:
            job.run(touched, keys=np.arange(touched) * (keys // USUAL.rows))
        taken.append(files.bytes_of(str(base.relative_to(tmp_path))))
    one, four, every = taken
    # a row group has 4,096 of the 30,000 keys of a file; and the ends of files are read for their footers
    group, footers = sum(sizes) * 4_096 / keys, 2 * 2**16
    assert one <= group * 1.5 + footers
    assert one < four <= 4 * group * 1.5 + footers
    assert every >= 0.8 * sum(sizes)
    job.close()


def test_bytes_read_of_a_base_with_local_copies(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are decoded by the second micro-batch on a base; then only their ends are read, and blocks of copies."""
    copies = LocalCopies(str(tmp_path / "copies"))
    keys = 60_000
    job = SizedJob(spark, tmp_path, Counting(), keys, max_parallelism=2)
    base = "root/sized/operators/kept/base"
    sizes = [p.stat().st_size for p in (tmp_path / base).rglob("*.parquet")]
    read = []
    for _ in range(4):
        with counting_files(tmp_path) as files:
            job.run(8, keys=np.arange(8) * (keys // 8))
        read.append((files.opened[base], files.bytes_of(base)))
    first, second, third, fourth = read
    assert first == (2, sum(sizes))  # of a file a subtask; a base may be read once only
    assert second == (4, sum(sizes) + 2 * 2**16)  # the ends, for their footers; and the rows, to be copied
    assert third == fourth == (2, 2 * 2**16)
    copied = [p.stat().st_size for p in copies.place.rglob("*.blocks")]
    assert len(copied) == 2
    assert (
        sum(copied) <= 48 * keys
    )  # of a key: its hash, itself, the name of the state, a number, and what is null
    job.close()


def assert_one_batch(batches: object) -> None:
    assert isinstance(batches, list)
    assert len(batches) == 1


def assert_equal(actual: object, expected: object) -> None:
    assert actual == expected
