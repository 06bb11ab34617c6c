"""``SqlStateTable`` on real databases: changes, ownership, crashes, other writers, publishers at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from state_engine.core.errors import (
    CommitFailedError,
    SinkError,
    SinkIdentityError,
    StatelakeError,
    TableChangedError,
)
from state_engine.databases import rows as sql_rows
from state_engine.databases.ledger import LEDGER
from state_engine.state_tables.base import ShownCheckpoint
from tests.state_tables.sql_world import APP, COLUMNS, Failing, World, rows_of
from tests.support.killed import Killed
from tests.support.lost_answers import commit_that

OTHER = "4567/job/balance"


def test_a_table_goes_back_to_a_root_that_was_put_back(world: World) -> None:
    """Rows of checkpoints that the root does not have any more count as those of the one that the table shows."""
    world.create()
    world.apply(0, 3, [(1, "a"), (2, "b")], writes=(0, 33))
    world.apply(3, 8, [(2, "B"), (3, "c")], writes=(33, 88))
    world.apply(8, 4, [(1, "A")], deleted=[(3,)], writes=(88, 44))
    assert (world.shown(), world.rows()) == (4, [(1, "A", 4), (2, "B", 4)])
    world.apply(8, 4, [(9, "late")], writes=(88, 44))
    world.apply(4, 5, [(2, "BB")], writes=(44, 55))
    assert world.rows() == [(1, "A", 4), (2, "BB", 5)]
    with pytest.raises(CommitFailedError, match="shows checkpoint 5, and no longer 5"):
        world.apply(5, 6, [(1, "of another 5")], writes=(54, 66))


def test_the_answer_to_a_commit_that_went_back_is_looked_up_by_its_moment(
    lite: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the number it would seem to be done: the table shows a later one."""
    lite.create()
    lite.apply(0, 8, OLD)
    with monkeypatch.context() as patch:
        patch.setattr(sa.Connection, "commit", commit_that(lambda real: None))
        with pytest.raises(CommitFailedError, match="was not written"):
            lite.apply(8, 4, [(1, "A")])
    assert (lite.shown(), lite.content()) == (8, OLD)
    with monkeypatch.context() as patch:
        patch.setattr(sa.Connection, "commit", commit_that(lambda real: real()))
        lite.apply(8, 4, [(1, "A")])
    assert (lite.shown(), lite.content()) == (4, [(1, "A"), *OLD[1:]])


def test_a_table_belongs_to_one_application(world: World) -> None:
    world.create()
    world.apply(0, 1, [(1, "a")])
    asked: list[Callable[[], Any]] = [
        lambda: world.shown(OTHER),
        lambda: world.apply(1, 2, [(1, "b")], app=OTHER),
    ]
    for one in asked:
        with pytest.raises(SinkIdentityError, match=f"belongs to '{APP}', and not to '{OTHER}'.*adopt=True"):
            one()
    world.create(OTHER)
    assert (world.shown(), world.content()) == (1, [(1, "a")]), "one that is there is not made"
    world.adopt(OTHER)
    assert (world.shown(OTHER), world.content()) == (0, [(1, "a")])
    with pytest.raises(SinkIdentityError, match=f"belongs to '{OTHER}'"):
        world.apply(1, 2, [(1, "b")])
    world.apply(0, 1, [(1, "c")], app=OTHER)
    world.replace(4, [(9, "z")])
    assert (world.shown(), world.rows()) == (4, [(9, "z", 4)]), "one that is built anew is the builder's"


def test_a_table_of_nobody_is_refused(world: World) -> None:
    world.run("CREATE TABLE balances (account bigint PRIMARY KEY, total text)")
    world.run("INSERT INTO balances VALUES (1, 'mine')")
    for asked in (world.shown, lambda: world.apply(0, 1, [(1, "b")])):
        with pytest.raises(SinkIdentityError, match=r"belongs to nobody, and not to .*adopt=True"):
            asked()
    world.create()
    with pytest.raises(SinkIdentityError, match="belongs to nobody"):
        world.shown()
    assert world.content() == [(1, "mine")]


