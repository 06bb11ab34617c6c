"""Kinds of rows through whole jobs in memory, cut anywhere, against a plain loop."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine import (
    BroadcastProcessFunction,
    FileSink,
    FileSource,
    ForeachBatchSink,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    Row,
    RowKind,
    StateEngine,
    StatefulJob,
    TimePartitions,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from state_engine.core.errors import ConfigurationError, UserFunctionError, ValueTypeError
from state_engine.sources.stream_columns import ROW_KIND, kinds_of
from state_engine.testing import CollectSink, run_in_memory
from tests.support.changes import (
    ACCOUNT,
    TOTAL,
    Change,
    Totals,
    applied,
    as_rows,
    history,
    kinds_and_values,
    totals_of,
)
from tests.support.limits import SetLimits

INSERT, BEFORE, AFTER, DELETE = RowKind


class Account(NamedTuple):
    """An account, as an element that is no Row."""

    id: int
    owner: str
    amount: int


def kept(account: Any) -> bool:
    return bool(account.id % 5)


def spread(account: Any) -> list[Any]:
    return [account] * (1 + account.id % 2)


def chain(changes: list[Change], *, parallelism: int, cut: int | None, typed: bool) -> StatefulJob:
    """filter, flat_map, map, a keyed process function, and a map in one subtask, which sees the total order."""
    job = StatefulJob("totals", parallelism=parallelism)
    elements = (
        [(kind, values) for kind, values in changes] if typed else as_rows(changes, "id", "owner", "amount")
    )
    kind: Any = Account if typed else ACCOUNT
    source = job.from_collection(elements, kind, changing=True, max_rows_per_batch=cut)
    doubled = source.filter(kept).flat_map(spread, kind).map(lambda a: (a.id, a.owner, a.amount * 2), kind)
    doubled.sink("doubled", CollectSink())
    totals = doubled.key_by("owner").process(Totals(), TOTAL, uid="totals")
    totals.sink("totals", CollectSink())
    last = totals.map(lambda total: (total.owner, -total.total), TOTAL).set_parallelism(1)
    last.sink("last", CollectSink())
    return job


def model(changes: list[Change]) -> tuple[list[Change], list[Change]]:
    """Accounts as the chain doubles them, and their totals, negated."""
    doubled = [
        (kind, (id, owner, amount * 2))
        for kind, (id, owner, amount) in changes
        if id % 5
        for _ in range(1 + id % 2)
    ]
    return doubled, [(kind, (owner, -total)) for kind, (owner, total) in totals_of(doubled)]


@pytest.mark.parametrize("typed", [False, True], ids=["rows", "tuples"])
@pytest.mark.parametrize("seed", range(6))
def test_a_chain_of_operators_equals_a_plain_loop_whatever_the_cut_and_the_parallelism(
    seed: int, typed: bool
) -> None:
    changes, random = history(seed, 36), Random(seed)
    doubled, totals = model(changes)
    job = chain(changes, parallelism=1 + seed % 3, cut=random.choice([None, 5, 9, 20]), typed=typed)
    with run_in_memory(job) as run:
        run.run()
        assert sorted(kinds_and_values(run.sink("doubled")), key=repr) == sorted(doubled, key=repr)
        assert kinds_and_values(run.sink("last")) == totals
        state = {owner: (total, accounts) for owner, (total, accounts) in run.state("totals", "sum").items()}
        table = applied(doubled)
        assert state == {
            owner: (sum(a for _, o, a in table if o == owner), sum(o == owner for _, o, _ in table))
            for owner in {o for _, o, _ in table}
        }


@pytest.mark.parametrize("seed", range(2))
def test_a_restore_and_a_replay_give_the_same_kinds(seed: int) -> None:
    changes = history(seed, 40)
    _, totals = model(changes)
    with run_in_memory(chain(changes, parallelism=2, cut=12, typed=False)) as run:
        run.run()
        assert kinds_and_values(run.sink("last")) == totals
        run.restore(2)
        run.run()
        assert kinds_and_values(run.sink("last")) == totals
        run.replay()
        assert kinds_and_values(run.sink("last")) == totals
        run.replay(rebatch=True)
        assert kinds_and_values(run.sink("last")) == totals


def test_a_union_with_a_stream_of_inserts_and_a_batch_of_only_these() -> None:
    job = StatefulJob("united")
    changes = job.from_collection([(DELETE, 1), (AFTER, 2)], int, name="changes", changing=True)
    plain = job.source("plain", FileSource("/nowhere", schema="value bigint"))
    kinds = changes.map(lambda v: (v,), "value bigint").union(plain)
    kinds.sink("direct", CollectSink())
    kinds.map(lambda row: row.value, int).sink("mapped", CollectSink())
    with run_in_memory(job) as run:
        first = run.process({"plain": [(7,)]})
        assert kinds_and_values(first["direct"]) == [(DELETE, (1,)), (AFTER, (2,)), (INSERT, (7,))]
        assert first["mapped"] == [(DELETE, 1), (AFTER, 2), (INSERT, 7)]
        second = run.process({"plain": [(8,)]})
        assert kinds_and_values(second["direct"]) == [(INSERT, (8,))]
        assert second["mapped"] == [(INSERT, 8)]


def test_a_users_column_keeps_any_name() -> None:
    names = "row_kind string, kind bigint, get_row_kind bigint"
    job = StatefulJob("names")
    rows = [Row.of_kind(DELETE, row_kind="x", kind=1, get_row_kind=2)]
    stream = job.from_collection(rows, names, changing=True).filter(lambda row: row.row_kind == "x")
    stream.sink("out", CollectSink())
    with run_in_memory(job) as run:
        (row,) = run.process()["out"]
        assert (row.as_dict(), row.get_row_kind()) == (
            {"row_kind": "x", "kind": 1, "get_row_kind": 2},
            DELETE,
        )


def test_a_projection_and_table_code_keep_the_kinds() -> None:
    def code(rows: Any) -> Any:
        return rows

    def loses(rows: Any) -> Any:
        return rows

    def doubled(rows: pa.Table) -> pa.Table:
        return rows.set_column(0, "owner", pc.add(rows["owner"], 1))

    job = StatefulJob("coded")
    rows = [Row.of_kind(kind, 1, 2) for kind in RowKind]
    stream = job.from_collection(rows, "id bigint, owner bigint", changing=True)
    projected = stream.project(1).transform(code)
    projected.sink("direct", CollectSink())
    projected.map(lambda row: row.owner, int).sink("mapped", CollectSink())
    with run_in_memory(job, transforms={code: doubled}) as run:
        outputs = run.process()
        assert kinds_and_values(outputs["direct"]) == [(kind, (3,)) for kind in RowKind]
        assert outputs["mapped"] == [(kind, 3) for kind in RowKind]
    other = StatefulJob("loses")
    lossy = other.from_collection(rows, "id bigint, owner bigint", changing=True).transform(loses)
    lossy.map(lambda row: row.id, int).sink("out", CollectSink())
    with (
        run_in_memory(other, transforms={loses: lambda t: t.drop_columns(["_statelake_row_kind"])}) as run,
        pytest.raises(ConfigurationError, match="_statelake_row_kind"),
    ):
        run.process()


RULES = MapStateDescriptor("rules", int, str)


class Rules(BroadcastProcessFunction):
    """Rules come and go; an element puts out those that hold."""

    accepts_changes = True

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        rules = ctx.get_broadcast_state(RULES)
        if ctx.row_kind() in (DELETE, BEFORE):
            rules.remove(value.id)
        else:
            rules.put(value.id, value.rule)

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield f"{value} {sorted(rule for _, rule in ctx.get_broadcast_state(RULES).items())}"


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rules_that_change_beside_elements(parallelism: int) -> None:
    job = StatefulJob("rules", parallelism=parallelism)
    kinds = [INSERT, INSERT, BEFORE, AFTER, DELETE]
    ids, names = [1, 2, 1, 1, 2], ["a", "b", "a", "c", "b"]
    changed = [Row.of_kind(k, id=i, rule=n) for k, i, n in zip(kinds, ids, names, strict=True)]
    rules = job.from_collection(
        changed, "id bigint, rule string", name="rules", changing=True, max_rows_per_batch=1
    )
    numbers = job.from_collection(range(5), int, name="numbers", max_rows_per_batch=1)
    shown = numbers.connect(rules.broadcast(RULES)).process(Rules(), str, uid="shown")
    shown.sink("out", CollectSink())
    with run_in_memory(job) as run:
        run.run()
        expected = ["0 ['a']", "1 ['a', 'b']", "2 ['b']", "3 ['b', 'c']", "4 ['c']"]
        assert run.sink("out") == expected


def test_key_selectors_and_timestamp_assigners_see_the_kind_of_a_row() -> None:
    class Times(KeyedProcessFunction):
        accepts_changes = True

        def process_element(self, value: Any, ctx: Any) -> Any:
            yield f"{ctx.get_current_key()} {ctx.timestamp()} {ctx.row_kind()}"

    job = StatefulJob("times")
    rows = [Row.of_kind(kind, id=at) for at, kind in enumerate(RowKind)]
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda row, _: 100 * row.get_row_kind().value
    )
    stream = job.from_collection(rows, "id bigint", changing=True).map(lambda row: row, "id bigint")
    keyed = stream.assign_timestamps_and_watermarks(strategy).key_by(
        lambda row: str(row.get_row_kind()), key_type=str
    )
    keyed.process(Times(), str, uid="times").sink("out", CollectSink())
    with run_in_memory(job) as run:
        assert run.process()["out"] == ["+I 0 +I", "-U 100 -U", "+U 200 +U", "-D 300 -D"]


def test_a_refused_element_has_its_kind_in_the_error() -> None:
    class Refuses(ProcessFunction):
        accepts_changes = True

        def process_element(self, value: Any, ctx: Any) -> Any:
            raise ValueError("no")

    job = StatefulJob("refuses")
    job.from_collection([(DELETE, 1)], int, changing=True).process(Refuses(), int, uid="refuses")
    with run_in_memory(job) as run, pytest.raises(UserFunctionError, match=r"row 0, -D"):
        run.process()


def test_a_process_function_that_is_given_inserts_may_put_out_changes() -> None:
    class Latest(KeyedProcessFunction):
        emits_changes = True

        def process_element(self, value: Any, ctx: Any) -> Any:
            yield BEFORE, value - 1
            yield AFTER, value

    job = StatefulJob("latest")
    stream = job.from_collection([5], int).key_by(lambda value: 0, key_type=int)
    stream.process(Latest(), int, uid="latest").map(str, str).sink("out", CollectSink())
    with run_in_memory(job) as run:
        assert run.process()["out"] == [(BEFORE, "4"), (AFTER, "5")]


def test_rows_that_a_test_gives_a_source_that_changes() -> None:
    class Feed(FileSource):
        changing = True

    job = StatefulJob("feed")
    feed = job.source("feed", Feed("/nowhere", schema="id bigint"))
    feed.map(lambda row: row.id, int).sink("out", CollectSink())
    with run_in_memory(job) as run:
        rows = [Row.of_kind(DELETE, id=1), (AFTER, (2,)), (3,)]
        assert run.process({"feed": rows})["out"] == [(DELETE, 1), (AFTER, 2), (INSERT, 3)]


def test_a_collection_without_kinds_takes_inserts_only() -> None:
    job = StatefulJob("inserts")
    with pytest.raises(ValueTypeError, match=r"its row kind is -D"):
        job.from_collection([Row.of_kind(DELETE, id=1)], "id bigint")
    with pytest.raises(ConfigurationError, match=r"a FileSink takes inserts only.*\(from source"):
        job.from_collection([(DELETE, 1)], int, changing=True).sink("files", FileSink("/nowhere"))


INSERT, BEFORE, AFTER, DELETE = RowKind
LOW = OutputTag("low", ACCOUNT)
RECEIVED: dict[str, list[Change]] = {}


def received(name: str) -> ForeachBatchSink:
    RECEIVED[name] = []

    def receive(rows: Any, checkpoint_id: int) -> None:
        table = rows.toArrow() if isinstance(rows, DataFrame) else rows
        assert table.column_names[-1] == ROW_KIND
        values = zip(*(table[c].to_pylist() for c in table.column_names[:-1]), strict=True)
        RECEIVED[name] += zip(kinds_of(table), values, strict=True)

    return ForeachBatchSink(receive, name=name, accepts_changes=True)


def doubled(rows: DataFrame) -> DataFrame:
    assert rows.columns == ["id", "owner", "amount"]
    return rows.select("id", "owner", (F.col("amount") * 2).alias("amount"))


class Apart(ProcessFunction):
    accepts_changes = emits_changes = True

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield (LOW, value) if value.amount < 4 else value


def job_of(changes: list[Change], name: str, *, cut: int | None, parallelism: int = 2) -> StatefulJob:
    """DataFrame code, an operator with a side output, and one chained behind either output."""
    job = StatefulJob("kinds", parallelism=parallelism)
    rows = as_rows(changes, "id", "owner", "amount")
    source = job.from_collection(rows, ACCOUNT, changing=True, max_rows_per_batch=cut)
    accounts = source.transform(doubled)
    accounts.sink("accounts", received(f"{name}_accounts"))
    parted = accounts.process(Apart(), ACCOUNT, uid="apart")
    parted.sink("high", received(f"{name}_high"))
    for place, stream in (("high", parted), ("low", parted.get_side_output(LOW))):
        totals = stream.key_by("owner").process(Totals(), TOTAL, uid=f"totals_of_{place}")
        totals.filter(lambda total: True).set_parallelism(1).sink(
            f"{place}_totals", received(f"{name}_{place}_totals")
        )
    return job


@pytest.mark.parametrize(("few_rows", "cut"), [(20_000, 25), (-1, None)], ids=["driver", "tasks"])
def test_a_chain_with_a_side_output_equals_a_plain_loop(
    tmp_path: Path, spark: SparkSession, limits: SetLimits, few_rows: int, cut: int | None
) -> None:
    limits(rows=few_rows)
    changes, name = history(3, 40), f"few_{few_rows + 1}"
    job = job_of(changes, name, cut=cut)
    accounts = [(kind, (i, owner, amount * 2)) for kind, (i, owner, amount) in changes]
    high = [one for one in accounts if one[1][2] >= 4]
    with StateEngine(tmp_path / "root", spark) as engine:
        engine.run(job)
        assert sorted(RECEIVED[f"{name}_accounts"], key=repr) == sorted(accounts, key=repr)
        assert sorted(RECEIVED[f"{name}_high"], key=repr) == sorted(high, key=repr)
        assert RECEIVED[f"{name}_high_totals"] == totals_of(high)
        assert RECEIVED[f"{name}_low_totals"] == totals_of(one for one in accounts if one[1][2] < 4)
        if few_rows > 0:
            report = engine.replay(job)
            assert engine.compare(job, report.branch).is_equal


def test_collect_gives_rows_of_their_kind_and_pairs(spark: SparkSession) -> None:
    job = StatefulJob("collected")
    rows = [Row.of_kind(kind, id=at) for at, kind in enumerate(RowKind)]
    stream = job.from_collection(rows, "id bigint", changing=True)
    assert kinds_and_values(stream.collect(spark=spark)) == [(kind, (at,)) for at, kind in enumerate(RowKind)]
    mapped = stream.map(lambda row: row.id, int)
    with mapped.execute_and_collect(spark=spark) as elements:
        assert list(elements) == [(kind, at) for at, kind in enumerate(RowKind)]


class Strict(KeyedProcessFunction):
    """Totals of an owner; the old version refuses what takes away."""

    accepts_changes = True

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict

    def open(self, runtime_context: Any) -> None:
        self._sum = runtime_context.get_state(ValueStateDescriptor("sum", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Any:
        if self._strict and ctx.row_kind() in (BEFORE, DELETE):
            raise ValueError("cannot take away")
        assert value.get_row_kind() is ctx.row_kind()
        self._sum.update(
            self._sum.value() + (value.amount if ctx.row_kind() in (INSERT, AFTER) else -value.amount)
        )


def strict_job(changes: list[Change], *, strict: bool, changing: bool = True) -> StatefulJob:
    job = StatefulJob("strict", parallelism=2, on_error="dead_letter")
    rows = as_rows(changes, "id", "owner", "amount") if changing else []
    passed = job.from_collection(rows, ACCOUNT, changing=changing).filter(lambda account: account.id >= 0)
    passed.key_by("owner").process(Strict(strict=strict), int, uid="strict")
    return job


def test_dead_letters_that_are_sent_again_keep_their_kind(tmp_path: Path, spark: SparkSession) -> None:
    changes = history(5, 40)
    taken_away = [values for kind, values in changes if kind in (BEFORE, DELETE)]
    with StateEngine(tmp_path / "root", spark) as engine:
        engine.run(strict_job(changes, strict=True))
        letters = engine.list_dead_letters(strict_job(changes, strict=True))
        assert len(letters) == len(taken_away)
        assert {str(letter.position).rsplit(", ")[-1] for letter in letters} == {"-U", "-D"}
        assert engine.replay_dead_letters(strict_job(changes, strict=False)).refused == 0
        state = {row.owner: row.value for row in engine.read_state("strict", "strict", "sum").collect()}
    expected: dict[str, int] = {}
    for kind, (_, owner, amount) in changes:
        expected[owner] = expected.get(owner, 0) + (amount if kind in (INSERT, AFTER) else -amount)
    assert state == expected


def test_a_letter_that_is_no_insert_is_not_sent_to_a_stream_of_inserts(
    tmp_path: Path, spark: SparkSession
) -> None:
    changes: list[Change] = [(INSERT, (1, "a", 5)), (DELETE, (1, "a", 5))]
    with StateEngine(tmp_path / "root", spark) as engine:
        engine.run(strict_job(changes, strict=True))
        plain = strict_job(changes, strict=True, changing=False)
        (letter,) = engine.list_dead_letters(plain)
        with pytest.raises(ConfigurationError, match=r"it is of kind -D, .* operator 'strict' reads holds"):
            engine.replay_dead_letters(plain, ids=[letter.id])


@pytest.mark.parametrize("order_by", [None, ["id"]])
def test_a_transform_that_makes_rows_without_kinds_is_refused(
    tmp_path: Path, spark: SparkSession, order_by: list[str] | None
) -> None:
    job = StatefulJob("drops")
    changed = job.from_collection([Row.of_kind(DELETE, id=1)], "id bigint", changing=True)
    new = changed.transform(
        lambda rows: rows.mapInArrow(lambda batches: batches, rows.schema), order_by=order_by
    )
    new.map(lambda row: row.id, int)
    with (
        StateEngine(tmp_path / "root", spark) as engine,
        pytest.raises(
            ConfigurationError, match=r"makes new rows .*kinds of the rows and their order are lost"
        ),
    ):
        engine.run(job)


def test_time_partitions_take_each_row_by_its_own_time(tmp_path: Path, spark: SparkSession) -> None:
    from datetime import UTC, datetime, timedelta

    first = datetime(2026, 1, 1, tzinfo=UTC)
    days = [first + timedelta(days=day) for day in range(3)]
    rows = [
        Row(id=1, at=days[0]),
        Row.of_kind(BEFORE, id=1, at=days[0]),
        Row.of_kind(AFTER, id=1, at=days[1]),
        Row.of_kind(DELETE, id=1, at=days[1]),
        Row(id=2, at=days[2]),
    ]
    job = StatefulJob("days", partitions=TimePartitions("at", every="day", start="2026-01-01"))
    changed = job.from_collection(rows, "id bigint, at timestamp", changing=True)
    changed.map(lambda row: row.id, int).sink("ids", received("days"))
    with StateEngine(tmp_path / "root", spark) as engine:
        engine.run(job, clock=int((first + timedelta(days=3)).timestamp() * 1000))
    assert RECEIVED["days"] == [
        (INSERT, (1,)), (BEFORE, (1,)), (AFTER, (1,)), (DELETE, (1,)), (INSERT, (2,)),
    ]  # fmt: skip


def test_unions_of_tables_and_tasks_and_key_selectors(
    tmp_path: Path, spark: SparkSession, limits: SetLimits
) -> None:
    limits(rows=-1)
    job = StatefulJob("united", parallelism=2)
    changed = job.from_collection(
        [Row.of_kind(kind, id=at) for at, kind in enumerate(RowKind)],
        "id bigint",
        name="changed",
        changing=True,
    )
    plain = job.from_collection([Row(id=9)], "id bigint", name="plain")
    united = changed.union(plain)
    keyed = united.key_by(lambda row: str(row.get_row_kind()), key_type=str)
    keyed.process(Kinds(), str, uid="kinds").set_parallelism(1).sink("kinds", received_texts("united"))
    united.sink("rows", received("rows"))
    with StateEngine(tmp_path / "root", spark) as engine:
        engine.run(job)
    assert TEXTS == ["+I +I", "-U -U", "+U +U", "-D -D", "+I +I"]
    assert sorted(RECEIVED["rows"], key=repr) == sorted(
        [*((kind, (at,)) for at, kind in enumerate(RowKind)), (INSERT, (9,))], key=repr
    )


TEXTS: list[str] = []


def received_texts(name: str) -> ForeachBatchSink:
    return ForeachBatchSink(lambda rows, checkpoint_id: TEXTS.extend(rows["value"].to_pylist()), name=name)


class Kinds(KeyedProcessFunction):
    accepts_changes = True

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield f"{ctx.get_current_key()} {ctx.row_kind()}"


def test_print_shows_the_kind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, spark: SparkSession
) -> None:
    job = StatefulJob("printed_kinds")
    job.from_collection([(DELETE, 7), 8], int, changing=True).print()
    rows = job.from_collection([Row.of_kind(AFTER, id=7)], "id bigint", name="rows", changing=True)
    rows.print("rows")
    with StateEngine(tmp_path / "root", spark) as engine:
        engine.run(job)
    assert sorted(capsys.readouterr().out.split()) == ["+I8", "+URow(id=7)", "-D7", "rows>"]
