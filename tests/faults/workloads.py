"""The jobs under faults, and what readers see of them: outputs, state, checkpoints.

Among them every kind of sink is written to, dead letters included, see ``sink_of``.

Every one reads lists that are cut into micro-batches at fixed places. Results are taken from the files, by readers
that share nothing with the engine but the listing of files.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import (
    CheckpointedFunction,
    DataStream,
    DeltaSink,
    DeltaStateTable,
    FileSink,
    ForeachBatchSink,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    NoKeyTwice,
    ProcessFunction,
    RowsBetween,
    RuntimeContext,
    Session,
    Sliding,
    SqlSink,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
    VectorizedKeyedFunction,
    VectorizedResult,
    sum_,
)
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.state_files import operator_state_files
from state_engine.sinks.base import Sink
from state_engine.sinks.bounds import Bound
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores import durability
from state_engine.storage.stores.files import join, normal_uri, open_location
from tests.core.checkpoints.rows import tree
from tests.faults import chain_of_operators
from tests.support import stores
from tests.support.small_job import folded_along

CLOCK_MS = 1_000_000
CUT = 10
KEY_GROUPS = 8
EVENTS = [("abcde"[i * i % 5], (i * 7 + 3) % 11) for i in range(20)]
PAIR = "k string, n bigint"
TIMED = [
    (k, n, datetime(2026, 1, 5, tzinfo=UTC) + timedelta(seconds=3 * i - 4 * (i % 3)))
    for i, (k, n) in enumerate(EVENTS)
]
"""The same with event times, up to eight seconds behind the newest one before."""
RULES = MapStateDescriptor("rules", str, int)
LETTERS = "dead_letters"
REFUSED = 10
"""The number that ``Picky`` refuses."""
TABLES_OF_STATES = ("rows of a Delta table", "rows of an SQL table")
"""Fault points of tables that show a state."""
POSTGRES_URL, POSTGRES_PASSWORD = "STATELAKE_TEST_FAULTS_URL", "STATELAKE_TEST_FAULTS_PASSWORD"
"""Environment variables of the one test that starts a server."""


class Sums(KeyedProcessFunction):
    """Per key: the sum, how often each remainder came, and all numbers in order."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", int, default=0))
        self.remainders = runtime_context.get_map_state(MapStateDescriptor("remainders", int, int))
        self.all = runtime_context.get_list_state(ListStateDescriptor("all", int))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.sum.update(self.sum.value() + value.n)
        self.remainders.put(value.n % 3, (self.remainders.get(value.n % 3) or 0) + 1)
        if value.n % 5 == 4:
            self.remainders.remove(value.n % 3)
        self.all.add(value.n)
        yield str(ctx.get_current_key()), self.sum.value()


class Picky(Sums):
    """Sums, of all but one number."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        if value.n == REFUSED:
            raise ValueError("this number is not wanted")
        yield from super().process_element(value, ctx)


class SumsOverColumns(VectorizedKeyedFunction):
    """Sums, of all but one number, for all keys of a subtask at once."""

    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_state(ValueStateDescriptor("sum", int, default=0))

    def process_batch(self, rows: pa.Table, state: pa.Table, ctx: Any) -> VectorizedResult:
        sums, changed, outputs, refused = state["sum"].to_pylist(), set(), [], []
        for row in rows.to_pylist():
            if row["n"] == REFUSED:
                refused.append({"_row": row["_row"], "error": "this number is not wanted"})
                continue
            sums[row["_key"]] += row["n"]
            changed.add(row["_key"])
            outputs.append({"k": row["k"], "n": sums[row["_key"]], "_row": row["_row"]})
        of_state = [{"_key": key, "sum": sums[key]} for key in sorted(changed)]
        made = [pa.Table.from_pylist(part) if part else None for part in (outputs, of_state, refused)]
        return VectorizedResult(outputs=made[0], state=made[1], refused=made[2])


class Kept(ProcessFunction, CheckpointedFunction):
    """Keeps every number that it sees, per subtask."""

    def initialize_state(self, context: Any) -> None:
        self.kept = context.get_operator_state_store().get_list_state(ListStateDescriptor("kept", int))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.kept.add(value.n)
        yield value.k, value.n

    def snapshot_state(self, context: Any) -> None:
        pass


class Ruled(KeyedBroadcastProcessFunction):
    """Multiplies by the rule of the key, and sums up."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.sum.update(self.sum.value() + value.n * (ctx.get_broadcast_state(RULES).get(value.k) or 1))
        yield value.k, self.sum.value()

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(value.k, value.n)


