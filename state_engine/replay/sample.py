"""A sample: today's code over the last recorded micro-batches, each with the state that it had, beside the record.

A micro-batch runs as an attempt does, in a directory of its own, and is never committed. One that read more rows than
are left runs with some of its keys, see ``sampled_keys``. Rows that it stages for sinks, and entries of states that it
writes, are compared as multisets. Nothing needs Spark but DataFrame code, and sources that only Spark reads. Flink has
no counterpart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile
from state_engine.core.checkpoints.dead_letters import LETTERS
from state_engine.core.checkpoints.history import History
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import StatelakeError
from state_engine.core.state.descriptors import TIMERS
from state_engine.job.graph import SinkNode
from state_engine.job.job import StatefulJob
from state_engine.microbatch.attempt_outputs import AttemptSinks
from state_engine.microbatch.batch_result import Execution
from state_engine.microbatch.executor import GraphExecutor
from state_engine.microbatch.routing.routing import Router
from state_engine.publishing.output_reader import OutputReader
from state_engine.queries.spark_sql import plain_message
from state_engine.replay.key_recording import SCRATCH_WRITE_ID, recorded_batch
from state_engine.replay.sampled_keys import SomeKeys
from state_engine.sinks.base import SinkRequest, SinkTarget
from state_engine.sinks.files import PrivateFileSink
from state_engine.sinks.staging import Staging
from state_engine.spark.no_spark import NO_SPARK, NeedsSparkError
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores.files import join, normal_uri
from state_engine.storage.stores.parquet_reading import read_parquet

EXAMPLES = 5
"""Rows that are shown of each side."""
Place = tuple[str, str]
"""``sink`` or ``state``, and its name."""
_Counts = dict[Place, Counter[str]]


@dataclass(frozen=True)
class SampledRows:
    """Rows of a sink, or entries that were written of a state.

    Attributes:
        kind: ``sink`` or ``state``.
        name: of the sink; of a state with its operator.
        same, only_old, only_new: how many there are in both, only recorded, and only of today's code.
        old, new: examples of these.
    """

    kind: str
    name: str
    same: int
    only_old: int
    only_new: int
    old: list[Any] = field(default_factory=list)
    new: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Sample:
    """What today's code makes of the last recorded micro-batches.

    Attributes:
        batches: ids of the checkpoints that they made, oldest first.
        rows: that they read; of one that ran with some keys, the rows of these.
        compared: by sink and state.
        notes: what was not run, and why.
    """

    job: str
    batches: tuple[int, ...]
    rows: int
    compared: tuple[SampledRows, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return not any(one.only_old or one.only_new for one in self.compared)

    def lines(self) -> Iterator[str]:
        r"""What differs, as text.

        Example:
            >>> rows = SampledRows("sink", "out", 2, 1, 0, ["{'n': 1}"])
            >>> print(*Sample("sums", (7, 8), 3, (rows,)).lines(), sep="\n")
            sample of checkpoints 7, 8: 3 rows
              sink out: 2 same, 1 only old, 0 only new
                old: {'n': 1}
        """
        yield f"sample of checkpoints {', '.join(map(str, self.batches)) or 'none'}: {counted(self.rows, 'row')}"
        for one in self.compared:
            yield f"  {one.kind} {one.name}: {one.same} same, {one.only_old} only old, {one.only_new} only new"
            yield from (f"    old: {row}" for row in one.old)
            yield from (f"    new: {row}" for row in one.new)
        yield from (f"  {note}" for note in self.notes)


def sample_of(
    job: StatefulJob,
    history: History,
    layout: JobLayout,
    *,
    rows: int,
    parameters: Mapping[str, str],
    session: Callable[[], SparkSession] | None = None,
) -> Sample:
    """Run a sample.

    Args:
        rows: so many at most; whole micro-batches, newest first, and of one that has more all rows of some keys.
        session: gives a session with Spark; None to run only what needs none.
    """
    return _Sampler(job, history, layout, parameters, session).sample(rows)


@dataclass(frozen=True)
class _Sides:
    """Rows as they were recorded and as today's code makes them, and how many rows were read for them."""

    old: _Counts
    new: _Counts
    rows: int


