"""Random histories of a table that shows a state, against a dict: changes, crashes, other publishers, foreign edits."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from state_engine.core.errors import CommitFailedError, SinkIdentityError, StatelakeError, TableChangedError
from state_engine.state_tables.base import TableColumns
from tests.state_tables.sql_world import Failing, World
from tests.support.killed import Killed

SHAPES = [
    TableColumns(pa.schema([("k", pa.int64()), ("v", pa.string())]), ("k",)),
    TableColumns(pa.schema([("v", pa.string()), ("k", pa.string()), ("e", pa.int64())]), ("k",), ("e",)),
    TableColumns(
        pa.schema([("a", pa.int64()), ("b", pa.string()), ("e", pa.int64()), ("v", pa.string())]), ("a", "b"), ("e",)
    ),
]  # fmt: skip

Identity = tuple[Any, ...]


class History:
    """One random history. ``rows`` is the table as it must be: by identity its value and the checkpoint of the row."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.rng = world, random.Random(seed)
        world.columns = self.columns = SHAPES[seed % len(SHAPES)]
        self.rows: dict[Identity, tuple[str | None, int | None]] = {}
        self.shown: int | None = None
        self.has_rows = False
        self.head = 0
        self.counts: dict[str, int] = {}

    def run(self, steps: int) -> dict[str, int]:
        does = {
            self.publish: 8,
            self.crash: 4,
            self.others_publish: 3,
            self.edit: 3,
            self.rebuild: 1,
            self.adopt: 1,
            self.drop: 0.5,
        }
        for _ in range(steps):
            if self.shown is None:
                self.make()
            else:
                self.rng.choices(list(does), list(does.values()))[0]()
            self.compare()
        return self.counts

    def compare(self) -> None:
        if self.shown is None:
            assert self.world.shown() is None
            return
        names = self.columns.identity
        stored = self.world.run(f"SELECT {', '.join(names)}, v, _checkpoint_id FROM balances")
        assert {row[: len(names)]: row[len(names) :] for row in stored} == self.rows
        assert len(stored) == len(self.rows)
        assert len(self.world.content()) == len(self.rows)
        if self.is_odd():
            with pytest.raises(TableChangedError):
                self.world.shown()
        else:
            assert self.world.shown() == self.shown

    # -- what the engine does --------------------------------------------------------------------------------------

    def make(self) -> None:
        self.rows = {}
        if self.rng.random() < 0.5:
            self.world.create()
            self.shown, self.has_rows = 0, False
        else:
            self.rebuild()

    def publish(self) -> None:
        self.finish(self.random_change())

    def crash(self) -> None:
        """Broken off somewhere, with nothing done; then again, by the next runner."""
        change, checkpoint_id = self.random_change(), self.next_id()
        killed = self.rng.random() < 0.5
        error: Any = Killed if killed else StatelakeError
        try:
            with Failing(self.rng.randrange(25), killed=killed) as failing:
                self.world.apply(self.shown or 0, checkpoint_id, **change)
        except (error, TableChangedError) as raised:
            self.count("changed" if isinstance(raised, TableChangedError) else "crashed")
        else:
            assert failing.steps
            self.done(change, checkpoint_id)
            return
        self.compare()
        if self.rng.random() < 0.7:
            self.finish(self.random_change())

    def finish(self, change: dict[str, Any]) -> None:
        checkpoint_id = self.next_id()
        if self.is_odd() or self.meets_others(change):
            self.count("changed")
            with pytest.raises(TableChangedError):
                self.world.apply(self.shown or 0, checkpoint_id, **change)
        else:
            self.world.apply(self.shown or 0, checkpoint_id, **change)
            self.done(change, checkpoint_id)

    def others_publish(self) -> None:
        """A late runner, one that mistakes what the table shows, and another application."""
        assert self.shown is not None
        change = self.random_change()
        if self.shown:
            self.world.apply(self.shown - 1, self.shown, **change)
        with pytest.raises(CommitFailedError):
            self.world.apply(self.shown + 1, self.shown + 2, **change)
        with pytest.raises(SinkIdentityError):
            self.world.apply(self.shown, self.shown + 1, app="4567/job/balance", **change)
        self.count("late")

    def rebuild(self) -> None:
        checkpoint_id = self.next_id()
        rows = {self.identity(): self.value() for _ in range(self.rng.randrange(12))}
        self.world.replace(checkpoint_id, [self.row(i, v) for i, v in rows.items()])
        self.rows = {i: (v, checkpoint_id) for i, v in rows.items()}
        self.shown, self.has_rows = checkpoint_id, bool(rows)
        self.count("rebuilt")

    def adopt(self) -> None:
        self.world.adopt()
        self.rows = {i: (v, 0) for i, (v, _) in self.rows.items()}
        self.shown, self.has_rows = 0, bool(self.rows)
        self.count("adopted")

    # -- what others do --------------------------------------------------------------------------------------------

    def edit(self) -> None:
        which, identity = self.rng.choice(["insert", "value", "mark", "delete", "empty"]), self.identity()
        there = self.rows.get(identity)
        if which == "insert" and there is None:
            mark = self.rng.choice([None, None, 99_999])
            names = [*self.columns.identity, "v", "_checkpoint_id"]
            self.user(f"INSERT INTO balances ({', '.join(names)})", (*identity, "theirs", mark))
            self.rows[identity] = ("theirs", mark)
        elif which == "value" and there is not None:
            self.user("UPDATE balances SET v = 'theirs' WHERE", identity=identity)
            self.rows[identity] = ("theirs", there[1])
        elif which == "mark" and there is not None:
            self.user("UPDATE balances SET _checkpoint_id = NULL WHERE", identity=identity)
            self.rows[identity] = (there[0], None)
        elif which == "delete" and there is not None:
            self.user("DELETE FROM balances WHERE", identity=identity)
            del self.rows[identity]
        elif which == "empty" and self.rng.random() < 0.3:
            self.world.run("DELETE FROM balances")
            self.rows = {}
        else:
            return
        self.count("edited")

    def drop(self) -> None:
        self.world.run("DROP TABLE balances")
        self.shown = None

    def user(self, statement: str, values: Identity = (), *, identity: Identity = ()) -> None:
        binds = {f"p{n}": value for n, value in enumerate((*values, *identity))}
        if values:
            statement += f" VALUES ({', '.join(f':{name}' for name in binds)})"
        else:
            same = "IS" if self.world.is_sqlite else "IS NOT DISTINCT FROM"
            kinds = [
                "bigint" if n in ("e", "a") or len(identity) == 1 else "text" for n in self.columns.identity
            ]
            parts = [
                f"{n} {same} CAST(:{p} AS {kind})"
                for n, p, kind in zip(self.columns.identity, binds, kinds, strict=True)
            ]
            statement += f" {' AND '.join(parts)}"
        self.world.run(sa.text(statement).bindparams(**binds))

    # -- the model -------------------------------------------------------------------------------------------------

    def next_id(self) -> int:
        self.head += self.rng.choice([1, 1, 1, 5])
        return self.head

    def identity(self) -> Identity:
        pick = self.rng.choice
        if len(self.columns.key) == 2:
            return (pick([None, 0, 1]), pick([None, "x", "ü"]), pick([0, 1]))
        return (pick(range(8)),) if not self.columns.entry else (pick("abc"), pick([0, 1, 2]))

    def value(self) -> str | None:
        return self.rng.choice([None, "", "v", "w"])

    def row(self, identity: Identity, value: str | None) -> tuple[Any, ...]:
        by_name = {**dict(zip(self.columns.identity, identity, strict=True)), "v": value}
        return tuple(by_name[n] for n in self.columns.schema.names)

    def random_change(self) -> dict[str, Any]:
        some = self.rng.randrange
        cleared = {self.identity()[: len(self.columns.key)] for _ in range(some(2))}
        deleted = {self.identity() for _ in range(some(3))}
        rows = {self.identity(): self.value() for _ in range(some(6))}
        return {
            "cleared": sorted(cleared, key=repr),
            "deleted": sorted(deleted, key=repr),
            "rows": [self.row(i, v) for i, v in rows.items()],
        }

    def identity_of(self, row: tuple[Any, ...]) -> Identity:
        by_name = dict(zip(self.columns.schema.names, row, strict=True))
        return tuple(by_name[n] for n in self.columns.identity)

    def touched(self, change: dict[str, Any]) -> set[Identity]:
        """The rows of the table that a change deletes or replaces."""
        cleared = {i for i in self.rows if i[: len(self.columns.key)] in change["cleared"]}
        named = {*change["deleted"], *map(self.identity_of, change["rows"])}
        return (cleared | named) & set(self.rows)

    def meets_others(self, change: dict[str, Any]) -> bool:
        marks = [self.rows[i][1] for i in self.touched(change)]
        return any(mark is None or not 0 <= mark <= (self.shown or 0) for mark in marks)

    def is_odd(self) -> bool:
        return bool(self.rows) != self.has_rows

    def done(self, change: dict[str, Any], checkpoint_id: int) -> None:
        for identity in self.touched(change):
            del self.rows[identity]
        names = self.columns.schema.names
        for row in change["rows"]:
            self.rows[self.identity_of(row)] = (row[names.index("v")], checkpoint_id)
        self.shown, self.has_rows = checkpoint_id, bool(self.rows)
        self.count("published")

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


@pytest.mark.parametrize(
    "block", [b if b < 2 else pytest.param(b, marks=pytest.mark.long) for b in range(10)]
)
def test_the_table_is_what_a_dict_is(lite: World, block: int) -> None:
    counts: dict[str, int] = {}
    for seed in range(block * 20, block * 20 + 20):
        for what, n in History(lite, seed).run(14).items():
            counts[what] = counts.get(what, 0) + n
        lite.run("DROP TABLE IF EXISTS balances")
        lite.run("DROP TABLE IF EXISTS _statelake_tables")
    assert all(counts.get(what) for what in ("published", "crashed", "changed", "late", "edited", "rebuilt"))


@pytest.mark.long
def test_the_table_is_what_a_dict_is_in_postgresql(postgres: World) -> None:
    for seed in range(12):
        History(postgres, seed).run(14)
        postgres.run("DROP TABLE IF EXISTS balances")
        postgres.run("DROP TABLE IF EXISTS _statelake_tables")