Build = Callable[[StatefulJob, int], Mapping[str, DataStream]]


def _events(job: StatefulJob, cut: int) -> DataStream:
    return job.from_collection(EVENTS, PAIR, name="events", max_rows_per_batch=cut)


def sums(stream: DataStream, key: str, uid: str, function: Sums | None = None) -> DataStream:
    return stream.key_by(key).process(function or Sums(), uid=uid, output_type=PAIR)


def _keyed(job: StatefulJob, cut: int) -> Mapping[str, DataStream]:
    return {"delta": sums(_events(job, cut), "k", "sums")}


def _operator(job: StatefulJob, cut: int) -> Mapping[str, DataStream]:
    return {"delta": _events(job, cut).process(Kept(), uid="kept", output_type=PAIR)}


def _chained(job: StatefulJob, cut: int) -> Mapping[str, DataStream]:
    first = sums(_events(job, cut), "k", "sums")
    return {"delta": first, "files": sums(first, "k", "sums_of_sums")}


def _broadcast(job: StatefulJob, cut: int) -> Mapping[str, DataStream]:
    rules = job.from_collection(
        [("a", 10), ("b", 100), ("a", 1000)], PAIR, name="rules", max_rows_per_batch=2
    )
    ruled = _events(job, cut).key_by("k").connect(rules.broadcast(RULES))
    return {"delta": ruled.process(Ruled(), uid="ruled", output_type=PAIR)}


def _over_columns(job: StatefulJob, cut: int) -> Mapping[str, DataStream]:
    events = _events(job, cut).key_by("k")
    return {"delta": events.process(SumsOverColumns(), uid="sums", output_type=PAIR)}


def _sinks(job: StatefulJob, cut: int) -> Mapping[str, DataStream]:
    stream = sums(_events(job, cut), "k", "sums", Picky())
    return dict.fromkeys(("delta", "files", "delta_too", "csv", "sql"), stream)


def _last_rows(job: StatefulJob, cut: int) -> Mapping[str, DataStream]:
    return dict.fromkeys(("latest", "newest"), sums(_events(job, cut), "k", "sums"))


def _windows(job: StatefulJob, cut: int) -> Mapping[str, DataStream]:
    events = job.from_collection(
        TIMED,
        f"{PAIR}, at timestamp",
        name="events",
        max_rows_per_batch=cut,
        event_time="at",
        max_out_of_orderness="5 s",
    )
    by_session = events.key_by("k").window(Session("12 s"), lateness="4 s")
    sessions = by_session.aggregate(n=sum_("n"), uid="sessions")
    by_slide = sessions.key_by("k").window(Sliding("20 s", every="10 s"))
    return {"delta": sessions, "files": by_slide.aggregate(n=sum_("n"), uid="slides")}


def _at_least_once(job: StatefulJob, cut: int) -> Mapping[str, DataStream]:
    stream = sums(_events(job, cut), "k", "sums")
    return {"spark_delta": stream, "function": stream}


@dataclass(frozen=True)
class RowsAsJson:
    """Writes the rows of a checkpoint to a file; a second call with the same id changes nothing."""

    directory: Path

    def __call__(self, rows: Any, checkpoint_id: int) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self.directory / f"{checkpoint_id}.json"
        file.write_text(json.dumps(rows.to_pylist()))
        durability.sync_files([str(file)], below=str(self.directory.parent))  # a power cut is its own matter