@dataclass
class _Sampler:
    job: StatefulJob
    history: History
    layout: JobLayout
    parameters: Mapping[str, str]
    session: Callable[[], SparkSession] | None
    notes: list[str] = field(default_factory=list)

    def sample(self, most: int) -> Sample:
        path = self.history.main_path
        old: _Counts = {}
        new: _Counts = {}
        ran: list[int] = []
        left = most
        for row in reversed([row for row in path if row.kind.is_micro_batch]):
            if not left:
                break
            sides = self._both(path[: path.index(row) + 1], left)
            if sides is None:
                continue
            ran.append(row.checkpoint_id)
            left -= sides.rows
            for total, side in ((old, sides.old), (new, sides.new)):
                for place, counts in side.items():
                    total.setdefault(place, Counter()).update(counts)
            if sides.rows < row.rows_in:
                break
        compared = [_compared(place, old, new) for place in sorted({*old, *new})]
        return Sample(self.job.name, tuple(sorted(ran)), most - left, tuple(compared), tuple(self.notes))

    def _both(self, path: Sequence[CheckpointRow], most: int) -> _Sides | None:
        """What is recorded of the micro-batch at the end of a path, and what today's code makes; None if unknown."""
        row = path[-1]
        if row.source(LETTERS) is not None:
            self.notes.append(f"checkpoint {row.checkpoint_id} sent dead letters again: it was not run")
            return None
        with TemporaryDirectory(prefix="statelake-sample-") as directory:
            scratch = JobLayout(normal_uri(directory), self.layout.job)
            try:
                done, some = self._ran(path, scratch, most)
                sides = _Sides(dict(self._recorded(row, some)), dict(_made(done, scratch, some)), row.rows_in)
                return sides if some is None else self._in_part(row, sides, some)
            except NeedsSparkError:
                why = "a source, or DataFrame code of a transform, needs Spark: give --spark"
            except PySparkException as error:
                why = plain_message(error)
            except StatelakeError as error:
                why = str(error)
        self.notes.append(f"checkpoint {row.checkpoint_id} was not run: {why}")
        return None

    def _in_part(self, row: CheckpointRow, sides: _Sides, some: SomeKeys) -> _Sides:
        if not some.rows:
            why = "each key has more rows than are left" if some.hashes else "no operator has keys to choose"
            raise StatelakeError(f"{why}: take a sample of {counted(row.rows_in, 'row')}")
        for place, counts in sides.old.items():
            if place[0] == "sink":  # rows that today's code does not make may be of other keys
                counts &= sides.new.get(place, Counter())
        self.notes.append(
            f"checkpoint {row.checkpoint_id} read {counted(row.rows_in, 'row')}: it was run with {some.text}. Rows of "
            "sinks that are only old are not counted, and what comes behind a second key is not compared"
        )
        return replace(sides, rows=some.rows)

    def _ran(
        self, path: Sequence[CheckpointRow], scratch: JobLayout, most: int
    ) -> tuple[Execution, SomeKeys | None]:
        if self.session is None:
            return self._execute(NO_SPARK, path, scratch, most)
        try:
            return self._execute(NO_SPARK, path, scratch, most)
        except (NeedsSparkError, PySparkException):
            return self._execute(self.session(), path, scratch, most)

    def _execute(
        self, spark: SparkSession, path: Sequence[CheckpointRow], scratch: JobLayout, most: int
    ) -> tuple[Execution, SomeKeys | None]:
        batch = recorded_batch(
            self.job, self.history, path, layout=self.layout, spark=spark, parameters=self.parameters
        )
        some = SomeKeys(spark, self.job, most) if path[-1].rows_in > most else None
        router = some or Router(spark, max_parallelism=self.job.max_parallelism)
        executor = GraphExecutor(spark, self.job, layout=scratch, reads=self.layout, router=router)
        return executor.execute(batch, _ScratchSinks(scratch)), some

    def _recorded(self, row: CheckpointRow, some: SomeKeys | None) -> Iterator[tuple[Place, Counter[str]]]:
        reader = OutputReader(NO_SPARK, self.layout)
        for sink in row.sinks:
            if sink.name in self.job.sinks and sink.files and (some is None or sink.name in some.sinks):
                yield ("sink", sink.name), _counted(reader.table(sink, sink.files))
        for operator in row.operators:
            yield from _entries(self.layout, operator.uid, operator.changelog, some)


