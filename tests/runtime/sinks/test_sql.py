"""``SqlSink`` on real databases: SQLite always, PostgreSQL where its programs are installed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from state_engine import SqlSink
from state_engine.core.checkpoint import StagedSink
from state_engine.core.errors import (
    CommitFailedError,
    CommitUnknownError,
    ConfigurationError,
    MissingFilesError,
    SinkError,
    SinkIdentityError,
)
from state_engine.runtime.output_files import write_sink_file
from state_engine.runtime.sinks import sql_database
from state_engine.runtime.sinks.sql import SqlPublisher
from state_engine.runtime.sinks.sql_ledger import LEDGER, Ledger
from state_engine.runtime.sinks.staging import Staging
from tests.runtime.sinks.servers import PASSWORD_ENV, Server, postgres_binaries

APP = "0123/job/out"
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


class NoKernel:
    """In place of the kernel, of which the sink needs nothing but which it is."""


KERNEL: Any = NoKernel()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server of its own."""
    with Server.started() as made:
        yield made


DATABASES = [
    "sqlite",
    pytest.param(
        "postgresql",
        marks=[
            pytest.mark.long,
            pytest.mark.skipif(postgres_binaries() is None, reason="PostgreSQL is not installed"),
        ],
    ),
]


@pytest.fixture(params=DATABASES)
def db(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """An empty database, and a root to stage in."""
    if request.param == "sqlite":
        return Database(tmp_path, f"sqlite:///{tmp_path}/out.db")
    running: Server = request.getfixturevalue("server")
    monkeypatch.setenv(PASSWORD_ENV, running.password)
    return Database(tmp_path, running.new_database(), PASSWORD_ENV, running.password)


@pytest.fixture
def lite(tmp_path: Path) -> Database:
    """What does not depend on the database."""
    return Database(tmp_path, f"sqlite:///{tmp_path}/out.db")


class Database:
    """A database with one sink table, seen by the sink and, over a connection of its own, by its user."""

    def __init__(
        self, directory: Path, url: str, password_env: str | None = None, password: str = ""
    ) -> None:
        self.directory, self.url, self.password_env = directory, url, password_env
        self.schema: str | None = None
        self.publisher = SqlPublisher(Staging(KERNEL, f"file://{directory}/root"))
        self._user_url = sa.make_url(url).set(password=password) if password else sa.make_url(url)

    def sink(self, **options: Any) -> SqlSink:
        return SqlSink(self.url, "delays", schema=self.schema, password_env=self.password_env, **options)

    def staged(
        self, write_id: str, *parts: Any, schema: pa.Schema = SCHEMA, app: str = APP, **options: Any
    ) -> StagedSink:
        """What one attempt stages, a file for each part: ids, or whole rows."""
        name = app.rsplit("/", 1)[-1]
        target = self.sink(**options).prepare(KERNEL, name, app, schema, write_id)
        files = []
        for subtask, part in enumerate(parts):
            rows = [(i, f"t{i}") if isinstance(i, int) else i for i in part]
            columns = list(zip(*rows, strict=True))
            table = pa.table(
                [pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)], schema.names
            )
            files.append(write_sink_file(table, target, target.file_name(write_id, subtask, 0), subtask))
        return target.staged(files)

    def rows(self, query: str = "SELECT id, text FROM delays ORDER BY id, text") -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.run(query) or []]

    def ids(self) -> list[int]:
        return [row[0] for row in self.rows()]

    def run(self, statement: str) -> Any:
        engine = sa.create_engine(self._user_url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            found = connection.execute(sa.text(statement))
            return found.fetchall() if found.returns_rows else None


def test_rows_are_out_of_sight_until_published_once(db: Database) -> None:
    first, second = db.staged("w1", [1, 3], [2]), db.staged("w2", [4])
    assert db.publisher.seen(first.path, APP) == 0
    assert db.ids() == []
    for one, checkpoint_id in ((first, 1), (first, 1), (second, 12), (second, 12), (first, 1)):
        db.publisher.publish(one, APP, checkpoint_id)
    assert db.publisher.seen(first.path, APP) == 12
    assert db.rows() == [(1, "t1"), (2, "t2"), (3, "t3"), (4, "t4")]
    ledger = db.rows(f"SELECT app, checkpoint_id FROM {LEDGER} ORDER BY checkpoint_id")
    assert ledger == [(APP, 0), (APP, 1), (APP, 12)]


def test_the_last_row_of_a_key_wins(db: Database) -> None:
    key: Any = {"key": ["id"]}
    db.publisher.publish(
        db.staged("w1", [(1, "a"), (2, "a"), (1, "b")], [(1, "c"), (3, None)], **key), APP, 1
    )
    assert db.rows() == [(1, "c"), (2, "a"), (3, None)]
    again = db.staged("w2", [(3, "d"), (2, None)], **key)
    for _ in range(2):
        db.publisher.publish(again, APP, 2)
        assert db.rows() == [(1, "c"), (2, None), (3, "d")]
    lonely = db.staged("w3", [(9,), (9,)], schema=pa.schema([("id", pa.int64())]), **key)
    db.publisher.publish(lonely, APP, 3)
    assert db.rows()[-1] == (9, None)


def test_a_key_of_two_columns_that_a_unique_index_knows(db: Database) -> None:
    db.run("CREATE TABLE delays (id bigint, text text, seen_at integer)")
    with pytest.raises(SinkError, match=r"no primary key or unique constraint of exactly \['id', 'text'\]"):
        db.staged("w1", [1], key=["id", "text"])
    db.run("CREATE UNIQUE INDEX in_part ON delays (text, id) WHERE id > 5")
    with pytest.raises(SinkError, match="no primary key or unique constraint"):
        db.staged("w1", [1], key=["id", "text"])
    db.run("CREATE UNIQUE INDEX whole ON delays (text, id)")
    db.publisher.publish(db.staged("w1", [1, 2, 1], key=["id", "text"]), APP, 1)
    assert db.rows() == [(1, "t1"), (2, "t2")]
    with pytest.raises(SinkError, match=r"null in the key column 'text'"):
        db.publisher.publish(db.staged("w2", [(7, "x"), (8, None)], key=["id", "text"]), APP, 2)
    assert db.ids() == [1, 2]
    assert db.publisher.seen(db.staged("w3", key=["id", "text"]).path, APP) == 1


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
    found = dict(zip(VALUES, full, strict=True))
    assert set(empty) == {None}
    if target == "sqlite":  # as text and numbers, see sql_columns
        assert found.pop("day") == "1582-10-15"
        assert found.pop("at") == "2026-03-29 01:30:00.123456"
        assert found.pop("local") == "1969-12-31 23:59:59.999999"
        assert found.pop("price") == "9999999999999999999999999999999999.1250"
    assert found == {name: VALUES[name][1] for name in found}
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


def test_other_rows_under_the_same_number(db: Database) -> None:
    mine, others = db.staged("w1", [1]), db.staged("w2", [2])
    db.publisher.publish(mine, APP, 3)
    with pytest.raises(
        SinkIdentityError, match=r"already holds other rows of checkpoint 3 by '0123/job/out'"
    ):
        db.publisher.publish(others, APP, 3)
    with pytest.raises(SinkIdentityError, match=r"already holds rows of checkpoint 3"):
        db.publisher.publish(others, APP, 2)
    assert db.ids() == [1]
    db.publisher.publish(db.staged("w3", [3], app="0123/job/second"), "0123/job/second", 3)
    assert db.ids() == [1, 3], "another sink counts for itself"


def test_a_table_that_is_gone_or_was_made_anew(db: Database) -> None:
    mine = db.staged("w1", [1])
    db.run("ALTER TABLE delays RENAME TO aside")
    with pytest.raises(SinkIdentityError, match="is gone, or was made anew"):
        db.publisher.publish(mine, APP, 1)
    newer = db.staged("w2", [2])
    with pytest.raises(SinkIdentityError, match="is gone, or was made anew"):
        db.publisher.publish(mine, APP, 1)
    db.publisher.publish(newer, APP, 2)
    assert db.ids() == [2]
    db.run(f"DROP TABLE {LEDGER}")
    assert db.publisher.seen(mine.path, APP) == 0
    with pytest.raises(SinkIdentityError, match="is gone, or was made anew"):
        db.publisher.publish(newer, APP, 2)
    assert db.ids() == [2]


def test_staged_files_that_are_gone(lite: Database) -> None:
    mine = lite.staged("w1", [1], [2])
    path = Path(mine.path.removeprefix("file://")) / mine.files[1].path
    path.unlink()
    with pytest.raises(MissingFilesError, match="is gone"):
        lite.publisher.publish(mine, APP, 1)
    assert lite.ids() == []


def move(one: StagedSink, *, add: list[StagedSink], withdraw: list[StagedSink]) -> StagedSink:
    """What a row records that leaves some outputs and brings others."""
    return replace(
        one, files=[f for s in add for f in s.files], withdrawn=[f for s in withdraw for f in s.files]
    )


def test_outputs_are_withdrawn_and_come_again(db: Database) -> None:
    made = [db.staged(f"w{i}", [i * 10], [i * 10 + 1], lineage=True) for i in (1, 2, 3)]
    for checkpoint_id, one in enumerate(made, start=1):
        db.publisher.publish(one, APP, checkpoint_id)
    other = db.staged("w2", [90], lineage=True, app="0123/job/second")
    db.publisher.publish(other, "0123/job/second", 2)
    one, two, three = made
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


@pytest.mark.parametrize(
    ("options", "why"),
    [({}, "only a lineage column could tell"), ({"key": ["id"]}, "replaced others by their key")],
)
def test_what_cannot_be_withdrawn(lite: Database, options: dict[str, Any], why: str) -> None:
    one = lite.staged("w1", [1], **options)
    lite.publisher.publish(one, APP, 1)
    back = move(one, add=[], withdraw=[one])
    for asked in (
        lambda: lite.publisher.check_withdrawable(back),
        lambda: lite.publisher.publish(back, APP, 2),
    ):
        with pytest.raises(SinkError, match=rf'cannot be withdrawn.*{why}.*outputs="keep"'):
            asked()
    assert (lite.ids(), lite.publisher.seen(one.path, APP)) == ([1], 1)


class Killed(BaseException):
    """Stands for the death of the process."""


@pytest.mark.parametrize("step", ["take", "write_rows", "commit", "after"])
def test_crash_at_every_step_and_publish_again(
    db: Database, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def dies(*_: Any) -> None:
        raise Killed

    publish = sql_database.SqlTable.publish

    def dies_after(*args: Any) -> None:
        publish(*args)
        raise Killed

    mine = db.staged("w1", [1, 2], key=["id"])
    where: Any = {"take": Ledger, "write_rows": sql_database, "commit": sa.Connection}
    with monkeypatch.context() as patch:
        if step == "after":
            patch.setattr(sql_database.SqlTable, "publish", dies_after)
        else:
            patch.setattr(where[step], step, dies)
        with pytest.raises(Killed):
            db.publisher.publish(mine, APP, 1)
    assert db.ids() == ([1, 2] if step == "after" else [])
    assert db.publisher.seen(mine.path, APP) == int(step == "after")
    db.run("DELETE FROM delays WHERE id = 1")  # so that a second insert would be seen
    db.publisher.publish(mine, APP, 1)
    assert db.ids() == ([2] if step == "after" else [1, 2])


def commit_that(does: Callable[[Callable[[], None]], None]) -> Callable[[sa.Connection], None]:
    """A commit that breaks off after, or without, having worked."""
    real = sa.Connection.commit

    def commit(self: sa.Connection) -> None:
        does(lambda: real(self))
        raise OperationalError("COMMIT", {}, Exception("the connection was closed"))

    return commit


def test_the_outcome_of_a_broken_commit_is_looked_up(lite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = lite.staged("w1", [1]), lite.staged("w2", [2])
    with monkeypatch.context() as patch:
        patch.setattr(sa.Connection, "commit", commit_that(lambda real: real()))
        lite.publisher.publish(one, APP, 1)
        patch.setattr(sa.Connection, "commit", commit_that(lambda real: None))
        with pytest.raises(
            CommitFailedError, match=r"was not written to.*the connection was closed.*run again"
        ):
            lite.publisher.publish(two, APP, 2)
    assert lite.ids() == [1]

    def unplug(real: Callable[[], None]) -> None:
        real()
        shutil.move(lite.directory / "out.db", lite.directory / "away.db")
        (lite.directory / "out.db").mkdir()

    with monkeypatch.context() as patch:
        patch.setattr(sa.Connection, "commit", commit_that(unplug))
        with pytest.raises(CommitUnknownError, match=r"broke off.*ledger cannot be read"):
            lite.publisher.publish(two, APP, 2)
    (lite.directory / "out.db").rmdir()
    shutil.move(lite.directory / "away.db", lite.directory / "out.db")
    lite.publisher.publish(two, APP, 2)
    assert lite.ids() == [1, 2]


def test_a_publish_and_its_twins_at_once(db: Database) -> None:
    for checkpoint_id in range(1, 6):
        mine = db.staged(f"w{checkpoint_id}", [checkpoint_id], [checkpoint_id * 100])
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda n, one=mine: db.publisher.publish(one, APP, n), [checkpoint_id] * 4))
    assert db.ids() == sorted([n * f for n in range(1, 6) for f in (1, 100)])


def test_runners_that_make_the_table_at_once_agree_on_it(db: Database) -> None:
    for _ in range(5):
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda n: db.staged(f"w{n}", [n]), range(4)))
        assert len({one.identity for one in made}) == 1
        db.publisher.check_withdrawable(made[0])
        db.run("DROP TABLE delays")


