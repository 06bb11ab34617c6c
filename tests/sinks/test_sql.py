"""``SqlSink`` on real databases: SQLite and PostgreSQL."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from state_engine import SqlSink
from state_engine.core.errors import (
    ConfigurationError,
    MissingFilesError,
    SinkError,
    SinkIdentityError,
)
from state_engine.databases.ledger import LEDGER
from state_engine.databases.sink import SqlPublisher
from state_engine.sinks.staging import located
from state_engine.storage.layout import JobLayout
from tests.sinks.databases import APP, Database
from tests.sinks.requests import move


def test_rows_are_out_of_sight_until_published_once(db: Database) -> None:
    first, second = db.staged("w1", [1, 3], [2]), db.staged("w2", [4])
    assert db.publisher.seen(first.path, APP) == 0
    assert db.ids() == []
    for one, checkpoint_id in ((first, 1), (first, 1), (second, 12), (second, 12), (first, 1)):
        db.publisher.publish(one, APP, checkpoint_id)
    assert db.publisher.seen(first.path, APP) == 12
    assert db.rows() == [(1, "t1"), (2, "t2"), (3, "t3"), (4, "t4")]
    ledger = db.rows(f"SELECT table_name, writer, app, checkpoint_id FROM {LEDGER}")
    assert ledger == [("delays", APP, APP, 12)]


def test_what_waits_of_a_keyed_sink_of_0_2_0_is_refused(lite: Database) -> None:
    staged = lite.staged("w1", [1])
    recorded = json.loads(staged.schema)
    recorded["target"]["key"] = ["id"]
    by_key = replace(staged, schema=json.dumps(recorded))
    with pytest.raises(SinkError, match=r"0\.2\.0 staged rows by key.*run the job once; or restore"):
        lite.publisher.publish(by_key, APP, 1)
    assert (lite.ids(), lite.publisher.seen(staged.path, APP)) == ([], 0)


def test_other_rows_under_the_same_number(db: Database) -> None:
    mine, others = db.staged("w1", [1]), db.staged("w2", [2])
    db.publisher.publish(mine, APP, 3)
    with pytest.raises(SinkIdentityError, match="already holds other rows of checkpoint 3 by '0123/job/out'"):
        db.publisher.publish(others, APP, 3)
    with pytest.raises(SinkIdentityError, match=r"already holds rows of checkpoint 3"):
        db.publisher.publish(others, APP, 2)
    assert db.ids() == [1]
    db.publisher.publish(db.staged("w3", [3], app="0123/job/second"), "0123/job/second", 3)
    assert db.ids() == [1, 3], "another sink counts for itself"


def test_checkpoints_that_the_ledger_has_forgotten(lite: Database) -> None:
    """It counts as seen, for others were published after it; but it is not published again."""
    old = lite.staged("w1", [1])
    lite.publisher.publish(old, APP, 1)
    for number in range(2, 34):
        lite.publisher.publish(lite.staged(f"w{number}", [number]), APP, number)
    lite.publisher.check_seen(old, APP, 1)
    lite.publisher.publish(lite.staged("w3", [3]), APP, 3)
    with pytest.raises(SinkIdentityError, match="already holds rows of checkpoint 33"):
        lite.publisher.publish(old, APP, 1)
    with pytest.raises(SinkIdentityError, match="already holds other rows of checkpoint 3"):
        lite.publisher.check_seen(old, APP, 3)
    assert lite.ids() == list(range(1, 34))


def test_staged_files_that_are_gone(lite: Database) -> None:
    mine = lite.staged("w1", [1], [2])
    path = Path(mine.path.removeprefix("file://")) / mine.files[1].path
    path.unlink()
    with pytest.raises(MissingFilesError, match="is gone"):
        lite.publisher.publish(mine, APP, 1)
    assert lite.ids() == []


def test_outputs_are_withdrawn_and_come_again(db: Database) -> None:
    sinks = [db.staged(f"w{i}", [i * 10], [i * 10 + 1], lineage=True) for i in (1, 2, 3)]
    for checkpoint_id, one in enumerate(sinks, start=1):
        db.publisher.publish(one, APP, checkpoint_id)
    other = db.staged("w2", [90], lineage=True, app="0123/job/second")
    db.publisher.publish(other, "0123/job/second", 2)
    one, two, three = sinks
    back, forth = move(one, add=[], withdraw=[two, three]), move(one, add=[two, three], withdraw=[one])
    for _ in range(2):
        db.publisher.check_withdrawable(back)
        db.publisher.publish(back, APP, 4)
        assert db.ids() == [10, 11, 90], "another sink's rows of the same attempt stay"
    for _ in range(2):
        db.publisher.check_withdrawable(forth)
        db.publisher.publish(forth, APP, 5)
        assert db.ids() == [20, 21, 30, 31, 90]
    assert db.rows("SELECT DISTINCT _write_id FROM delays WHERE id = 20") == [("w2/out",)]


def test_what_cannot_be_withdrawn(lite: Database) -> None:
    one = lite.staged("w1", [1])
    lite.publisher.publish(one, APP, 1)
    back = move(one, add=[], withdraw=[one])
    for asked in (
        lambda: lite.publisher.check_withdrawable(back),
        lambda: lite.publisher.publish(back, APP, 2),
    ):
        with pytest.raises(SinkError, match=r'cannot be withdrawn.*only a lineage column.*outputs="keep"'):
            asked()
    assert (lite.ids(), lite.publisher.seen(one.path, APP)) == ([1], 1)


def test_rows_from_before_the_lineage_column_cannot_be_withdrawn(lite: Database) -> None:
    old = lite.staged("w1", [1, 2])
    lite.publisher.publish(old, APP, 1)
    lite.run("ALTER TABLE delays ADD COLUMN _write_id text")
    new = lite.staged("w2", [3, 4], lineage=True)
    lite.publisher.publish(new, APP, 2)
    lite.publisher.check_withdrawable(move(new, add=[], withdraw=[new]))
    both = move(new, add=[], withdraw=[old, new])
    with pytest.raises(SinkError, match=r'2 of 4 rows are not known by _write_id.*outputs="keep"'):
        lite.publisher.check_withdrawable(both)
    lite.run("UPDATE delays SET _write_id = 'w1/out' WHERE _write_id IS NULL")
    lite.run("DELETE FROM delays WHERE id = 1")
    lite.publisher.check_withdrawable(both)
    lite.publisher.publish(both, APP, 3)
    assert lite.ids() == []


def test_a_root_that_was_moved_is_published_from(lite: Database) -> None:
    mine = lite.staged("w1", [1])
    shutil.move(lite.directory / "root", lite.directory / "moved")
    publisher, mine = SqlPublisher(), located(mine, JobLayout(f"file://{lite.directory}/moved", "job"))
    assert publisher.seen(mine.path, APP) == 0
    publisher.check_withdrawable(mine)
    publisher.publish(mine, APP, 1)
    assert (lite.ids(), publisher.seen(mine.path, APP)) == ([1], 1)


def test_more_rows_than_go_in_one_statement(lite: Database) -> None:
    lite.publisher.publish(lite.staged("w1", range(25_001), [25_001]), APP, 1)
    assert lite.ids() == list(range(25_002))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"url": "postgresql://me:s3cret@host/db"}, "holds a password.*password_env="),
        ({"url": "postgresql://me@host/db?password=s3cret"}, "holds a password.*password_env="),
        ({"url": "mysql://host/db"}, r"does not write to mysql: it is tested with SQLite .* and PostgreSQL"),
        ({"url": "postgresql+pg8000://host/db"}, r"does not write to postgresql\+pg8000"),
        ({"url": "sqlite://"}, "SQLite database in a file"),
        ({"url": "sqlite:///:memory:"}, "SQLite database in a file"),
        ({"url": "/tmp/out.db"}, "is not one: use sqlite:"),
        ({"table": "public.delays"}, "its schema goes into schema="),
    ],
)
def test_what_cannot_be_a_sql_sink(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        SqlSink(**{"url": "sqlite:////tmp/out.db", "table": "delays"} | options)
    assert "s3cret" not in str(caught.value)


def test_a_second_root_is_refused_unless_both_say_that_they_share(lite: Database) -> None:
    lite.publisher.publish(lite.staged("w1", [1]), APP, 1)
    other = "4567/job/out"
    with pytest.raises(SinkIdentityError, match=r"the same job of another root, '0123/job/out'.*shared=True"):
        lite.staged("w2", [2], app=other)
    lite.publisher.publish(lite.staged("w2", [2], app=other, shared=True), other, 1)
    assert lite.ids() == [1, 2]
    # another sink, and the same sink with another table, are no matter
    lite.staged("w3", [3], app="4567/job/too")
