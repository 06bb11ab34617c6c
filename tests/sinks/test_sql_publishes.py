"""What tables of sinks and tables that show a state have in common, on real databases: crashes, races, other tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.errors import (
    CommitFailedError,
    CommitUnknownError,
    SinkIdentityError,
    StatelakeError,
    TableChangedError,
)
from tests.sinks.databases import APP, Database
from tests.state_tables.sql_world import Failing, World
from tests.support.killed import Killed
from tests.support.lost_answers import commit_that


class OfSink:
    """The table of a sink, to which checkpoint n brings the row n."""

    table, key, replaced = "delays", "id", SinkIdentityError

    def __init__(self, db: Database) -> None:
        self._db, self._staged = db, dict[int, StagedSink]()

    def make(self) -> str:
        """Make the table, where there is none; its identity."""
        return self._db.staged("w0", [0]).identity

    def stage(self, *numbers: int) -> None:
        self._staged |= {n: self._db.staged(f"w{n}", [n]) for n in numbers}

    def publish(self, number: int) -> None:
        self._db.publisher.publish(self._staged[number], APP, number)

    def seen(self) -> int:
        return self._db.publisher.seen(self._staged[1].path, APP)

    def accept(self) -> None:
        self._db.publisher.accept(self._staged[1], APP)


class OfState:
    """A table that shows a state, to which checkpoint n adds the key n."""

    table, key, replaced = "balances", "account", TableChangedError

    def __init__(self, db: Database) -> None:
        self.world = World(db.url, db.password_env, db.password)

    def make(self) -> str:
        self.world.create()
        return str(self.world.shown())

    def stage(self, *numbers: int) -> None:
        self.make()

    def publish(self, number: int) -> None:
        self.world.apply(number - 1, number, [(number, f"t{number}")])

    def seen(self) -> int:
        return self.world.shown() or 0

    def accept(self) -> None:
        self.world.target.accept()


Kind = OfSink | OfState


@pytest.fixture(params=[OfSink, OfState])
def kind(request: pytest.FixtureRequest, db: Database) -> Iterator[Kind]:
    made: Kind = request.param(db)
    made.stage(1, 2)
    yield made
    if isinstance(made, OfState):
        made.world.engine.dispose()


def keys(db: Database, kind: Kind) -> list[int]:
    return [key for (key,) in db.rows(f"SELECT {kind.key} FROM {kind.table} ORDER BY 1")]


@pytest.mark.parametrize("killed", [True, False])
def test_broken_at_every_step_and_published_again(db: Database, kind: Kind, killed: bool) -> None:
    error: Any = Killed if killed else StatelakeError
    kind.publish(1)
    for step in range(100):
        with Failing(step, killed=killed):
            try:
                kind.publish(2)
            except error:
                pass
            else:
                break
        assert (kind.seen(), keys(db, kind)) == (1, [1])
    assert step >= 5
    kind.publish(2)
    assert (kind.seen(), keys(db, kind)) == (2, [1, 2])


def test_the_outcome_of_a_broken_commit_is_looked_up(
    db: Database, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sa.Connection, "commit", commit_that(lambda real: real()))
        kind.publish(1)
        patch.setattr(sa.Connection, "commit", commit_that(lambda real: None))
        with pytest.raises(CommitFailedError, match=r"was not written to.*the connection was closed.*run"):
            kind.publish(2)
    assert (kind.seen(), keys(db, kind)) == (1, [1])


def test_nobody_knows_whether_a_commit_worked(lite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(lite.url.removeprefix("sqlite:///"))
    for kind in (OfSink(lite), OfState(lite)):
        kind.stage(1)

        def unplug(real: Callable[[], None]) -> None:
            real()
            path.rename(path.with_name("away.db"))
            path.mkdir()

        with monkeypatch.context() as patch:
            patch.setattr(sa.Connection, "commit", commit_that(unplug))
            with pytest.raises(CommitUnknownError, match=r"broke off.*ledger cannot be read"):
                kind.publish(1)
        path.rmdir()
        path.with_name("away.db").rename(path)
        kind.publish(1)
        assert (kind.seen(), keys(lite, kind)) == (1, [1])


def test_a_publish_and_its_twins_at_once(db: Database, kind: Kind) -> None:
    for number in (1, 2):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(kind.publish, [number] * 4))
        assert (kind.seen(), keys(db, kind)) == (number, list(range(1, number + 1)))


def test_runners_that_make_the_table_at_once_agree_on_it(db: Database, kind: Kind) -> None:
    for _ in range(5):
        db.run(f"DROP TABLE {kind.table}")
        with ThreadPoolExecutor(4) as pool:
            assert len({*pool.map(lambda _: kind.make(), range(4))}) == 1
    kind.stage(1)
    kind.publish(1)
    assert (kind.seen(), keys(db, kind)) == (1, [1])


@pytest.mark.parametrize("rows", [True, False], ids=["with the rows", "empty"])
def test_another_table_under_the_name_is_noticed_until_it_is_accepted(
    db: Database, kind: Kind, rows: bool
) -> None:
    kind.publish(1)
    db.run(f"ALTER TABLE {kind.table} RENAME TO old")
    db.run(f"CREATE TABLE {kind.table} AS SELECT * FROM old WHERE {int(rows)} = 1")
    db.run("DROP TABLE old")
    db.run(f"CREATE UNIQUE INDEX of_key ON {kind.table} ({kind.key})")
    with pytest.raises(kind.replaced, match=r"was dropped and created again.*`statelake accept-table job"):
        kind.publish(2)
    assert keys(db, kind) == [1] * rows
    kind.accept()
    kind.publish(2)
    assert (kind.seen(), keys(db, kind)) == (2, [*[1] * rows, 2])
