"""Gates in whole jobs: verdicts against plain loops, what stops, what is held, and who sees it meanwhile."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSink,
    DeltaStateTable,
    FileSink,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    NoKeyTwice,
    RowsBetween,
    SameSum,
    ShareOfLast,
    SqlSink,
    StateEngine,
    StatefulJob,
    TimePartitions,
    Types,
    ValueStateDescriptor,
)
from state_engine.core.errors import ConfigurationError, GateError
from state_engine.monitoring.job_history import read_history
from state_engine.monitoring.job_status import status_of_history
from state_engine.sinks.bounds import Bound
from state_engine.testing import CollectSink, MemoryRun, run_in_memory
from tests.faults.plane import Fault, InjectedFault, installed

Row = tuple[int, int | None]
Verdict = Callable[[list[Row], list[Row], list[int]], bool]
"""Whether rows of two sinks, and numbers of rows of the micro-batches before, meet a bound."""


def total(rows: list[Row]) -> int:
    return sum(amount or 0 for _, amount in rows)


BOUNDS: dict[str, tuple[Bound, Verdict]] = {
    "rows": (RowsBetween("out", 2, 4), lambda out, other, before: 2 <= len(out) <= 4),
    "at least": (RowsBetween("out", 3), lambda out, other, before: len(out) >= 3),
    "share": (
        ShareOfLast("out", batches=2, least=0.5, most=1.5),
        lambda out, other, before: (
            not sum(before[-2:])
            or 0.5 <= len(out) / (sum(before[-2:]) / len(before[-2:])) <= 1.5
        ),
    ),
    "key": (
        NoKeyTwice("out", ["id"]),
        lambda out, other, before: max(Counter(row[0] for row in out).values(), default=1) == 1,
    ),
    "both": (
        NoKeyTwice("out", ["id", "amount"]),
        lambda out, other, before: max(Counter(out).values(), default=1) == 1,
    ),
    "sum": (
        SameSum("out", "amount", "other"),
        lambda out, other, before: total(out) == total(other),
    ),
    "about": (
        SameSum("out", "amount", "other", tolerance=5),
        lambda out, other, before: abs(total(out) - total(other)) <= 5,
    ),
}  # fmt: skip


def judged_job(bound: Bound, otherwise: Any = "stop", **options: Any) -> StatefulJob:
    job = StatefulJob("judged", **options)
    for name, source in (("out", "left"), ("other", "right")):
        rows = job.source(source, FileSource("/in", schema="id bigint, amount bigint"))
        rows.map(tuple, "id bigint, amount bigint", uid=f"of_{name}").sink(name, CollectSink())
    job.gate("bound", bound, otherwise)
    return job


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", BOUNDS)
def test_a_verdict_is_that_of_a_plain_loop(name: str, seed: int) -> None:
    (bound, meets), rng = BOUNDS[name], random.Random(f"{name} {seed}")
    before: list[int] = []
    seen = Counter[bool]()
    with run_in_memory(judged_job(bound, parallelism=rng.randint(1, 3))) as run:
        for _ in range(10):
            out: list[Row] = [
                (rng.randint(1, 9), rng.choice([None, 1, 2, 3])) for _ in range(rng.randint(0, 5))
            ]
            other: list[Row] = rng.choice([[*out], [*out, (1, 4)], [(1, 9)]])
            if not out and not other:
                continue
            number = len(run.checkpoints())
            met = meets(out, other, before)
            seen[met] += 1
            if met:
                run.process({"left": out, "right": other})
                before.append(len(out))
                (verdict,) = run.checkpoints()[-1].gates
                assert (verdict.name, verdict.bound, verdict.broken) == ("bound", bound.text, "")
            else:
                with pytest.raises(GateError, match="gate 'bound' is broken"):
                    run.process({"left": out, "right": other})
            assert len(run.checkpoints()) == number + met
        assert len(run.sink("out")) == sum(before)


def test_a_bound_knows_the_micro_batch_before_in_the_same_run() -> None:
    job = StatefulJob("shares")
    numbers = job.from_collection(list(range(9)), Types.LONG(), max_rows_per_batch=4)
    numbers.map(lambda value: (value,), "value bigint", uid="rows").sink("out", CollectSink())
    job.gate("steady", ShareOfLast("out", batches=1, least=0.5))
    with run_in_memory(job) as run:
        with pytest.raises(GateError, match=r"1 row is staged, 0\.25 times the mean of 4\.0"):
            run.run()
        assert run.sink("out") == [(n,) for n in range(8)]


def test_what_a_broken_bound_shows() -> None:
    with run_in_memory(judged_job(NoKeyTwice("out", ["id"]))) as run:
        with pytest.raises(GateError) as stopped:
            run.process({"left": [(n // 2, n) for n in range(14)]})
        said = str(stopped.value)
        assert "7 keys come more than once, in 14 rows: " in said
        assert said.count('{"id": ') == 5
        assert stopped.value.rule == "bound"
        (file,) = stopped.value.staged
        assert file in said
        assert pq.read_table(file.removeprefix("file://")).num_rows == 14
        assert run.checkpoints() == []


AMOUNTS = [(1, 5), (2, 5), (1, 500), (3, 700), (4, 1)]


def payments(otherwise: Any = "hold", *, cents: bool = False, parallelism: int = 1) -> StatefulJob:
    """Amounts, and control sums of each micro-batch; the second one came in cents."""
    job = StatefulJob("payments", parallelism=parallelism)
    rows = job.from_collection(AMOUNTS, "id bigint, amount bigint", max_rows_per_batch=2)
    sums = job.from_collection([10, 12, 1], Types.LONG(), name="sums", max_rows_per_batch=1)

    def in_euros(row: Any) -> Any:
        return row.id, row.amount // 100 if cents and row.amount >= 100 else row.amount

    euros = rows.map(in_euros, "id bigint, amount bigint", uid="in_euros")
    euros.sink("out", CollectSink())
    sums.map(lambda value: (value,), "amount bigint", uid="as_row").sink("control", CollectSink())
    euros.key_by("id").sum("amount", uid="totals").sink("totals", CollectSink())
    job.gate("control_sum", SameSum("out", "amount", "control"), otherwise)
    return job


RIGHT = [(1, 5), (2, 5), (1, 5), (3, 7), (4, 1)]


def held(run: MemoryRun) -> GateError:
    with pytest.raises(GateError) as ended:
        run.run()
    return ended.value


def shown(run: MemoryRun) -> list[tuple[int, int]]:
    return sorted(tuple(row) for row in run.sink("out"))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_micro_batch_is_held_and_repaired_by_a_replay(parallelism: int) -> None:
    with run_in_memory(payments(parallelism=parallelism)) as run:
        first = held(run)
        assert first.branch == "held_2"
        assert (
            "gate 'control_sum' is broken (the sum of amount in out is that of amount in control): 1,200 and 12"
            in str(first)
        )
        rows = run.checkpoints()
        assert [(row.branch, row.parent_id) for row in rows] == [("main", None), ("held_2", 1)]
        assert rows[1].gates[0].broken.startswith("1,200 and 12: ")
        assert str(held(run)) == str(first)  # at once: nothing was committed or run
        assert run.checkpoints() == rows
        assert shown(run) == sorted(RIGHT[:2])

        run.restart(payments(cents=True, parallelism=parallelism))
        engine, job = run._engine, run._made.job
        replayed = engine.replay(job, from_checkpoint=1, branch="repaired")
        assert (len(replayed.batches), replayed.main_head_id) == (1, 1)
        assert shown(run) == sorted(RIGHT[:2])
        engine.promote(job, "repaired", expected_head=1)
        assert shown(run) == sorted(RIGHT[:4])
        run.run()
        assert shown(run) == sorted(RIGHT)
        assert (
            run.state("totals", "value" if "value" in _states(run) else next(iter(_states(run)))) is not None
        )


def _states(run: MemoryRun) -> set[str]:
    return run.checkpoints()[-1].state_names("totals")


def test_a_held_micro_batch_is_released_or_dropped() -> None:
    with run_in_memory(payments()) as run:
        assert held(run).branch == "held_2"
        run._engine.promote(run._made.job, "held_2")
        assert shown(run) == sorted(AMOUNTS[:4])
        run.run()
        assert shown(run) == sorted(AMOUNTS)
    with run_in_memory(payments()) as run:
        held(run)
        run._engine.drop_branch(run._made.job, "held_2")
        again = held(run)
        assert again.branch.startswith("held_")
        assert again.branch != "held_2"
        run._engine.drop_branch(run._made.job, again.branch)
        run.restart(payments(cents=True))
        run.run()
        assert shown(run) == sorted(RIGHT)


def test_a_restore_leaves_what_is_held_behind() -> None:
    with run_in_memory(judged_job(RowsBetween("out", 1, 1), "hold")) as run:
        for n in range(2):
            run.process({"left": [(n, n)]})
        with pytest.raises(GateError, match="held on branch 'held_3'"):
            run.process({"left": [(1, 1), (2, 2)]})
        with pytest.raises(GateError, match="held on branch 'held_3'"):
            run.process({"left": [(7, 7)]})
        run.restore(1)
        assert [row.id for row in run.process({"left": [(8, 8)]})["out"]] == [8]


def test_a_replay_on_a_branch_goes_past_a_broken_gate_and_says_so() -> None:
    with run_in_memory(payments()) as run:
        held(run)
        run._engine.promote(run._made.job, "held_2")
        run.run()
        before = shown(run)
        run.replay()
        assert shown(run) == before
        broken = [(row.branch, bool(row.gates[0].broken)) for row in run.checkpoints() if row.gates]
        assert broken == [
            ("main", False), ("held_2", True), ("main", False),
            ("replay_1", False), ("replay_1", True), ("replay_1", False),
        ]  # fmt: skip


def test_the_first_micro_batch_has_nothing_to_be_held_beside() -> None:
    with run_in_memory(judged_job(RowsBetween("out", 1, 1), "hold")) as run:
        with pytest.raises(GateError, match="there is no checkpoint yet that it could be held beside"):
            run.process({"left": [(1, 1), (2, 2)]})
        assert run.checkpoints() == []
        run.process({"left": [(1, 1)]})
        with pytest.raises(GateError, match="held on branch 'held_2'"):
            run.process({"left": [(1, 1), (2, 2)]})


def test_what_cannot_be_a_gate_is_refused_when_the_job_is_built() -> None:
    job = judged_job(RowsBetween("out"))
    job.stream(job.sinks["out"].parent).sink("text", FileSink("/out", format="csv"))
    parted = StatefulJob("parted", partitions=TimePartitions("1 h", start="2024-01-01"))
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: job.gate("bound", RowsBetween("out")), "two gates named 'bound'"),
        (lambda: job.gate("No", RowsBetween("out")), "gate"),
        (lambda: job.gate("a", RowsBetween("missing")), "stages nothing for a sink 'missing'"),
        (lambda: job.gate("a", "out"), "'out' is not a bound"),  # type: ignore[arg-type]
        (lambda: job.gate("a", RowsBetween("out"), "warn"), "otherwise of gate 'a'"),  # type: ignore[arg-type]
        (lambda: job.gate("a", NoKeyTwice("text", ["id"])), "sink 'text' writes CSV"),
        (lambda: parted.gate("a", RowsBetween("out"), "hold"), "hold is for continuous jobs"),
        (lambda: RowsBetween("out", 3, 2), "most not below it"),
        (lambda: ShareOfLast("out", batches=0), "batches must be 1 or more"),
        (lambda: NoKeyTwice("out", []), "key must be a list of columns"),
        (lambda: SameSum("out", "a", "other", tolerance=-1), "tolerance must be 0 or more"),
    ]
    for call, says in refused:
        with pytest.raises(ConfigurationError) as error:
            call()
        assert says in str(error.value)
    job.gate("text_rows", RowsBetween("text"))


class _Totals(KeyedProcessFunction):
    """Sums by account; and by account and day, of which a day without money goes."""

    def open(self, runtime_context: Any) -> None:
        self._total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))
        self._days = runtime_context.get_map_state(MapStateDescriptor("days", Types.STRING(), Types.LONG()))
        self._seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self._total.update((self._total.value() or 0) + value.cents)
        if value.cents:
            self._days.put(value.day, (self._days.get(value.day) or 0) + value.cents)
        elif self._days.contains(value.day):
            self._days.remove(value.day)
        self._seen.add(value.cents)
        yield value


def accounts(*gates: tuple[Bound, str]) -> StatefulJob:
    job = StatefulJob("accounts", parallelism=3)
    rows = job.source("rows", FileSource("/in", schema="account string, day string, cents bigint"))
    totals = rows.key_by("account").process(
        _Totals(), "account string, day string, cents bigint", uid="totals"
    )
    totals.publish_state("total", DeltaStateTable("/published"), name="balances")
    totals.sink("out", CollectSink())
    rows.sink("newest", DeltaSink("/newest", key=["account"]))
    for number, (bound, otherwise) in enumerate(gates):
        job.gate(f"gate_{number}", bound, otherwise)  # type: ignore[arg-type]
    return job


FIRST = [("a", "mon", 1), ("b", "mon", 2), ("a", "tue", 3), ("a", "mon", 4), ("b", "mon", 0)]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("balances", [{"account": "a", "value": 8}, {"account": "b", "value": 2}]),
        ("totals.total", [{"account": "a", "value": 8}, {"account": "b", "value": 2}]),
        (
            "totals.days",
            [{"account": "a", "map_key": "mon", "value": 5}, {"account": "a", "map_key": "tue", "value": 3}],
        ),
        (
            "newest",
            [
                {"account": "a", "day": "mon", "cents": 4},
                {"account": "b", "day": "mon", "cents": 0},
            ],
        ),
    ],
)
def test_a_gate_of_a_state_sees_the_entries_that_change_as_they_will_be(
    name: str, rows: list[dict[str, Any]]
) -> None:
    seen: list[list[dict[str, Any]]] = []

    class Looks(RowsBetween):
        def breach(self, staged: Any) -> Any:
            table = staged.table(self.sink, None)
            assert staged.rows(self.sink) == table.num_rows
            seen.append(sorted(table.to_pylist(), key=str))
            return None

    with run_in_memory(accounts((Looks(name), "stop"))) as run:
        run.process({"rows": FIRST})
        run.process({"rows": [("c", "wed", 7)]})
    assert seen[0] == rows
    (row,) = seen[1]
    assert row["account"] == "c"
    assert 7 in row.values()


def test_a_state_that_breaks_a_gate_is_not_committed_or_held() -> None:
    balances = _Below("balances", 100, column="value")
    with run_in_memory(accounts((balances, "hold"), (RowsBetween("totals.days", 0, 3), "stop"))) as run:
        run.process({"rows": FIRST})
        with pytest.raises(GateError, match=r"held on branch 'held_2'.*1 amounts: .\"value\": 101"):
            run.process({"rows": [("b", "mon", 99)]})
        assert [row.value for row in run.table("balances")] == [8, 2]
    with run_in_memory(accounts((RowsBetween("totals.days", 0, 3), "stop"))) as run:
        with pytest.raises(GateError, match=r"totals\.days has 0 to 3 rows.*4 rows are staged") as stopped:
            run.process({"rows": [("a", day, 1) for day in ("mon", "tue", "wed", "thu")]})
        assert run.checkpoints() == []
        assert stopped.value.staged == []


def test_what_a_state_cannot_show_to_a_gate_is_refused() -> None:
    for name in ("balances", "newest", "totals.total"):
        with pytest.raises(ConfigurationError, match=f"'{name}' shows a state.*use RowsBetween"):
            accounts((ShareOfLast(name), "stop"))
    for name, says in (
        ("totals.seen", "'seen' of operator 'totals', a list"),
        ("totals.gone", r"'gone' of operator 'totals', which asked for \['days', 'seen', 'total'\]"),
    ):
        with run_in_memory(accounts((RowsBetween(name), "stop"))) as run:
            with pytest.raises(ConfigurationError, match=says):
                run.process({"rows": FIRST})
            assert run.checkpoints() == []
    with (
        run_in_memory(accounts((NoKeyTwice("balances", ["cents"]), "stop"))) as run,
        pytest.raises(ConfigurationError, match=r"the columns \['cents'\] of 'balances', which has"),
    ):
        run.process({"rows": FIRST})


def test_a_column_that_a_sink_does_not_have_ends_the_micro_batch() -> None:
    with run_in_memory(judged_job(NoKeyTwice("out", ["missing"]))) as run:
        with pytest.raises(ConfigurationError, match="a gate reads the columns \\['missing'\\] of 'out'"):
            run.process({"left": [(1, 1)]})
        assert run.checkpoints() == []


# -- readers -----------------------------------------------------------------------------------------------------------


class Outputs:
    """A job with an output of each kind, and all that readers see of them."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.directory, self.spark = directory, spark
        (directory / "in").mkdir()

    def job(self, *, cents: bool) -> StatefulJob:
        job, at = StatefulJob("payments"), self.directory
        source = FileSource(
            f"{at}/in", format="json", schema="id bigint, amount bigint", max_files_per_batch=1
        )
        rows = job.source("rows", source)

        def in_euros(row: Any) -> Any:
            return row.id, row.amount // 100 if cents and row.amount >= 1000 else row.amount

        euros = rows.map(in_euros, "id bigint, amount bigint", uid="in_euros")
        euros.sink("delta", DeltaSink(f"{at}/delta"))
        euros.sink("files", FileSink(f"{at}/files"))
        euros.sink("sql", SqlSink(f"sqlite:///{at}/out.db", "paid"))
        euros.sink("newest", DeltaSink(f"{at}/newest", key=["id"]))
        euros.sink("newest_sql", SqlSink(f"sqlite:///{at}/out.db", "newest", key=["id"]))
        job.gate("share", ShareOfLast("delta", most=10))
        job.gate("no_key_twice", NoKeyTwice("delta", ["id"]))
        job.gate("amounts", _Below("delta", 1000), "hold")
        return job

    def put(self, name: str, *rows: tuple[int, int]) -> None:
        lines = "".join(f'{{"id": {i}, "amount": {amount}}}\n' for i, amount in rows)
        (self.directory / "in" / f"{name}.json").write_text(lines)

    def engine(self) -> StateEngine:
        return StateEngine(self.directory / "root", self.spark)

    def seen(self) -> dict[str, list[tuple[int, int]]]:
        at, seen = self.directory, {}
        for name in ("delta", "newest"):
            rows = self.spark.read.format("delta").load(f"{at}/{name}").select("id", "amount").collect()
            seen[name] = sorted(map(tuple, rows))
        files = [
            file
            for file in (at / "files").rglob("*.parquet")
            if not any(part.startswith(("_", ".")) for part in file.relative_to(at / "files").parts)
        ]
        rows = [row for file in files for row in pq.ParquetFile(file).read(["id", "amount"]).to_pylist()]
        seen["files"] = sorted((row["id"], row["amount"]) for row in rows)
        with sqlite3.connect(f"file:{at}/out.db?mode=ro", uri=True, timeout=30) as db:
            known = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
            for table_name, name in (("paid", "sql"), ("newest", "newest_sql")):
                if table_name in known:
                    seen[name] = sorted(db.execute(f"SELECT id, amount FROM {table_name}"))
        db.close()
        return seen


