"""Aggregates of streams that change, in whole jobs in memory: cut anywhere, they are those of the rows left."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import pytest

from state_engine import (
    AggregateFunction,
    DataStream,
    FileSource,
    ReduceFunction,
    Row,
    RowKind,
    StatefulJob,
    avg,
    count,
    max_,
    min_,
    sum_,
)
from state_engine.core.errors import ConfigurationError, StateMigrationError, UserFunctionError
from state_engine.job.declared_states import declared_states
from state_engine.operators.retraction import takes_back
from state_engine.testing import CollectSink, MemoryRun, run_in_memory
from tests.operators.payments import (
    ALL,
    PAYMENT,
    Change,
    history,
    left_of,
    plain,
    recomputed,
)
from tests.support.changes import ACCOUNT, as_rows, kinds_and_values
from tests.support.changes import history as accounts

INSERT, BEFORE, AFTER, DELETE = RowKind
Build = Callable[[DataStream], DataStream]


def job_of(
    changes: Iterable[Change],
    build: Build,
    *,
    columns: str = PAYMENT,
    cut: int | None = None,
    parallelism: int = 1,
    **options: Any,
) -> StatefulJob:
    job = StatefulJob("payments", parallelism=parallelism, **options)
    names = [column.split()[0] for column in columns.split(", ")]
    rows = as_rows(changes, *names)
    stream = job.from_collection(rows, columns, name="rows", changing=True, max_rows_per_batch=cut)
    build(stream).sink("out", CollectSink())
    return job


def table_of(run: MemoryRun, keys: int = 1) -> dict[Any, tuple[Any, ...]]:
    """What the sink's changes lead to: each row that is replaced or deleted is there as it is said to be."""
    table: dict[Any, tuple[Any, ...]] = {}
    for kind, row in kinds_and_values(run.sink("out")):
        if takes_back(kind):
            assert repr(table.pop(row[:keys])) == repr(row)
        else:
            assert row[:keys] not in table
            table[row[:keys]] = row
    return table


def of_users(stream: DataStream) -> DataStream:
    return stream.key_by("user").aggregate(**ALL).uid("users")  # type: ignore[call-overload]


def state_of(rows: Iterable[tuple[Any, ...]]) -> str:
    """The state that these rows alone leave."""
    with run_in_memory(job_of([(INSERT, row) for row in rows], of_users)) as run:
        run.run()
        return shown(run)


def shown(run: MemoryRun) -> str:
    states = {name: run.state("users", name) for name in ("aggregates", "values_n", "values_x")}
    return repr({name: sorted((k, ordered(v)) for k, v in of.items()) for name, of in states.items()})


def ordered(value: Any) -> Any:
    return sorted(value.items()) if isinstance(value, dict) else value


@pytest.mark.parametrize("seed", range(6))
def test_any_history_cut_anywhere_leaves_results_and_state_of_the_rows_left(seed: int) -> None:
    changes, random = list(history(seed, 50)), Random(seed)
    job = job_of(changes, of_users, cut=random.randrange(5, 40), parallelism=1 + seed % 3)
    with run_in_memory(job) as run:
        run.run()
        left = left_of(changes)
        assert plain(sorted(table_of(run).values())) == plain(sorted(recomputed(left).values()))
        assert shown(run) == state_of(left)


def test_a_restore_and_a_replay_give_the_same_results() -> None:
    with run_in_memory(job_of(history(1, 40), of_users, cut=15, parallelism=2)) as run:
        run.run()
        before = plain(kinds_and_values(run.sink("out")))
        run.restore(2)
        run.run()
        assert plain(kinds_and_values(run.sink("out"))) == before
        run.replay()
        assert plain(kinds_and_values(run.sink("out"))) == before


