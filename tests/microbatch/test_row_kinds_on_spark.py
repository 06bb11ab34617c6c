"""Kinds of rows on Spark: routed by the driver and by tasks, between operators, in dead letters, in sinks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine import (
    ForeachBatchSink,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    Row,
    RowKind,
    StateEngine,
    StatefulJob,
    TimePartitions,
    ValueStateDescriptor,
)
from state_engine.core.errors import ConfigurationError
from state_engine.sources.row_kinds import kinds_of
from state_engine.sources.stream_columns import ROW_KIND
from tests.support.changes import (
    ACCOUNT,
    TOTAL,
    Change,
    Totals,
    as_rows,
    history,
    kinds_and_values,
    totals_of,
)
from tests.support.limits import SetLimits

pytestmark = pytest.mark.spark
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
