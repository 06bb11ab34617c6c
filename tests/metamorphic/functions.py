"""Functions of the small jobs of the table, see ``jobs``: each shows all that the engine lets it see."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from state_engine import (
    CheckpointedFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListCheckpointed,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    SourceFunction,
    Types,
    ValueStateDescriptor,
    VectorizedKeyedFunction,
    VectorizedResult,
)
from state_engine.core.keys.key_groups import assign_to_key_group

HOUR_MS = 3_600_000
JOIN_MS = 20 * 60_000
"""An order and a payment belong together if they are no further apart."""


class Hours(KeyedProcessFunction):
    """The sum of each hour, once it is over."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.sums = runtime_context.get_map_state(MapStateDescriptor("sums", int, int))

    def process_element(self, value: Any, ctx: Any) -> None:
        end = (ctx.timestamp() // HOUR_MS + 1) * HOUR_MS - 1
        self.sums.put(end, (self.sums.get(end) or 0) + value.n)
        ctx.timer_service().register_event_time_timer(end)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), timestamp, self.sums.get(timestamp)
        self.sums.remove(timestamp)


class Reminds(KeyedProcessFunction):
    """Counts rows, and says so when the clock has come to the times that they ask for."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.count.update(self.count.value() + 1)
        ctx.timer_service().register_processing_time_timer(
            ctx.current_processing_time() + 1000 * (value.n + 10)
        )
        if value.n % 4 == 0:
            at = ctx.current_processing_time() + 1000 * (value.n + 11)
            ctx.timer_service().delete_processing_time_timer(at)
        yield value.k, "row", self.count.value(), ctx.current_processing_time()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), "timer", self.count.value(), timestamp


class Lists(KeyedProcessFunction):
    """The second operator of a chain: all that came, in order."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.came = runtime_context.get_list_state(ListStateDescriptor("came", str))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.came.add(value.seen)
        yield value.k[:1], len(list(self.came.get())), f"{ctx.current_watermark()} {value.seen}"


class Judged(KeyedBroadcastProcessFunction):
    """Multiplies by the factor as of the row."""

    FACTORS = MapStateDescriptor("factors", str, int)

    def open(self, runtime_context: RuntimeContext) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.sum.update(
            self.sum.value() + value.n * (ctx.get_broadcast_state(self.FACTORS).get(value.k) or 1)
        )
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5_000)
        yield value.k, "row", self.sum.value()

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(self.FACTORS).put(value.k, value.n)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), "timer", self.sum.value()


class Paid(KeyedCoProcessFunction):
    """Pairs of an order and a payment near it; what finds nobody is put out by itself when its time is over."""

    def open(self, runtime_context: RuntimeContext) -> None:
        sides = [MapStateDescriptor(name, int, tuple[int, bool]) for name in ("orders", "payments")]
        self.orders, self.payments = map(runtime_context.get_map_state, sides)

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield from self._met(value, ctx, self.orders, self.payments, turned=False)

    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield from self._met(value, ctx, self.payments, self.orders, turned=True)

    def _met(self, value: Any, ctx: Any, own: Any, others: Any, *, turned: bool) -> Iterable[Any]:
        at, met = ctx.timestamp(), False
        for other_at, (n, _) in list(others.items()):
            if abs(other_at - at) <= JOIN_MS:
                others.put(other_at, (n, True))
                met = True
                yield (value.k, n, value.n) if turned else (value.k, value.n, n)
        own.put(at, (value.n, met))
        ctx.timer_service().register_event_time_timer(at + JOIN_MS)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        for side, turned in ((self.orders, False), (self.payments, True)):
            n, met = side.get(timestamp - JOIN_MS) or (None, True)
            if not met:
                yield (ctx.get_current_key(), None, n) if turned else (ctx.get_current_key(), n, None)
            side.remove(timestamp - JOIN_MS)


class Item(NamedTuple):
    """A record of values whose stored form goes by calendars, digits and zones."""

    day: date
    at: datetime
    price: Decimal
    raw: bytes