class _ScratchSinks(AttemptSinks):
    """Sinks of an attempt that is never committed: directories of Parquet files."""

    def __init__(self, layout: JobLayout) -> None:
        self.write_id, self.targets, self.files, self.dead_letters = SCRATCH_WRITE_ID, {}, {}, []
        self._layout = layout

    @property
    def kernel(self) -> DeltaKernel:
        return _NoKernel()

    def prepare(self, node: SinkNode, schema: pa.Schema) -> SinkTarget:
        place = join(self._layout.root, "sinks", node.name)
        request = SinkRequest(
            kernel=self.kernel,
            staging=Staging(self._layout.root),
            name=node.name,
            app=f"sample/{self._layout.job}/{node.name}",
            schema=schema,
            write_id=self.write_id,
        )
        self.targets[node.name] = PrivateFileSink(place).prepare(request)
        return self.targets[node.name]


class _NoKernel(DeltaKernel):
    def __init__(self) -> None:
        self.spark = NO_SPARK


def _made(done: Execution, scratch: JobLayout, some: SomeKeys | None) -> Iterator[tuple[Place, Counter[str]]]:
    for name, files in done.outputs.files.items():
        if some is not None and name not in some.sinks:
            continue
        target = done.outputs.targets[name]
        parts = [
            read_parquet(join(target.uri, file.path), of=f"sink '{name}'") for file in files if file.rows
        ]
        if parts:
            yield ("sink", name), _counted(pa.concat_tables(parts))
    for uid, report in done.operators.items():
        yield from _entries(scratch, uid, [file for one in report.subtasks for file in one.changelog], some)


def _entries(
    layout: JobLayout, uid: str, files: Iterable[DataFile], some: SomeKeys | None
) -> Iterator[tuple[Place, Counter[str]]]:
    """Entries of states that files of changes hold, by state."""
    counts: _Counts = {}
    for file in files if some is None or uid in some.hashes else ():
        rows = read_parquet(join(layout.changelog(uid), file.path), of=f"changes of operator '{uid}'")
        for row in rows.to_pylist():
            if some is None or row["key_hash"] in some.hashes[uid]:
                place = "state", f"{uid}.{row['state']}"
                counts.setdefault(place, Counter())[_text(row)] += 1
    yield from ((place, count) for place, count in counts.items() if not place[1].endswith(f".{TIMERS}"))


def _counted(rows: pa.Table) -> Counter[str]:
    return Counter(map(repr, rows.to_pylist()))


def _text(row: Mapping[str, Any]) -> str:
    return repr({name: value for name, value in row.items() if value is not None and name not in _HIDDEN})


_HIDDEN = ("state", "key_group", "key_hash")
"""Columns that show nothing of an entry but where it is kept."""


def _compared(place: Place, old: _Counts, new: _Counts) -> SampledRows:
    before, after = old.get(place, Counter()), new.get(place, Counter())
    gone, came = before - after, after - before
    return SampledRows(
        *place,
        same=(before & after).total(),
        only_old=gone.total(),
        only_new=came.total(),
        old=sorted(gone.elements())[:EXAMPLES],
        new=sorted(came.elements())[:EXAMPLES],
    )