def sink_of(name: str, directory: Path, store: str | None = None) -> Sink:
    """The sink of a name; the rest of the name after its first part distinguishes sinks of one kind."""
    path, table = directory / "sinks" / name, table_of(name, directory, store)
    match name.split("_")[0]:
        case "delta":
            return DeltaSink(table)
        case "spark":
            return DeltaSink(table, lineage=True)
        case "files":
            return FileSink(str(path))
        case "csv":
            return FileSink(str(path), "csv")
        case "sql":
            path.parent.mkdir(parents=True, exist_ok=True)
            return SqlSink(f"sqlite:///{path}.db", name, lineage=True)
        case "latest":
            return DeltaSink(table, key=["k"])
        case "newest":
            path.parent.mkdir(parents=True, exist_ok=True)
            return SqlSink(f"sqlite:///{path}.db", name, key=["k"])
        case "postgres":
            return SqlSink(os.environ[POSTGRES_URL], name, lineage=True, password_env=POSTGRES_PASSWORD)
        case "function":
            return ForeachBatchSink(RowsAsJson(path), name="rows_in_tests_of_faults")
    raise ValueError(name)


def table_of(name: str, directory: Path, store: str | None) -> str:
    """Where the Delta table of a sink is."""
    return join(store or str(directory), "sinks", name)


@dataclass(frozen=True)
class Workload:
    """A job, and how often it reaches the points inside steps in one micro-batch.

    Attributes:
        name: of the workload, and of the job.
        operators: uids of operators.
        sinks: names, see ``sink_of``; one of tables that show a state of the operator begins with ``shown``.
        letters: whether rows are refused, some in each of the first micro-batches.
        tables: points that sinks with a key reach; such a sink stages nothing, and its table shows a state.
        withdraws: whether all sinks can withdraw, so that restores are possible.
        gates: bounds that every micro-batch meets, so a verdict reads what is staged.
    """

    name: str
    build: Build
    operators: tuple[str, ...]
    sinks: tuple[str, ...]
    letters: bool = False
    tables: tuple[str, ...] = ()
    withdraws: bool = True
    gates: tuple[Bound, ...] = ()

    def job(
        self,
        directory: Path,
        *,
        store: str | None = None,
        cut: int = CUT,
        parallelism: int = 2,
        max_parallelism: int = KEY_GROUPS,
    ) -> StatefulJob:
        """A new job object, as a scheduler would make one for each run."""
        workload_job = StatefulJob(
            self.name,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            on_error="dead_letter" if self.letters else "fail",
        )
        for name, stream in self.build(workload_job, cut).items():
            if name.startswith("shown"):
                stream.publish(DeltaStateTable(table_of(name, directory, store)), name=name)
            else:
                stream.sink(name, sink_of(name, directory, store))
        for number, bound in enumerate(self.gates):
            workload_job.gate(f"gate_{number}", bound, "hold")
        return workload_job

    @property
    def keyed(self) -> tuple[str, ...]:
        """uids of operators with keyed state."""
        return tuple(uid for uid in self.operators if uid != "kept")

    def reached(self) -> dict[str, int]:
        """How often a micro-batch after the first reaches each point inside a step."""
        deltas = sum(name.startswith("delta") for name in self.sinks)
        staged = len(self.sinks) - len(self.tables)
        reached = {
            "before publish_pending": 2,  # the run publishes once before its first micro-batch reads the head
            "after publish_pending": 2,
            "before commit_changelog": len(self.operators),
            "after commit_changelog": len(self.operators),
            "after operator": len(self.operators),
            "after prepared sink": staged,
            "after sink published": staged + self.letters,
            **{f"{when} {table}": 1 for table in self.tables for when in ("before", "after")},
            # changes, operator state, the row, sinks
            "after table committed": len(self.keyed) + 2 + deltas + self.letters,
        }
        return {point: count for point, count in reached.items() if count}