class Sizes(AggregateFunction):
    """How often each amount is there, as text: an accumulator and results of types of their own."""

    def create_accumulator(self) -> dict[int, int]:
        return {}

    def add(self, value: Row, accumulator: dict[int, int]) -> dict[int, int]:
        accumulator[value.amount] = accumulator.get(value.amount, 0) + 1
        return accumulator

    def retract(self, value: Row, accumulator: dict[int, int]) -> dict[int, int]:
        accumulator[value.amount] -= 1
        return {amount: n for amount, n in accumulator.items() if n}

    def get_result(self, accumulator: dict[int, int]) -> str:
        return json.dumps(sorted(accumulator.items()))


class Appended(Sizes):
    """The same, which cannot take values back."""

    retract = AggregateFunction.retract


def sizes(stream: DataStream) -> DataStream:
    return stream.key_by("owner").aggregate(Sizes(), dict[int, int], str, uid="sizes")


@pytest.mark.parametrize("seed", range(4))
def test_an_aggregate_function_that_retracts(seed: int) -> None:
    changes = accounts(seed, 50)
    with run_in_memory(job_of(changes, sizes, columns=ACCOUNT, cut=8 + 5 * seed, parallelism=2)) as run:
        run.run()
        expected: dict[str, dict[int, int]] = {}
        for _, owner, amount in left_of(changes):
            of_owner = expected.setdefault(owner, {})
            of_owner[amount] = of_owner.get(amount, 0) + 1
        assert run.state("sizes", "aggregated") == expected
        rows = {owner: sum(of.values()) for owner, of in expected.items()}
        assert run.state("sizes", "aggregated_rows") == rows
        texts: list[str] = []
        for kind, text in run.sink("out"):
            (texts.remove if takes_back(kind) else texts.append)(text)
        assert sorted(texts) == sorted(json.dumps(sorted(of.items())) for of in expected.values())


class Added(ReduceFunction):
    def reduce(self, value1: Row, value2: Row) -> Row:
        return value1.replace(amount=value1.amount + value2.amount)


