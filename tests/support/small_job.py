"""A small job with all parts of the commit protocol: two operators, three kinds of state, two sinks.

Its results can be taken without the engine: outputs by pyarrow, and keyed state by a fold of its own over the files
that the path of checkpoints lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from state_engine import (
    DeltaSink,
    FileSink,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.located_files import state_files
from state_engine.storage.stores.files import normal_uri, open_location
from tests.core.checkpoints.rows import tree

ROWS, BATCH_ROWS = 240, 80
CLOCK_MS = 1_000_000
Context = KeyedProcessFunction.Context


class Totals(KeyedProcessFunction):
    """Per name: the sum so far, amounts by parity, and the last three amounts."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int, default=0))
        self.parities = runtime_context.get_map_state(MapStateDescriptor("parities", str, int))
        self.recent = runtime_context.get_list_state(ListStateDescriptor("recent", int))

    def process_element(self, value: Any, ctx: Context) -> Iterable[Any]:
        parity = "odd" if value.amount % 2 else "even"
        self.total.update(self.total.value() + value.amount)
        self.parities.put(parity, (self.parities.get(parity) or 0) + 1)
        recent = [*self.recent.get(), value.amount]
        self.recent.update(recent[-3:])
        if value.amount % 5 == 0:
            self.parities.remove(parity)
        yield value.seq, value.name, parity, self.total.value(), str(recent)
        if value.amount % 7 == 0:  # two outputs of one element
            yield value.seq, value.name, parity, -1, "again"


class Ranks(KeyedProcessFunction):
    """Per parity: how many elements came, and a digest of their order."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", tuple[int, int], default=(0, 0)))

    def process_element(self, value: Any, ctx: Context) -> Iterable[Any]:
        count, digest = self.seen.value()
        digest = (digest * 31 + value.seq * 7 + value.total) % 1_000_003
        self.seen.update((count + 1, digest))
        yield value.seq, ctx.get_current_key(), count + 1, digest


def write_feed(directory: Path, *, rows: int = ROWS) -> Path:
    """One Parquet file, whose file order is not the order by ``seq``."""
    directory.mkdir(parents=True)
    seq = [(i * 77) % rows if rows % 7 and rows % 11 else i for i in range(rows)]
    columns = {
        "seq": pa.array(seq, pa.int64()),
        "name": pa.array([f"n{s % 9}" for s in seq]),
        "amount": pa.array([(s * s + 3 * s) % 101 for s in seq], pa.int64()),
    }
    pq.write_table(pa.table(columns), directory / "0.parquet")
    return directory


def build(
    feed: Path, sinks: Path, *, parallelism: int = 2, batch_rows: int | None = BATCH_ROWS
) -> StatefulJob:
    """The job; its sinks are a Delta table and a directory of files."""
    job = StatefulJob("small", parallelism=parallelism, max_parallelism=128)
    source = FileSource(str(feed), max_rows_per_batch=batch_rows)
    totals = (
        job.source("events", source)
        .key_by("name")
        .process(
            Totals(),
            uid="totals",
            output_type="seq bigint, name string, parity string, total bigint, recent string",
        )
    )
    totals.sink("totals", DeltaSink(str(sinks / "totals")))
    ranks = totals.key_by("parity").process(
        Ranks(), uid="ranks", output_type="seq bigint, parity string, place bigint, digest bigint"
    )
    ranks.sink("ranks", FileSink(str(sinks / "ranks")))
    return job


Results = dict[str, Any]


def results(engine: StateEngine, sinks: Path) -> Results:
    """Outputs and state, each in an order of its own."""
    delta = (
        DeltaTable(str(sinks / "totals")).to_pyarrow_table().to_pylist()
        if (sinks / "totals").exists()
        else []
    )
    files = [
        row
        for file in sorted((sinks / "ranks").glob("checkpoint_id=*/*.parquet"))
        for row in pq.ParquetFile(file).read().to_pylist()
    ]
    return {
        "totals": sorted(tuple(r.values()) for r in delta),
        "ranks": sorted(tuple(r.values()) for r in files),
        "state": {uid: folded(engine, uid) for uid in ("totals", "ranks")},
        "rows": sum(row.rows_in for row in engine.checkpoints("small")),
    }


def path_of(engine: StateEngine, job: str = "small") -> list[CheckpointRow]:
    """The path to the head."""
    rows = {row.checkpoint_id: row for row in engine.checkpoints(job)}
    return tree(rows).path(max(rows, default=None))


def folded(engine: StateEngine, uid: str, job: str = "small") -> dict[tuple[Any, ...], Any]:
    """All entries of an operator by state and key, folded row by row."""
    return folded_along(JobLayout(engine.root, job), path_of(engine, job), uid)


def folded_along(layout: JobLayout, path: list[CheckpointRow], uid: str) -> dict[tuple[Any, ...], Any]:
    """The same along a path: from bases and changes, by state and key."""
    entries: dict[tuple[Any, ...], Any] = {}
    for file in state_files(layout, path, uid):
        for row in open_location(normal_uri(file.listed.uri)).parquet().read().to_pylist():
            at, value = (row["state"], *row["key"].values()), row[f"v_{row['state']}"]
            is_map = isinstance(value, dict) and set(value) == {"key", "value"}
            match row.get("op", "append" if isinstance(value, list) else "put"):
                case "clear":
                    entries.pop(at, None)
                case "append":
                    entries[at] = entries.get(at, []) + [e["value"] for e in value]
                case "put" if is_map:
                    entries.setdefault(at, {})[_name_of(value["key"])] = value["value"]
                case "put":
                    entries[at] = value
                case "delete" if is_map:
                    del entries[at][_name_of(value["key"])]
                case "delete":
                    del entries[at]
                case other:
                    raise AssertionError(f"unknown change {other}")
    return {at: value for at, value in entries.items() if value != {}}


def _name_of(key: Any) -> Any:
    """A key of a map, for a dict; those of timers are structs."""
    return tuple(key.values()) if isinstance(key, dict) else key