WORKLOADS = {
    w.name: w
    for w in (
        Workload("keyed", _keyed, ("sums",), ("delta",)),
        Workload("operator", _operator, ("kept",), ("delta",)),
        Workload("chained", _chained, ("sums", "sums_of_sums"), ("delta", "files")),
        Workload("broadcast", _broadcast, ("ruled",), ("delta",)),
        Workload("over_columns", _over_columns, ("sums",), ("delta",), letters=True),
        Workload("sinks", _sinks, ("sums",), ("delta", "files", "delta_too", "csv", "sql"), letters=True),
        Workload(
            "last_rows",
            _last_rows,
            ("sums", "sink_latest", "sink_newest"),
            ("latest", "newest"),
            tables=TABLES_OF_STATES,
            gates=(NoKeyTwice("latest", ["k"]), RowsBetween("sums.sum", 0)),
        ),
        Workload(
            "windows",
            _windows,
            ("sessions", "slides"),
            ("delta", "files"),
            gates=(NoKeyTwice("files", ["k", "window_start"]),),
        ),
        Workload(
            "operators",
            chain_of_operators.chain,
            ("once", "met", "sums", "best"),
            chain_of_operators.SINKS,
            tables=TABLES_OF_STATES[:1],
        ),
        Workload("at_least_once", _at_least_once, ("sums",), ("spark_delta", "function"), withdraws=False),
    )
}


@dataclass(frozen=True)
class Seen:
    """The content that readers see."""

    outputs: Mapping[str, list[Any]]
    state: Mapping[str, Any]


class Site:
    """A directory with the root and the sinks of one workload; or one in a store for the root and all Delta tables."""

    max_parallelism = KEY_GROUPS

    def __init__(
        self,
        directory: Path,
        workload: Workload,
        spark: SparkSession,
        *,
        cut: int = CUT,
        store: str | None = None,
    ) -> None:
        self.directory, self.workload, self.spark, self.cut = directory, workload, spark, cut
        self.store = store

    @property
    def root(self) -> str:
        return join(self.store or str(self.directory), "root")

    def put_back(self, saved: Path) -> None:
        """Replace everything by what a directory, and one of its name in the store, has kept."""
        copy_over(saved, self.directory)
        if self.store is not None:
            stores.copy_over(f"{self.store}-{saved.name}", self.store)

    def save(self, saved: Path) -> None:
        """Keep everything, for ``put_back``."""
        copy_over(self.directory, saved)
        if self.store is not None:
            stores.copy_over(self.store, f"{self.store}-{saved.name}")

    def again(self) -> Site:
        """The same site, as another runner uses it."""
        site = Site(self.directory, self.workload, self.spark, cut=self.cut, store=self.store)
        site.max_parallelism = self.max_parallelism
        return site

    def engine(self) -> StateEngine:
        """As another process would have it."""
        return StateEngine(self.root, self.spark)

    def job(self, *, parallelism: int = 2) -> StatefulJob:
        for name in self.workload.sinks:
            self._make_table(name)
        return self.workload.job(
            self.directory,
            store=self.store,
            cut=self.cut,
            parallelism=parallelism,
            max_parallelism=self.max_parallelism,
        )

    def run(self, *, parallelism: int = 2, **options: Any) -> Any:
        """Run with an engine of its own."""
        with self.engine() as engine:
            return engine.run(self.job(parallelism=parallelism), clock=CLOCK_MS, **options)

    def rows(self) -> list[CheckpointRow]:
        with self.engine() as engine:
            return engine.checkpoints(self.workload.name)

    def path(self) -> list[CheckpointRow]:
        """The path to the head."""
        rows = {row.checkpoint_id: row for row in self.rows()}
        return tree(rows).path(max(rows, default=None))

    def outputs(self) -> dict[str, list[Any]]:
        shown = {name: sorted(_published(name, self.directory, self.store)) for name in self.workload.sinks}
        if self.workload.letters:
            shown[LETTERS] = sorted(_letters(join(self.root, self.workload.name, LETTERS)))
        return shown

    def _make_table(self, name: str) -> None:
        """A table that only Spark can write to is there before the job is."""
        table = table_of(name, self.directory, self.store)
        if name.startswith("spark") and not open_location(normal_uri(table)).is_directory():
            columns = f"{PAIR}, _write_id string"
            self.spark.sql(f"CREATE TABLE delta.`{table}` ({columns}) USING delta PARTITIONED BY (k)")

    def seen(self) -> Seen:
        path = self.path()
        layout = JobLayout(self.engine().root, self.workload.name)
        state: dict[str, Any] = {uid: folded_along(layout, path, uid) for uid in self.workload.keyed}
        for ref in path[-1].operator_state if path else []:
            if ref.operator in self.workload.operators:
                files = {
                    f.path: _read(f"{layout.operator_state}/{f.path}")
                    for f in operator_state_files(path, ref)
                }
                # of an older attempt only the lists count that no later one wrote anew
                pointed = {(s.name, p.subtask, p.write_id) for s in ref.states for p in s.parts}
                rows = [
                    r
                    for name, tables in files.items()
                    for r in tables
                    if (r["state"], r["subtask"], name[len("write_id=") :].split("/")[0]) in pointed
                ]
                held = [(r["state"], r["value"]) for r in rows if r["scheme"] != "broadcast"]
                held += {(r["state"], r["value"]) for r in rows if r["scheme"] == "broadcast"}
                state[f"operator state of {ref.operator}"] = sorted(held)
        return Seen(self.outputs(), state)