def test_everything_is_replaced(world: World) -> None:
    rows = [(n, f"t{n}") for n in range(10)]
    world.replace(4, rows)
    assert (world.shown(), world.content()) == (4, rows)
    world.run("INSERT INTO balances (account, total) VALUES (77, 'not ours')")
    world.replace(4, rows[:2])
    assert (world.shown(), world.content()) == (4, rows[:2]), "also under the same number"
    world.replace(2, [])
    assert (world.shown(), world.content()) == (2, []), "also by a root that was put back from a backup"
    world.apply(2, 5, rows)
    with pytest.raises(SinkError, match=r"does not take the rows of checkpoint 6.*or drop it"):
        world.replace(6, [(1, "a"), (1, "b")])

    def broken() -> Any:
        yield from rows_of(COLUMNS, [(1, "a")]).to_batches()
        raise Killed

    with pytest.raises(Killed):
        world.target.replace(COLUMNS, broken(), to=ShownCheckpoint(6))
    assert (world.shown(), world.content()) == (5, rows)


# -- crashes and broken connections -----------------------------------------------------------------------------------

OLD = [(1, "a"), (2, "b"), (3, "c")]
DONE: dict[str, tuple[Callable[[World], None], int, list[Any]]] = {
    "apply": (lambda w: w.apply(2, 3, [(2, "B"), (4, "D")], cleared=[(1,)], deleted=[(3,)]), 3, [(2, "B"), (4, "D")]),
    "replace": (lambda w: w.replace(3, [(n, "r") for n in range(7)]), 3, [(n, "r") for n in range(7)]),
    "adopt": (lambda w: w.adopt(), 0, OLD),
}  # fmt: skip


@pytest.mark.parametrize("what", DONE)
@pytest.mark.parametrize("killed", [True, False])
def test_broken_at_every_step_and_done_again(world: World, what: str, killed: bool) -> None:
    does, checkpoint_id, expected = DONE[what]
    error: Any = Killed if killed else StatelakeError
    world.replace(2, OLD)
    with Failing(None, killed=killed) as whole:
        does(world)
    assert whole.steps >= 5
    for step in range(whole.steps):
        world.replace(2, OLD)
        with Failing(step, killed=killed), pytest.raises(error):
            does(world)
        assert (world.shown(), world.content()) == (2, OLD)
        assert {row[2] for row in world.rows()} == {2}
        does(world)
        assert (world.shown(), world.content()) == (checkpoint_id, expected)


def test_the_first_table_is_made_whole(world: World) -> None:
    with Failing(None, killed=True) as whole:
        world.create()
    for step in range(whole.steps):
        world.run("DROP TABLE balances")
        world.run(f"DROP TABLE {LEDGER}")
        with Failing(step, killed=True), pytest.raises(Killed):
            world.create()
        assert world.shown() is None
        world.create()
        assert (world.shown(), world.content()) == (0, [])


def test_a_broken_commit_that_was_overtaken_counts_as_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.replace(3, [(1, "A"), *OLD[1:]])

    def overtaken(real: Callable[[], None]) -> None:
        real()
        with monkeypatch.context() as patch:
            patch.setattr(sa.Connection, "commit", commit)
            world.apply(4, 5, [(1, "C")])

    commit = sa.Connection.commit
    with monkeypatch.context() as patch:
        patch.setattr(sa.Connection, "commit", commit_that(overtaken))
        world.apply(3, 4, [(1, "B")])
    assert (world.shown(), world.content()) == (5, [(1, "C"), *OLD[1:]])