def test_a_root_that_was_moved_is_published_from(lite: Database) -> None:
    mine = lite.staged("w1", [1])
    shutil.move(lite.directory / "root", lite.directory / "moved")
    publisher = SqlPublisher(Staging(NoKernel(), f"file://{lite.directory}/moved"))  # type: ignore[arg-type]
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
        ({"key": "id"}, r"must be a list of columns: \['id'\]"),
        ({"key": ["id"], "lineage": True}, "cannot be withdrawn, so lineage=True is of no use"),
        ({"table": "public.delays"}, "its schema goes into schema="),
    ],
)
def test_what_cannot_be_a_sql_sink(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        SqlSink(**{"url": "sqlite:////tmp/out.db", "table": "delays"} | options)
    assert "s3cret" not in str(caught.value)


def test_what_an_output_cannot_be(lite: Database) -> None:
    with pytest.raises(SinkError, match=r"cannot hold tags list.*to_json"):
        lite.staged("w1", schema=pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))]))
    with pytest.raises(SinkError, match=r"the key columns \['no'\] are not in the output"):
        lite.staged("w1", key=["no"])
    with pytest.raises(ConfigurationError, match="has a column _write_id already"):
        lite.staged("w1", schema=pa.schema([("_write_id", pa.string())]), lineage=True)
    lite.staged("w1", [1])
    with pytest.raises(SinkError, match="has no column '_write_id', see lineage="):
        lite.staged("w2", [1], lineage=True)
    lite.run("CREATE VIEW seen AS SELECT * FROM delays")
    with pytest.raises(SinkError, match="is a view"):
        SqlSink(lite.url, "seen").prepare(KERNEL, "out", APP, SCHEMA, "w1")


def test_a_database_that_cannot_be_reached(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"cannot be used: unable to open database file.*run again"):
        Database(tmp_path, f"sqlite:///{tmp_path}/no/such/directory.db").staged("w1", [1])


@pytest.mark.long
@pytest.mark.skipif(postgres_binaries() is None, reason="PostgreSQL is not installed")
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
    told = [str(caught.value), repr(caught.value.__cause__), repr(mine), repr(db.sink())]
    told += [p.read_text() for p in tmp_path.rglob("*.json")]
    assert not [text for text in told if "s3cret" in text or server.password in text]


@pytest.mark.long
@pytest.mark.skipif(postgres_binaries() is None, reason="PostgreSQL is not installed")
def test_narrow_columns_and_schemas_of_postgresql(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_ENV, server.password)
    db = Database(tmp_path, server.new_database(), PASSWORD_ENV, server.password)
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