class Types_(KeyedProcessFunction):
    """Keeps values of many types, far dates among them, and gives what was kept before."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.item = runtime_context.get_state(ValueStateDescriptor("item", Item))
        self.days = runtime_context.get_map_state(MapStateDescriptor("days", "date", "timestamp"))
        self.prices = runtime_context.get_list_state(ListStateDescriptor("prices", Types.BIG_DEC()))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        before = self.item.value()
        yield (
            value.k,
            before and before.day,
            before and before.at,
            before and before.price,
            before and before.raw,
        )
        self.item.update(Item(value.day, value.at, value.price, value.raw))
        self.days.put(value.day, value.at)
        self.prices.add(value.price)


class Running(VectorizedKeyedFunction):
    """The running sum of a key, over columns."""

    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG(), default=0))

    def process_batch(self, rows: pa.Table, state: pa.Table, ctx: Any) -> VectorizedResult:
        sums, running = dict(zip(state["_key"].to_pylist(), state["sum"].to_pylist(), strict=True)), []
        for key, n in zip(rows["_key"].to_pylist(), rows["n"].to_pylist(), strict=True):
            sums[key] += n
            running.append(sums[key])
        outputs = pa.table({"k": rows["k"], "sum": running, "_row": rows["_row"]})
        changed = pc.unique(rows["_key"])
        of_state = pa.table({"_key": changed, "sum": [sums[key] for key in changed.to_pylist()]})
        return VectorizedResult(outputs=outputs, state=of_state)


class UpTo(SourceFunction, ListCheckpointed):
    """Counts up to a number, from where it was."""

    def __init__(self, end: int) -> None:
        self.end, self.at, self.running = end, 0, True

    def run(self, ctx: Any) -> None:
        while self.running and self.at < self.end:
            with ctx.get_checkpoint_lock():
                ctx.collect(self.at)
                self.at += 1

    def cancel(self) -> None:
        self.running = False

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[int]:
        return [self.at]

    def restore_state(self, state: list[int]) -> None:
        (self.at,) = state


class Raw(KeyedProcessFunction, CheckpointedFunction):
    """Keeps its rows in bytes of its own: of each key group or, where ``of_subtask``, of its subtask."""

    def __init__(self, *, of_subtask: bool) -> None:
        self.of_subtask = of_subtask

    def initialize_state(self, context: Any) -> None:
        groups = {n: json.loads(stored) for n, stored in context.raw_keyed_state}
        self.groups: dict[int, dict[str, list[int]]] = groups
        self.seen = json.loads(context.raw_operator_state.read() or b"[]") if self.of_subtask else []

    def open(self, runtime_context: RuntimeContext) -> None:
        self.max_parallelism = runtime_context.get_max_number_of_parallel_subtasks()

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        group = self.groups.setdefault(assign_to_key_group(value.k, self.max_parallelism), {})
        came = group.setdefault(value.k, [])
        came.append(value.n)
        self.seen.append(value.n)
        yield value.k, len(came), sum(self.seen) if self.of_subtask else sum(came)

    def snapshot_state(self, context: Any) -> None:
        for group, by_key in self.groups.items():
            context.raw_keyed_state.start_key_group(group)
            context.raw_keyed_state.write(json.dumps(by_key, sort_keys=True).encode())
        if self.of_subtask:
            context.raw_operator_state.write(json.dumps(self.seen).encode())


class LinesRead(InputPartition):
    def __init__(self, first: int, end: int) -> None:
        self.first, self.end = first, end


class LinesReader(DataSourceStreamReader):
    """Rows of a file that grows, as far as a limit lets it, in two partitions."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def initialOffset(self) -> dict[str, int]:
        return {"line": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        there = len(self.file.read_text().splitlines())
        most = getattr(limit, "max_rows", there)
        return {"line": min(there, start["line"] + most)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[LinesRead]:
        middle = (start["line"] + end["line"]) // 2
        return [LinesRead(start["line"], middle), LinesRead(middle, end["line"])]

    def read(self, partition: Any) -> Iterator[Any]:
        for line in self.file.read_text().splitlines()[partition.first : partition.end]:
            at, *others = json.loads(line).values()
            yield datetime.fromisoformat(at), *others

    def commit(self, end: dict[str, int]) -> None:
        pass


class Lines(DataSource):
    """One of Spark's Python data sources: the rows of a file, which is an option."""

    def schema(self) -> str:
        return "at timestamp, k string, what string, n bigint"

    def streamReader(self, schema: Any) -> LinesReader:
        return LinesReader(Path(self.options["file"]))


def by_zone(rows: DataFrame) -> DataFrame:
    """Columns that go by options of a session, zones first."""
    noon = "timestamp '2026-01-05 12:00:00'"
    expressions = {
        "hour": "hour(at)", "day": "to_date(at)", "text": "date_format(at, 'yyyy-MM-dd HH:mm:ss zzz')",
        "cast_": "cast(at AS string)", "naive": "cast(cast(at AS timestamp_ntz) AS string)",
        "since_noon": f"unix_timestamp(at) - unix_timestamp({noon})", "month": "cast(trunc(at, 'month') AS string)",
        "parsed": "unix_seconds(to_timestamp(concat('2026-01-05 0', abs(n) % 10, ':30:00')))",
        "week": "weekofyear(at)", "json": "to_json(struct(at, cast(null AS int) AS nothing))",
        "size": "size(cast(null AS array<int>))", "halves": "n / 2", "third": "cast(n AS decimal(38,18)) / 3",
        "cased": "At IS NOT NULL", "quoted": "'a\\\\d' || \"b\"", "bytes": "cast('ab' AS binary)",
        "old": "cast(date '1500-01-01' AS timestamp) < at", "place": "element_at(array(1, 2), -1)",
        "joined": "concat(cast(n AS string), cast(null AS string))", "hashed": "xxhash64(k, n)",
        "least": "least(n, null)", "interval_": "cast(interval '90' minute AS string)",
        "from_json": "cast(from_json('{\"a\":\"05/01/2026\"}', 'a date', map('dateFormat', 'dd/MM/yyyy')) AS string)",
    }  # fmt: skip
    return rows.withColumns({name: F.expr(text) for name, text in expressions.items()})


def running_sum(row: Any, so_far: int | None) -> tuple[tuple[int, int], int]:
    """For ``map_with_state``."""
    total = (so_far or 0) + row.n
    return (row.k, total), total