def test_a_rebuild_whose_commit_broke_off_is_known_by_its_moment(
    lite: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the checkpoint it would not be: the table shows that one before and after."""
    lite.replace(2, OLD)
    with monkeypatch.context() as patch:
        patch.setattr(sa.Connection, "commit", commit_that(lambda real: None))
        with pytest.raises(CommitFailedError, match="was not written"):
            lite.replace(2, [(7, "new")])
    assert lite.content() == OLD
    with monkeypatch.context() as patch:
        patch.setattr(sa.Connection, "commit", commit_that(lambda real: real()))
        lite.replace(2, [(7, "new")])
    assert lite.content() == [(7, "new")]


# -- others -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edit", ["NULL", "4", "999", "-1"])
@pytest.mark.parametrize("touch", ["rows", "deleted", "cleared"])
def test_a_row_of_somebody_else_stops_what_comes_upon_it(world: World, edit: str, touch: str) -> None:
    world.replace(3, OLD)
    world.run(f"UPDATE balances SET total = 'theirs', _checkpoint_id = {edit} WHERE account = 2")
    before = world.rows()
    change: dict[str, Any] = {touch: [(2, "B")] if touch == "rows" else [(2,)]}
    with pytest.raises(TableChangedError, match="was changed by somebody else: ") as caught:
        world.apply(3, 4, **{"rows": [(1, "A")], **change})
    ways = [
        "`statelake rebuild-table job balance`",
        "`statelake accept-table job balance`",
        "Nothing was written",
    ]
    assert all(way in str(caught.value) for way in ways)
    if (edit, touch) != ("4", "rows"):  # such a row looks like one that this publish has written
        assert "the row with account=2 has " in str(caught.value)
    assert (world.shown(), world.rows()) == (3, before)
    world.apply(3, 5, [(1, "A")])
    assert world.content() == [(1, "A"), (2, "theirs"), (3, "c")], "one that is not touched does not"
    world.adopt()
    world.apply(0, 6, [(2, "b")])
    assert (world.shown(), world.content()) == (6, [(1, "A"), (2, "b"), (3, "c")])


def test_a_row_that_somebody_inserted(world: World) -> None:
    world.replace(3, OLD)
    world.run("INSERT INTO balances (account, total) VALUES (4, 'theirs')")
    with pytest.raises(TableChangedError, match=r"the row with account=4 has no _checkpoint_id"):
        world.apply(3, 4, [(n, "x") for n in range(3, 2000)])
    assert (world.shown(), world.content()) == (3, [*OLD, (4, "theirs")])


def test_a_table_that_was_emptied_or_filled(world: World) -> None:
    world.replace(3, OLD)
    world.run("DELETE FROM balances")
    for asked in (world.shown, lambda: world.apply(3, 4, [(1, "A")])):
        with pytest.raises(TableChangedError, match=r"it is empty, and was not .*rebuild-table job balance"):
            asked()
    shown = world.target.shown(changed=True)
    assert shown is not None
    assert shown.checkpoint_id == 3
    world.replace(3, OLD)
    assert world.shown() == 3
    world.apply(3, 4, deleted=[(1,), (2,), (3,)])
    assert world.shown() == 4
    world.run("INSERT INTO balances (account, total) VALUES (4, 'theirs')")
    with pytest.raises(TableChangedError, match="it has rows, and had none when it was last published to"):
        world.shown()


def test_a_table_that_was_dropped_is_made_anew(world: World) -> None:
    world.replace(3, OLD)
    world.run("DROP TABLE balances")
    assert world.shown() is None
    with pytest.raises(CommitFailedError, match=r"was dropped just now.*run again"):
        world.apply(3, 4, [(1, "A")])
    world.create()
    assert (world.shown(), world.content()) == (0, [])
    world.run("DROP TABLE balances")
    world.replace(4, OLD)
    assert (world.shown(), world.content()) == (4, OLD)
    world.run("DROP TABLE balances")
    world.create()
    world.apply(0, 4, OLD)
    world.run("ALTER TABLE balances DROP COLUMN _checkpoint_id")
    with pytest.raises(TableChangedError, match="it has no column _checkpoint_id, so it was rebuilt"):
        world.shown()
    world.replace(4, OLD)
    assert (world.shown(), world.rows()) == (4, [(*row, 4) for row in OLD])


def test_a_database_that_was_put_back_shows_an_earlier_checkpoint(lite: World) -> None:
    path = Path(lite.url.removeprefix("sqlite:///"))
    lite.replace(3, OLD)
    backup = path.read_bytes()
    lite.apply(3, 4, [(9, "lost")])
    path.write_bytes(backup)
    assert (lite.shown(), lite.content()) == (3, OLD)
    lite.apply(3, 5, [(9, "again")])
    assert lite.content() == [*OLD, (9, "again")]


# -- at once ----------------------------------------------------------------------------------------------------------


def test_of_publishers_at_once_one_applies(world: World) -> None:
    world.create()
    for checkpoint_id in range(1, 6):
        shown = checkpoint_id - 1

        def publish(n: int, since: int = shown, to: int = checkpoint_id) -> None:
            world.apply(since, to, [(i, f"{to} by {n}") for i in range(20)])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(publish, range(4)))
        assert world.shown() == checkpoint_id
        totals = {total for _, total in world.content()}
        assert len(totals) == 1
        assert totals.pop().startswith(f"{checkpoint_id} by ")


def test_runners_that_make_the_table_at_once(world: World) -> None:
    for _ in range(5):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda app: world.create(app), [APP, OTHER] * 2))
        owner = world.run(f"SELECT app, checkpoint_id FROM {LEDGER}")
        assert owner in ([(APP, 0)], [(OTHER, 0)])
        assert world.shown(owner[0][0]) == 0
        world.run("DROP TABLE balances")
        world.run(f"DROP TABLE {LEDGER}")


def test_a_publisher_waits_for_one_that_takes_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is let in when the first is through, and then finds that the table is not its own."""
    world.replace(3, OLD)
    inside, go_on = threading.Event(), threading.Event()
    first_of = sql_rows.RowWriter.insert

    def slowly(self: sql_rows.RowWriter, rows: pa.Table) -> None:
        inside.set()
        assert go_on.wait(30)
        first_of(self, rows)

    monkeypatch.setattr(sql_rows.RowWriter, "insert", slowly)
    with ThreadPoolExecutor(2) as pool:
        taking = pool.submit(world.replace, 3, [(7, "theirs")], app=OTHER)
        assert inside.wait(30)
        late = pool.submit(world.apply, 3, 4, [(1, "late")])
        assert not late.done()
        go_on.set()
        taking.result(60)
        with pytest.raises(SinkIdentityError, match=f"belongs to '{OTHER}'"):
            late.result(60)
    assert world.rows() == [(7, "theirs", 3)]


@pytest.mark.parametrize("columns", ["*", "account, total"], ids=["whole", "without the checkpoint"])
def test_a_table_that_was_dropped_and_created_again_stops_the_publish(world: World, columns: str) -> None:
    world.replace(3, OLD)
    world.run("ALTER TABLE balances RENAME TO old")
    world.run(f"CREATE TABLE balances AS SELECT {columns} FROM old WHERE account < 3")
    world.run("DROP TABLE old")
    world.run("CREATE UNIQUE INDEX of_account ON balances (account)")
    for asked_for in (world.shown, lambda: world.apply(3, 4, [(1, "A")])):
        with pytest.raises(
            TableChangedError, match=r"was dropped and created again.*rebuild-table.*accept-table"
        ):
            asked_for()
    world.target.accept()
    world.apply(3, 4, [(1, "A")])
    assert (world.shown(), world.content()) == (4, [(1, "A"), (2, "b")])
    world.run("DROP TABLE balances")
    world.run("CREATE TABLE balances (account bigint PRIMARY KEY, total text, _checkpoint_id bigint)")
    world.run("INSERT INTO balances VALUES (1, 'A', 4)")
    with pytest.raises(TableChangedError, match="was dropped and created again"):
        world.shown()
    world.replace(5, OLD)
    assert (world.shown(), world.content()) == (5, OLD)