class _Below(RowsBetween):
    """No amount of a bound or more: a bound of one's own."""

    def __init__(self, sink: str, limit: int, *, column: str = "amount") -> None:
        super().__init__(sink, 0)
        object.__setattr__(self, "limit", limit)
        object.__setattr__(self, "column", column)

    @property
    def columns(self) -> Any:
        return {self.sink: (self.column,)}  # type: ignore[attr-defined]

    def breach(self, staged: Any) -> Any:
        from state_engine.sinks.bounds import Breach

        column: str = self.column  # type: ignore[attr-defined]
        amounts = staged.table(self.sink, [column])[column].to_pylist()
        above = [amount for amount in amounts if amount >= self.limit]  # type: ignore[attr-defined]
        return Breach(f"{len(above)} amounts", tuple({column: a} for a in above[:5])) if above else None


@pytest.mark.spark
def test_no_reader_sees_a_row_of_what_is_held_and_three_commands_mend_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    out = Outputs(tmp_path, spark)
    out.put("1", (1, 50), (2, 60))
    with out.engine() as engine:
        engine.run(out.job(cents=False))
        good = out.seen()
        assert good["sql"] == good["newest"] == [(1, 50), (2, 60)]
        out.put("2", (1, 7000), (3, 9000))  # a unit off by 100
        problems: list[Any] = []
        seen: list[Any] = []
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                try:
                    seen.append(out.seen())
                except Exception as error:
                    problems.append(error)
                stop.wait(0.01)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for _ in range(2):
                with pytest.raises(GateError) as ended:
                    engine.run(out.job(cents=False))
            assert ended.value.branch == "held_2"
            for command in ("compare payments held_2", "promote payments held_2", "create payments --from 1"):
                assert f"statelake branch {command}" in str(ended.value)
            history = read_history(f"{tmp_path}/root", "payments")
            status = status_of_history(
                "payments", history, job=None, now_ms=10**13, stuck_after=timedelta(hours=1)
            )
            assert (status.state, status.exit_code, status.held) == ("held", 1, str(ended.value))
            plan = engine.plan(out.job(cents=False))
            assert [part.texts for part in plan.of("refused")] == [(str(ended.value),)]
            repaired = out.job(cents=True)
            replayed = engine.replay(repaired, from_checkpoint=1, branch="repaired")
            compared = engine.compare("payments", "repaired")
            assert not compared.is_equal
            count = len(seen)
            while len(seen) < count + 3 and reader.is_alive():  # the reader read after all this
                stop.wait(0.01)
        finally:
            stop.set()
            reader.join()
        assert problems == []
        assert all(one == good for one in seen)
        assert len(seen) > 3
        engine.promote(repaired, "repaired", expected_head=replayed.main_head_id)
        after = [(1, 50), (1, 70), (2, 60), (3, 90)]
        last = [(1, 70), (2, 60), (3, 90)]
        assert out.seen() == {
            "delta": after, "files": after, "sql": after, "newest": last, "newest_sql": last,
        }  # fmt: skip
        out.put("3", (4, 10))
        engine.run(repaired)
        assert out.seen()["newest"] == [*last, (4, 10)]
        gates = engine.sql("payments", "SELECT checkpoint_id FROM gates WHERE broken IS NOT NULL").collect()
        assert [row.checkpoint_id for row in gates] == [2]


