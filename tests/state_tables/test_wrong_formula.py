"""The shape that people have most: a history in Delta, and a serving table in SQL. A wrong formula goes out, and is
taken back: replay, compare, promote. Both are right afterwards, row for row.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSink,
    KeyedProcessFunction,
    RuntimeContext,
    SqlStateTable,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from tests.state_tables.sql_world import World

Row = tuple[str, int, int]
"""Account, amount, fee."""
History = list[tuple[str, int, int]]
"""Account, booked, balance after it."""
CUT = 5
CLOSED = 7
"""An amount that closes the account: its balance goes."""


class Balance(KeyedProcessFunction):
    """The balance of an account; a formula says what a payment books."""

    def __init__(self, *, is_right: bool) -> None:
        self.is_right = is_right

    def open(self, runtime_context: RuntimeContext) -> None:
        self.balance = runtime_context.get_state(ValueStateDescriptor("balance", int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        booked = booked_by(value.amount, value.fee, is_right=self.is_right)
        after = (self.balance.value() or 0) + booked
        if value.amount == CLOSED:
            self.balance.clear()
        else:
            self.balance.update(after)
        yield value.account, booked, after


def booked_by(amount: int, fee: int, *, is_right: bool) -> int:
    """The wrong formula forgets the fee of large amounts."""
    return amount - fee if is_right or amount < 6 else amount


def by_hand(rows: list[Row], wrong_from: int, wrong_to: int) -> tuple[History, dict[str, int]]:
    """What history and serving table hold; rows in a range are booked by the wrong formula."""
    history: History = []
    balances: dict[str, int] = {}
    for i, (account, amount, fee) in enumerate(rows):
        booked = booked_by(amount, fee, is_right=not wrong_from <= i < wrong_to)
        after = balances.get(account, 0) + booked
        history.append((account, booked, after))
        balances[account] = after
        if amount == CLOSED:
            del balances[account]
    return sorted(history), balances


@dataclass
class Bank:
    """The job, and what its users read."""

    directory: Path
    engine: StateEngine
    rows: list[Row]
    database: Mapping[str, Any]
    world: World | None = None

    def job(self, *, is_right: bool) -> StatefulJob:
        job = StatefulJob("bank", compaction=None, code_version="right" if is_right else "wrong")
        schema = "account string, amount bigint, fee bigint"
        rows = job.from_collection(self.rows, schema, name="payments", max_rows_per_batch=CUT)
        booked = rows.key_by("account").process(
            Balance(is_right=is_right),
            uid="balances",
            output_type="account string, booked bigint, after bigint",
        )
        booked.sink("history", DeltaSink(str(self.directory / "history")))
        booked.publish_state("balance", SqlStateTable(table="balance", **self.database))
        return job

    def run(self, batches: int, *, is_right: bool) -> None:
        self.engine.run(self.job(is_right=is_right), max_batches=batches)

    def history(self) -> History:
        read = DeltaTable(str(self.directory / "history")).to_pyarrow_table().to_pylist()
        return sorted((row["account"], row["booked"], row["after"]) for row in read)

    def balances(self) -> dict[str, int]:
        query = "SELECT account, value FROM balance"
        if self.world is not None:
            return dict(self.world.run(query))
        with closing(sqlite3.connect(self.database["url"].removeprefix("sqlite:///"))) as lite:
            return dict(lite.execute(query).fetchall())

    def check(self, wrong_from: int, wrong_to: int, *, read: int) -> None:
        history, balances = by_hand(self.rows[:read], wrong_from, wrong_to)
        assert self.history() == history
        assert self.balances() == balances
        move = self.engine.published("bank").verify("balance")
        assert (move.rows, move.deleted) == (0, 0)


def goes_through(bank: Bank) -> None:
    """Two right micro-batches, three wrong ones, the mending of it, and its way back and forth."""
    bank.run(2, is_right=True)
    bank.run(3, is_right=False)
    wrong_from, read = 2 * CUT, 5 * CUT
    bank.check(wrong_from, read, read=read)
    wrong = by_hand(bank.rows[:read], wrong_from, read)
    right = by_hand(bank.rows[:read], 0, 0)
    head = bank.engine.checkpoints("bank")[-1].checkpoint_id

    replay = bank.engine.replay(bank.job(is_right=False), from_checkpoint=2, code=bank.job(is_right=True))
    bank.check(wrong_from, read, read=read)  # a replay shows nothing
    report = bank.engine.compare("bank", replay.branch)
    assert not report.is_equal
    assert report.outputs["history"].rows_only_old == len(_only(wrong[0], right[0]))
    (state,) = report.states
    changed = {k for k in wrong[1].keys() & right[1].keys() if wrong[1][k] != right[1][k]}
    gone, come = wrong[1].keys() - right[1].keys(), right[1].keys() - wrong[1].keys()
    assert (state.changed, state.removed, state.added) == (len(changed), len(gone), len(come))

    planned = bank.engine.promote(bank.job(is_right=True), replay.branch, dry_run=True)
    bank.check(wrong_from, read, read=read)
    done = bank.engine.promote(bank.job(is_right=True), replay.branch)
    assert planned.tables == done.tables
    (move,) = planned.tables
    assert (move.rows, move.deleted) == (len(changed | come), len(gone))
    assert planned.rows_withdrawn == planned.rows_added == {"history": 3 * CUT}
    bank.check(0, 0, read=read)
    bank.run(2, is_right=True)
    bank.check(0, 0, read=read + 2 * CUT)

    # and back to the wrong head, which the next right rows go on from
    later = by_hand(bank.rows[: read + 2 * CUT], 0, 0)[1]
    planned = bank.engine.restore(bank.job(is_right=True), checkpoint_id=head, dry_run=True)
    done = bank.engine.restore(bank.job(is_right=True), checkpoint_id=head)
    assert planned.tables == done.tables
    (move,) = done.tables
    differing = {k for k, n in wrong[1].items() if later.get(k) != n}
    assert (move.rows, move.deleted) == (len(differing), len(later.keys() - wrong[1].keys()))
    bank.check(wrong_from, read, read=read)
    bank.run(1, is_right=True)
    bank.check(wrong_from, read, read=read + CUT)


def _only(rows: History, others: History) -> History:
    left = list(rows)
    for row in others:
        if row in left:
            left.remove(row)
    return left


def payments(seed: int) -> list[Row]:
    chance = random.Random(seed)
    return [(chance.choice("abcdefghij"), chance.randrange(1, 12), chance.randrange(1, 3)) for _ in range(50)]


def test_a_wrong_formula_is_taken_back_row_for_row(tmp_path: Path, spark: SparkSession) -> None:
    lite = {"url": f"sqlite:///{tmp_path}/serving.db"}
    goes_through(Bank(tmp_path, StateEngine(tmp_path / "root", spark=spark), payments(1), lite))


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3])
def test_a_wrong_formula_is_taken_back_in_postgresql(
    seed: int, tmp_path: Path, spark: SparkSession, postgres: World
) -> None:
    options = {"url": postgres.url, "password_env": postgres.password_env}
    engine = StateEngine(tmp_path / "root", spark=spark)
    goes_through(Bank(tmp_path, engine, payments(seed), options, postgres))