def copy_over(source: Path, target: Path) -> None:
    """Replace a directory by a copy of another one."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def _read(uri: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = open_location(normal_uri(uri)).parquet().read().to_pylist()
    return rows


def _published(name: str, directory: Path, store: str | None) -> list[tuple[Any, ...]]:
    sink = directory / "sinks" / name
    match name.split("_")[0]:
        case "latest" | "shown":  # with deletion vectors, which delta-rs does not read
            return _rows_of_state(table_of(name, directory, store))
        case "delta" | "spark":
            return [(row["k"], row["n"]) for row in _rows_of_table(table_of(name, directory, store))]
        case "csv":
            lines = (
                line
                for f in sink.glob("checkpoint_id=*/*.csv")
                for line in csv.reader(f.read_text().splitlines())
            )
            return [(k, int(n)) for k, n in lines if n != "n"]
        case "sql" | "newest":
            return _selected(sink.with_suffix(".db"), name)
        case "function":
            rows = (row for file in sink.glob("*.json") for row in json.loads(file.read_text()))
            return [(row["k"], row["n"]) for row in rows]
    files = sorted(sink.glob("checkpoint_id=*/*.parquet"))
    return [tuple(row.values()) for file in files for row in _read(str(file))]


def _rows_of_state(table: str) -> list[tuple[Any, ...]]:
    if not _has_log(table):
        return []
    options = stores.delta_rs_options(table)
    return pl.read_delta(table.replace("s3a:", "s3:", 1), storage_options=options).select("k", "n").rows()


def _selected(database: Path, table: str) -> list[tuple[Any, ...]]:
    if not database.exists():
        return []
    connection = sqlite3.connect(database)
    try:
        known = connection.execute("SELECT name FROM sqlite_master WHERE name = ?", [table]).fetchall()
        return list(connection.execute(f"SELECT k, n FROM {table}")) if known else []
    finally:
        connection.close()


def _letters(table: str) -> list[tuple[Any, ...]]:
    return [(row["operator"], row["key"], row["row"]) for row in _rows_of_table(table)]


def _has_log(table: str) -> bool:
    log = open_location(normal_uri(table)).inside("_delta_log")
    return any(name.endswith(".json") for name in log.names(missing_ok=True))


def _rows_of_table(table: str) -> list[dict[str, Any]]:
    """None where there is no table; a failed first batch may have left a directory."""
    if not _has_log(table):
        return []
    options = stores.delta_rs_options(table)
    rows: list[dict[str, Any]] = DeltaTable(table, storage_options=options).to_pyarrow_table().to_pylist()
    return rows