def reduced(stream: DataStream) -> DataStream:
    taken = lambda total, row: total.replace(amount=total.amount - row.amount)  # noqa: E731
    return (
        stream.map(lambda row: row.replace(id=0), ACCOUNT)
        .key_by("owner")
        .reduce(Added(), inverse=taken)
        .uid("sums")
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_reduction_with_an_inverse(seed: int) -> None:
    changes = accounts(seed, 50)
    with run_in_memory(job_of(changes, reduced, columns=ACCOUNT, cut=8 + 5 * seed, parallelism=2)) as run:
        run.run()
        left = left_of(changes)
        expected = {o: sum(a for _, owner, a in left if owner == o) for o in {owner for _, owner, _ in left}}
        assert {owner: row.amount for owner, row in run.state("sums", "reduced").items()} == expected
        assert run.state("sums", "reduced_rows") == {o: sum(r[1] == o for r in left) for o in expected}
        assert table_of_owners(run) == expected


def table_of_owners(run: MemoryRun) -> dict[str, int]:
    table: dict[str, int] = {}
    for kind, (_, owner, amount) in kinds_and_values(run.sink("out")):
        if takes_back(kind):
            assert table.pop(owner) == amount
        else:
            table[owner] = amount
    return table


def test_aggregates_of_aggregates() -> None:
    """How many owners have so many accounts: each owner moves from one number to the next."""

    def owners_by_number(stream: DataStream) -> DataStream:
        numbers = stream.key_by("owner").aggregate(accounts=count()).uid("numbers")
        return numbers.key_by("accounts").aggregate(owners=count(), last=max_("owner")).uid("owners")

    changes = accounts(5, 80)
    with run_in_memory(job_of(changes, owners_by_number, columns=ACCOUNT, cut=7, parallelism=2)) as run:
        run.run()
        owners = [owner for _, owner, _ in left_of(changes)]
        numbers = {owner: owners.count(owner) for owner in owners}
        expected = {
            (n,): (n, list(numbers.values()).count(n), max(o for o, m in numbers.items() if m == n))
            for n in numbers.values()
        }
        assert table_of(run) == expected


def test_a_stream_of_inserts_gives_a_row_for_every_element_and_needs_no_declared_type() -> None:
    job = StatefulJob("clicks", parallelism=2)
    clicks = job.source(
        "clicks", FileSource("/nowhere", schema="user string, page string, ms int, cost double")
    )
    totals = clicks.key_by("user", "page").aggregate(
        n=count(), ms=sum_("ms"), mean=avg("ms"), cost=sum_("cost"), first=min_("ms")
    )
    totals.uid("totals").map(lambda row: row, "user string, page string, n bigint, ms bigint, mean double, "
                             "cost double, first int").sink("out", CollectSink())  # fmt: skip
    with run_in_memory(job) as run:
        out = run.process({"clicks": [("a", "x", 3, 0.1), ("a", "y", 5, 0.1), ("a", "x", 4, 0.2)]})["out"]
        assert [tuple(row) for row in out] == [
            ("a", "x", 1, 3, 3.0, 0.1, 3), ("a", "y", 1, 5, 5.0, 0.1, 5), ("a", "x", 2, 7, 3.5, 0.30000000000000004, 3),
        ]  # fmt: skip
        assert out[0].get_row_kind() is INSERT


class Place(NamedTuple):
    city: str
    street: str


@dataclass(frozen=True)
class House:
    city: str
    number: int


class Town(NamedTuple):
    city: str


@dataclass(frozen=True)
class Street:
    name: str


class Sale(NamedTuple):
    place: str
    price: int


@pytest.mark.parametrize(
    ("key", "key_type", "columns"),
    [
        (lambda sale: sale.place, str, {"key": "t"}),
        (lambda sale: Place(sale.place, "s"), Place, {"city": "t", "street": "s"}),
        (lambda sale: House(sale.place, 1), House, {"city": "t", "number": 1}),
        (lambda sale: Town(sale.place), Town, {"city": "t"}),
        (lambda sale: Street(sale.place), Street, {"name": "t"}),
        (lambda sale: (sale.place,), tuple[str], {"f0": "t"}),
        (lambda sale: (sale.place, 7), tuple[str, int], {"f0": "t", "f1": 7}),
    ],
)
def test_keys_that_functions_make_come_out_as_columns(
    key: Any, key_type: Any, columns: dict[str, Any]
) -> None:
    job = StatefulJob("sales")
    sales = job.from_collection([Sale("t", 3), Sale("t", 4)], Sale)
    sales.key_by(key, key_type=key_type).aggregate(total=sum_("price")).uid("t").sink("out", CollectSink())
    with run_in_memory(job) as run:
        run.run()
        assert [row.as_dict() for row in run.sink("out")] == [columns | {"total": 3}, columns | {"total": 7}]


def test_a_stream_of_bare_values_and_one_of_objects() -> None:
    job = StatefulJob("values")
    numbers = job.from_collection([1, 2, 3], int, name="numbers")
    numbers.key_by(lambda n: n % 2, key_type=int).aggregate(total=sum_(0)).uid("n").sink("out", CollectSink())
    houses = job.from_collection([House("t", 4)], House, name="houses")
    houses.key_by("city").aggregate(total=sum_("number")).uid("h").sink("houses", CollectSink())
    with run_in_memory(job) as run:
        run.run()
        assert sorted(map(tuple, run.sink("out"))) == [(0, 2), (1, 1), (1, 4)]
        assert run.sink("houses") == [("t", 4)]


NEVER = [(INSERT, (1, "a", 5)), (DELETE, (2, "b", 5)), (BEFORE, (1, "a", 6)), (INSERT, (1, "a", 7))]


def declared(stream: DataStream) -> DataStream:
    return stream.key_by("owner").aggregate(least=min_("amount"), n=count()).uid("sizes")


@pytest.mark.parametrize(
    ("build", "states"),
    [
        (declared, {"aggregates": {"a": (2, (2, 0))}, "values_amount": {"a": {5: 1, 7: 1}}}),
        (sizes, {"aggregated": {"a": {5: 1, 7: 1}}, "aggregated_rows": {"a": 2}}),
    ],
)
def test_what_was_never_added_is_set_aside_or_fails_the_batch(build: Build, states: dict[str, Any]) -> None:
    job = job_of(NEVER, build, columns=ACCOUNT, on_error="dead_letter")
    with run_in_memory(job) as run:
        run.run()
        letters = run.dead_letters()
        assert len(letters) == 2
        assert {name: run.state("sizes", name) for name in states} == states
    with (
        run_in_memory(job_of(NEVER, build, columns=ACCOUNT)) as run,
        pytest.raises(
            UserFunctionError,
            match=r"operator 'sizes', key .*: .b.}.*never added to this key.*Nothing of this",
        ),
    ):
        run.run()


def test_a_source_that_begins_to_change_goes_on_with_what_was_counted() -> None:
    def build(*, changing: bool) -> StatefulJob:
        job = StatefulJob("begins")
        rows = job.from_collection([], ACCOUNT, name="rows", changing=changing)
        rows.key_by("owner").aggregate(n=count(), total=sum_("amount"), least=min_("amount")).uid(
            "sums"
        ).sink("out", CollectSink())
        return job

    with run_in_memory(build(changing=False), types={"rows": ACCOUNT}) as run:
        run.process({"rows": [(1, "a", 5), (2, "a", 6)]})
        run.restart(build(changing=True))
        out = run.process(
            {"rows": as_rows([(DELETE, (1, "a", 5)), (INSERT, (3, "b", 2))], "id", "owner", "amount")}
        )
        assert kinds_and_values(out["out"]) == [
            (BEFORE, ("a", 2, 11, None)), (AFTER, ("a", 1, 6, None)), (INSERT, ("b", 1, 2, 2)),
        ]  # fmt: skip


def test_a_state_that_is_older_than_its_count_is_refused_when_rows_are_taken_back() -> None:
    def build(function: AggregateFunction, *, changing: bool) -> StatefulJob:
        job = StatefulJob("older")
        rows = job.from_collection([], ACCOUNT, name="rows", changing=changing)
        rows.key_by("owner").aggregate(function, dict[int, int], str, uid="sizes").sink("out", CollectSink())
        return job

    with run_in_memory(build(Appended(), changing=False), types={"rows": ACCOUNT}) as run:
        run.process({"rows": [(1, "a", 5)]})
        run.restart(build(Sizes(), changing=True))
        more = as_rows(
            [(INSERT, (2, "a", 6)), (INSERT, (3, "b", 6)), (DELETE, (3, "b", 6))], "id", "owner", "amount"
        )
        run.process({"rows": more})
        with pytest.raises(StateMigrationError, match=r"aggregate\(Sizes\) takes back a row of a key whose"):
            run.process({"rows": as_rows([(DELETE, (1, "a", 5))], "id", "owner", "amount")})
        assert run.state("sizes", "aggregated") == {"a": {5: 1, 6: 1}}


def test_states_are_known_before_any_row_where_the_stream_says_its_type() -> None:
    job = job_of([], of_users)
    assert set(declared_states(job, job.operators["users"], {})) == {
        "aggregates", "values_n", "values_x", "values_name", "values_price",
    }  # fmt: skip
    undeclared = StatefulJob("undeclared")
    clicks = undeclared.source("clicks", FileSource("/nowhere", schema="user string"))
    clicks.key_by("user").aggregate(n=count()).uid("users")
    with pytest.raises(ConfigurationError, match="its state has the type of its input, which only rows show"):
        declared_states(undeclared, undeclared.operators["users"], {"aggregates": None})
