"""Tables that a ``SqlSink`` takes and makes: columns, types, keys, schemas; and passwords."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from state_engine import SqlSink
from state_engine.core.errors import (
    ConfigurationError,
    SinkError,
    SinkIdentityError,
)
from state_engine.databases.ledger import LEDGER
from state_engine.sinks.spark_writer import note_of
from tests.sinks.databases import APP, KERNEL, SCHEMA, Database
from tests.sinks.requests import asked
from tests.support.postgres import PASSWORD_ENV, Server

VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "small": (pa.int8(), -128),
    "big": (pa.int64(), 2**63 - 1),
    "half": (pa.float32(), 0.5),
    "pi": (pa.float64(), 3.141592653589793),
    "yes": (pa.bool_(), True),
    "text": (pa.string(), "ü '\"; DROP TABLE delays; --%s :x"),
    "raw": (pa.binary(), b"\x00\xff"),
    "day": (pa.date32(), date(1582, 10, 15)),
    "at": (pa.timestamp("us", "UTC"), datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)),
    "local": (pa.timestamp("us"), datetime(1969, 12, 31, 23, 59, 59, 999999)),
    "price": (pa.decimal128(38, 4), Decimal("9999999999999999999999999999999999.1250")),
    "Mixed Case": (pa.string(), "kept"),
}


def test_every_type_comes_back_as_it_was(db: Database) -> None:
    schema = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])
    values = tuple(value for _, value in VALUES.values())
    db.publisher.publish(db.staged("w1", [values, (None,) * len(values)], schema=schema), APP, 1)
    target = sa.make_url(db.url).get_backend_name()
    full, empty = sorted(db.rows("SELECT * FROM delays"), key=lambda row: row[0] is None)
    stored = dict(zip(VALUES, full, strict=True))
    assert set(empty) == {None}
    if target == "sqlite":  # as text and numbers, see sql_columns
        assert stored.pop("day") == "1582-10-15"
        assert stored.pop("at") == "2026-03-29 01:30:00.123456"
        assert stored.pop("local") == "1969-12-31 23:59:59.999999"
        assert stored.pop("price") == "9999999999999999999999999999999999.1250"
    assert stored == {name: VALUES[name][1] for name in stored}
    again = db.staged("w2", [values], schema=schema)
    db.publisher.publish(again, APP, 2)
    assert len(db.rows("SELECT * FROM delays")) == 3, "the table that was made is one that is taken"


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ("id bigint", "has no column 'text'"),
        ("id text, text text", "has id TEXT, which does not hold every int64"),
        ("id bigint, text integer", "has text INTEGER, which does not hold every string"),
        ("id bigint, text text, more text NOT NULL", "must be given a value of 'more'"),
        ('id bigint, "Text" text', "has no column 'text'"),
    ],
)
def test_a_table_that_cannot_take_the_rows_is_refused_before_the_batch(
    db: Database, columns: str, why: str
) -> None:
    db.run(f"CREATE TABLE delays ({columns})")
    with pytest.raises(
        SinkError, match=rf"table delays of {db.url.split(':')[0]}.* cannot take these rows.*{why}"
    ):
        db.staged("w1", [1])


OTHER = pa.schema([("id", pa.string()), ("amount", pa.float64())])


def test_a_table_that_a_failed_first_batch_left_empty_takes_other_columns(db: Database) -> None:
    failed = db.staged("w1", [1])  # made, and never published to
    db.publisher.publish(db.staged("w2", [("a", 0.5)], schema=OTHER), APP, 1)
    assert db.rows("SELECT id, amount FROM delays") == [("a", 0.5)]
    with pytest.raises(SinkIdentityError):
        db.publisher.publish(failed, APP, 2)
    with pytest.raises(SinkError, match="cannot take these rows"):
        db.staged("w3", [1])  # it is in use


def test_a_table_that_a_failed_first_batch_left_is_no_other_roots(db: Database) -> None:
    other = "4567/job/out"
    db.staged("w1", [1])
    first = db.staged("w2", [("a", 0.5)], schema=OTHER, app=other)  # with other columns, too
    db.publisher.publish(first, other, 1)
    assert db.rows("SELECT id, amount FROM delays") == [("a", 0.5)]
    with pytest.raises(SinkIdentityError, match="the same job of another root"):
        db.staged("w3", [("b", 0.5)], schema=OTHER)


def test_a_table_with_rows_of_its_own_or_of_another_job_stays(db: Database) -> None:
    db.staged("w1", [1])
    db.run("INSERT INTO delays (id, text) VALUES (1, 'mine')")
    with pytest.raises(SinkError, match="cannot take these rows"):
        db.staged("w2", [("a", 0.5)], schema=OTHER)
    db.run("DELETE FROM delays")
    db.staged("w3", [1], app="0123/other/out")
    with pytest.raises(SinkError, match="cannot take these rows"):
        db.staged("w4", [("a", 0.5)], schema=OTHER)
    assert db.rows() == []


def test_a_table_of_the_users_own_with_columns_that_fill_themselves(db: Database) -> None:
    db.run(
        "CREATE TABLE delays (text varchar(20), id bigint NOT NULL, kind text NOT NULL DEFAULT 'new', note text)"
    )
    db.publisher.publish(db.staged("w1", [1]), APP, 1)
    assert db.rows("SELECT id, text, kind, note FROM delays") == [(1, "t1", "new", None)]


def test_rows_that_the_table_refuses_wait_until_it_takes_them(db: Database) -> None:
    db.run("CREATE TABLE delays (id bigint CHECK (id < 100), text text)")
    mine = db.staged("w1", [1, 2], [300])
    with pytest.raises(SinkError, match=r"does not take the rows of checkpoint 1: .*Nothing was published"):
        db.publisher.publish(mine, APP, 1)
    assert (db.ids(), db.publisher.seen(mine.path, APP)) == ([], 0)
    db.run("ALTER TABLE delays RENAME TO old")
    db.run("CREATE TABLE delays (id bigint, text text)")
    db.publisher.publish(mine, APP, 1)
    assert db.ids() == [1, 2, 300]


def test_rules_of_the_lineage_column_are_judged_with_it(db: Database) -> None:
    request = asked(KERNEL, SCHEMA, "w1", root=f"file://{db.directory}/root")
    target = db.sink(lineage=True).prepare(request)
    refused = target.refused(pa.table({"id": [1, 2], "text": ["a", "b\0"]}, schema=SCHEMA))
    assert list(refused) == ([1] if db.password_env else [])


def test_a_table_that_is_gone_or_was_made_anew(db: Database) -> None:
    mine = db.staged("w1", [1])
    db.run("ALTER TABLE delays RENAME TO aside")
    with pytest.raises(SinkIdentityError, match="is gone, or was recreated"):
        db.publisher.publish(mine, APP, 1)
    newer = db.staged("w2", [2])
    with pytest.raises(SinkIdentityError, match="is gone, or was recreated"):
        db.publisher.publish(mine, APP, 1)
    db.publisher.publish(newer, APP, 2)
    assert db.ids() == [2]
    db.run(f"DROP TABLE {LEDGER}")
    assert db.publisher.seen(mine.path, APP) == 0
    with pytest.raises(SinkIdentityError, match="is gone, or was recreated"):
        db.publisher.publish(newer, APP, 2)
    assert db.ids() == [2]


def test_what_an_output_cannot_be(lite: Database) -> None:
    with pytest.raises(SinkError, match=r"cannot hold tags list.*to_json"):
        lite.staged("w1", schema=pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))]))
    with pytest.raises(ConfigurationError, match="has a column _write_id already"):
        lite.staged("w1", schema=pa.schema([("_write_id", pa.string())]), lineage=True)
    lite.publisher.publish(lite.staged("w1", [1]), APP, 1)
    with pytest.raises(SinkError, match="has no column '_write_id', see lineage="):
        lite.staged("w2", [1], lineage=True)
    lite.run("CREATE VIEW seen AS SELECT * FROM delays")
    with pytest.raises(SinkError, match="is a view"):
        SqlSink(lite.url, "seen").prepare(asked(KERNEL, SCHEMA, "w1"))


def test_a_database_that_cannot_be_reached(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"cannot be used: unable to open database file.*run again"):
        Database(tmp_path, f"sqlite:///{tmp_path}/no/such/directory.db").staged("w1", [1])


def test_the_password_is_nowhere(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = Database(tmp_path, server.new_database(), PASSWORD_ENV, server.password)
    monkeypatch.delenv(PASSWORD_ENV, raising=False)
    with pytest.raises(SinkError, match=f"environment variable {PASSWORD_ENV}, .* is not set"):
        db.staged("w1", [1])
    monkeypatch.setenv(PASSWORD_ENV, "wrong-s3cret")
    with pytest.raises(SinkError, match="password authentication failed") as caught:
        db.staged("w1", [1])
    monkeypatch.setenv(PASSWORD_ENV, server.password)
    mine = db.staged("w1", [1])
    db.publisher.publish(mine, APP, 1)
    shown = [str(caught.value), repr(caught.value.__cause__), repr(mine), repr(db.sink())]
    shown += [p.read_text() for p in tmp_path.rglob("*.json")]
    assert not [text for text in shown if "s3cret" in text or server.password in text]


def test_narrow_columns_and_schemas_of_postgresql(postgres: Database) -> None:
    db = postgres
    db.run("CREATE SCHEMA reports")
    db.schema = "reports"
    for columns, kind, why in [
        ("v integer", pa.int64(), "v INTEGER, which does not hold every int64"),
        ("v real", pa.float64(), "v REAL, which does not hold every double"),
        ("v numeric(10, 2)", pa.decimal128(10, 3), "which does not hold every decimal"),
        ("v timestamp", pa.timestamp("us", "UTC"), "v TIMESTAMP, which does not hold every timestamp"),
    ]:
        db.run(f"CREATE TABLE reports.delays (n integer GENERATED ALWAYS AS IDENTITY, {columns})")
        with pytest.raises(SinkError, match=rf"table reports\.delays of .*{why}"):
            db.staged("w1", schema=pa.schema([("v", kind)]))
        db.run("DROP TABLE reports.delays")
    db.run(
        "CREATE TABLE reports.delays (n integer GENERATED ALWAYS AS IDENTITY, v numeric(12, 3), id integer)"
    )
    schema = pa.schema([("v", pa.decimal128(10, 3)), ("id", pa.int32())])
    db.publisher.publish(db.staged("w1", [(Decimal("1.125"), 7)], schema=schema), APP, 1)
    assert db.rows("SELECT n, v, id FROM reports.delays") == [(1, Decimal("1.125"), 7)]
    assert db.rows(f"SELECT max(checkpoint_id) FROM reports.{LEDGER}") == [(1,)]


def swapped(db: Database, *, rows: bool) -> None:
    """What a DBA does: another table under the name, with or without the rows."""
    db.run("ALTER TABLE delays RENAME TO old")
    db.run(f"CREATE TABLE delays AS SELECT * FROM old WHERE {int(rows)} = 1")
    db.run("DROP TABLE old")


def test_a_table_that_is_put_back_is_the_old_one(db: Database) -> None:
    one, two = db.staged("w1", [1]), db.staged("w2", [2])
    db.publisher.publish(one, APP, 1)
    db.run("ALTER TABLE delays RENAME TO aside")
    db.run("CREATE TABLE delays (id bigint, text text)")
    assert db.publisher.seen(one.path, APP) == 0
    db.run("DROP TABLE delays")
    db.run("ALTER TABLE aside RENAME TO delays")
    db.run("ALTER TABLE delays ADD COLUMN more integer")
    db.run("DELETE FROM delays")  # its owner may
    db.publisher.publish(two, APP, 2)
    assert (db.ids(), db.publisher.seen(two.path, APP)) == ([2], 2)


def test_each_application_knows_its_own_table(db: Database) -> None:
    other = "0123/other/out"
    one = db.staged("w1", [1])
    db.publisher.publish(one, APP, 1)
    swapped(db, rows=False)
    db.publisher.publish(db.staged("w2", [2], app=other), other, 1)
    assert db.publisher.seen(one.path, APP) == 0
    assert db.ids() == [2]


def test_the_ledger_of_0_2_0_is_converted_once(db: Database) -> None:
    """It had a row for each checkpoint, and did not know which table it is: the first publish records that."""
    sinks = [db.staged(f"w{n}", [n]) for n in range(4)]
    for number in (1, 2):
        db.publisher.publish(sinks[number], APP, number)
    db.run(f"DROP TABLE {LEDGER}")
    db.run(
        "CREATE TABLE _statelake_ledger (app text, checkpoint_id bigint, files_digest text, published_at timestamp, "
        "PRIMARY KEY (app, checkpoint_id))"
    )
    other = "0123/job/second"
    identities = {APP: sinks[0].identity, other: "77 delays", "0123/job/third": "88 elsewhere"}
    former = [(APP, number, note_of(sinks[number])) for number in (1, 2)]
    former += [(app, 0, identity) for app, identity in identities.items()]
    former += [(APP, -1, "delays"), (other, -1, "left"), (other, 7, "digest")]
    for row in former:
        db.run(f"INSERT INTO _statelake_ledger VALUES {row}".replace(")", ", CURRENT_TIMESTAMP)"))
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: db.publisher.seen(sinks[0].path, APP), range(4))) == {2}
    assert not sa.inspect(db.connected()).has_table("_statelake_ledger")
    assert db.rows(f"SELECT table_name, app, checkpoint_id, is_made FROM {LEDGER} ORDER BY app") == [
        ("delays", APP, 2, True),
        ("delays", other, 7, False),
        ("elsewhere", "0123/job/third", 0, False),
    ]
    for number in (1, 2):
        db.publisher.publish(sinks[number], APP, number)
    assert db.ids() == [1, 2], "what was published is known"
    with pytest.raises(SinkIdentityError, match="already holds other rows of checkpoint 1"):
        db.publisher.publish(sinks[3], APP, 1)
    db.publisher.publish(sinks[3], APP, 3)
    swapped(db, rows=True)
    assert db.publisher.seen(sinks[0].path, APP) == 0


def test_nothing_is_accepted_where_no_table_is(db: Database) -> None:
    one = db.staged("w1", [1])
    db.publisher.publish(one, APP, 1)
    db.run("DROP TABLE delays")
    with pytest.raises(SinkIdentityError, match="is gone"):
        db.publisher.accept(one, APP)


def test_a_dump_that_is_put_back_holds_the_table_that_is_known(db: Database) -> None:
    """Of a whole database: all tables have other numbers then."""
    one, two = db.staged("w1", [1]), db.staged("w2", [2])
    db.publisher.publish(one, APP, 1)
    if db.password_env:
        for table in ("delays", LEDGER):
            db.run(f"CREATE TABLE copied (LIKE {table} INCLUDING ALL)")
            db.run(f"INSERT INTO copied SELECT * FROM {table}")
            db.run(f"DROP TABLE {table}")
            db.run(f"ALTER TABLE copied RENAME TO {table}")
    else:
        path = Path(db.url.removeprefix("sqlite:///"))
        with sqlite3.connect(path) as connection:
            script = "\n".join(connection.iterdump())
        connection.close()
        path.unlink()
        with sqlite3.connect(path) as connection:
            connection.executescript(script)
        connection.close()
    db.publisher.publish(two, APP, 2)
    assert db.ids() == [1, 2]
    swapped(db, rows=True)
    assert db.publisher.seen(two.path, APP) == 0