@pytest.mark.spark
def test_what_a_gate_stops_leaves_no_state_and_its_outputs_can_be_read(
    tmp_path: Path, spark: SparkSession
) -> None:
    out = Outputs(tmp_path, spark)
    out.put("1", (1, 50), (2, 60))
    with out.engine() as engine:
        engine.run(out.job(cents=False))
        state = {path for path in (tmp_path / "root").rglob("*.parquet") if "sinks" not in path.parts}
        out.put("2", (1, 7), (1, 8))
        with pytest.raises(GateError) as stopped:
            engine.run(out.job(cents=False))
        assert stopped.value.rule == "no_key_twice"
        assert {path for path in (tmp_path / "root").rglob("*.parquet") if "sinks" not in path.parts} == state
        (file,) = (Path(one.removeprefix("file://")) for one in stopped.value.staged)
        assert pq.ParquetFile(file).read(["id"]).to_pylist() == [{"id": 1}, {"id": 1}]


POINTS = [
    f"{when} {step}"
    for step in ("plan", "execute", "judge", "commit_files", "stage", "commit", "publish")
    for when in ("before", "after")
]


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_around_a_verdict_shows_nothing_and_holds_it_once(point: str) -> None:
    with run_in_memory(payments()) as run:
        run.run(max_batches=1)
        with installed([Fault(point)]), pytest.raises((InjectedFault, GateError)):
            run.run()
        assert shown(run) == sorted(RIGHT[:2])
        branch = held(run).branch
        assert shown(run) == sorted(RIGHT[:2])
        rows = [row for row in run.checkpoints() if row.branch != "main"]
        assert [row.branch for row in rows] == [branch]
        run._engine.promote(run._made.job, branch)
        assert shown(run) == sorted(AMOUNTS[:4])
