"""Tables that show a keyed state: their columns, types and keys, those that are taken over, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from state_engine import SqlSink, SqlStateTable
from state_engine.core.errors import ConfigurationError, SinkError, SinkIdentityError
from state_engine.state_tables.base import ShownCheckpoint, TableColumns
from tests.sinks.requests import asked
from tests.sinks.test_sql_tables import VALUES as VALUES_OF_SINKS
from tests.state_tables.sql_world import APP, COLUMNS, Failing, World, rows_of
from tests.support.killed import Killed

VALUES: dict[str, tuple[pa.DataType, Any]] = {
    **VALUES_OF_SINKS,
    "endless": (pa.float64(), float("-inf")),
    "Mixed % case": (pa.string(), "kept"),
}


def test_every_type_comes_back_as_it_was(world: World) -> None:
    fields = [("id", pa.int64()), *((name, kind) for name, (kind, _) in VALUES.items())]
    world.columns = TableColumns(pa.schema(fields), ("id",))
    values = tuple(value for _, value in VALUES.values())
    rows = [(1, *values), (2, *[None] * len(values))]
    world.create()
    world.target.check_columns(world.columns)
    world.apply(0, 1, rows)
    rows[0] = tuple(
        rows_of(world.columns, rows[:1]).to_pylist()[0].values()
    )  # 0.1 of 32 bits is another number
    assert (world.content(), world.shown()) == (rows, 1)


@pytest.mark.parametrize("name", [n for n, (kind, _) in VALUES.items() if not pa.types.is_floating(kind)])
def test_every_type_that_can_be_a_key_is_one(world: World, name: str) -> None:
    kind, value = VALUES[name]
    for key in (("key",), ("first", "key")):
        fields = [("first", pa.string()), ("key", kind), ("n", pa.int64())]
        world.columns = TableColumns(pa.schema(fields), key, () if "first" in key else ("first",))
        at = [world.columns.schema.names.index(n) for n in world.columns.identity]

        def of(row: tuple[Any, ...], at: list[int] = at) -> tuple[Any, ...]:
            return tuple(row[i] for i in at)

        row, other = ("a", value, 1), ("b", value, 2)
        world.replace(1, [row, other])
        world.apply(1, 2, [("a", value, 3)])
        assert world.content() == [("a", value, 3), other]
        world.apply(2, 3, deleted=[of(row)])
        assert world.content() == [other]
        world.apply(3, 4, cleared=[of(other)[: len(key)]])
        assert world.content() == []
        world.run("DROP TABLE balances")


def test_null_in_parts_of_a_key(world: World) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int64()), ("entry", pa.int64()), ("n", pa.int64())])
    world.columns = TableColumns(schema, ("a", "b"), ("entry",))
    rows = [(None, None, 1, 1), (None, 1, 1, 2), ("x", None, 1, 3), ("x", 1, 1, 4), (None, None, 2, 5)]
    world.create()
    world.apply(0, 1, rows)
    world.apply(1, 2, [(*row[:3], row[3] * 10) for row in rows])
    assert world.content() == [
        (None, None, 1, 10),
        (None, None, 2, 50),
        (None, 1, 1, 20),
        ("x", None, 1, 30),
        ("x", 1, 1, 40),
    ]
    world.apply(2, 3, [(None, None, 3, 6)], cleared=[(None, None), ("x", 1)], deleted=[(None, 1, 1)])
    assert world.content() == [(None, None, 3, 6), ("x", None, 1, 30)]


def test_more_rows_than_go_in_one_statement(world: World) -> None:
    rows = [(n, f"t{n}") for n in range(12_345)]
    world.create()
    world.apply(0, 1, rows)
    world.apply(1, 2, [(n, "x") for n, _ in rows[::2]], deleted=[(n,) for n, _ in rows[1::2]])
    assert world.content() == [(n, "x") for n, _ in rows[::2]]
    world.apply(2, 3, cleared=[(n,) for n, _ in rows])
    assert world.content() == []
    world.target.replace(
        COLUMNS,
        rows_of(COLUMNS, rows).to_batches(max_chunksize=20_000),
        to=ShownCheckpoint(4),
    )
    assert world.content() == rows


def test_nan_is_null_in_sqlite_only(world: World) -> None:
    world.columns = TableColumns(pa.schema([("id", pa.int64()), ("v", pa.float64())]), ("id",))
    values = [(1, float("nan")), (2, 0.5), (3, None)]
    world.replace(1, values)
    held = world.target.held(rows_of(world.columns, values)).to_pylist()
    (content,) = world.target.content(world.columns)
    assert str(content.sort_by("id").to_pylist()) == str(held), "NaN does not equal itself"
    assert (held[0]["v"] is None) == world.is_sqlite


# -- tables that are there already ------------------------------------------------------------------------------------


def test_a_table_that_is_taken_over(world: World) -> None:
    world.run(
        "CREATE TABLE balances (total varchar(20), seen integer DEFAULT 7, account integer, UNIQUE (account))"
        if world.is_sqlite
        else "CREATE TABLE balances (total varchar(20), seen integer DEFAULT 7, account bigint, UNIQUE (account))"
    )
    world.run("INSERT INTO balances (account, total) VALUES (1, 'a'), (2, 'b')")
    world.target.check_columns(COLUMNS)
    world.adopt()
    assert (world.shown(), world.rows()) == (0, [(1, "a", 0), (2, "b", 0)])
    world.apply(0, 4, [(2, "B"), (3, "c")], deleted=[(1,)])
    assert world.rows("SELECT account, total, seen FROM balances ORDER BY account") == [
        (2, "B", 7),
        (3, "c", 7),
    ]
    world.run("INSERT INTO balances (account, total) VALUES (4, 'theirs')")
    world.adopt()
    assert (world.shown(), world.rows()) == (0, [(2, "B", 0), (3, "c", 0), (4, "theirs", 0)])


def test_a_table_is_taken_over_whole_or_not_at_all(world: World) -> None:
    def raw() -> list[str]:
        return sorted(c["name"] for c in sa.inspect(world.engine).get_columns("balances"))

    def make() -> None:
        world.run("DROP TABLE IF EXISTS balances")
        world.run("CREATE TABLE balances (account bigint PRIMARY KEY)")
        world.run("INSERT INTO balances VALUES (1), (2)")

    make()
    world.adopt()  # the ledger is there from now on
    make()
    with Failing(None, killed=True) as whole:
        world.adopt()
    for step in range(whole.steps):
        make()
        with Failing(step, killed=True), pytest.raises(Killed):
            world.adopt()
        assert raw() == ["account"]
        world.adopt()
        assert raw() == ["_checkpoint_id", "account", "total"]
        assert world.rows() == [(1, None, 0), (2, None, 0)]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("account bigint, total text", r"no primary key or unique constraint of exactly \['account'\]"),
        ("account bigint PRIMARY KEY, total bigint", "has total BIGINT, which does not hold every string"),
        ("id bigint PRIMARY KEY, total text", "has no column 'account'"),
        ("account bigint PRIMARY KEY, at text NOT NULL", "must be given a value of 'at'"),
        ("account bigint PRIMARY KEY, _checkpoint_id text", "has _checkpoint_id TEXT"),
    ],
)
def test_what_cannot_be_taken_over(world: World, table: str, why: str) -> None:
    world.run(f"CREATE TABLE balances ({table})")
    for asked_for in (world.adopt, lambda: world.target.check_columns(COLUMNS)):
        with pytest.raises(
            SinkError, match=rf"cannot take these rows.*{why}.*or drop it, and the next run rebuilds it"
        ):
            asked_for()
    with pytest.raises(SinkIdentityError, match="belongs to nobody"):
        world.shown()


def test_a_table_whose_key_is_a_unique_index_is_taken_over(world: World) -> None:
    columns = [("account", pa.int64()), ("day", pa.int64()), ("total", pa.string())]
    world.columns = TableColumns(pa.schema(columns), ("account", "day"))
    world.run("CREATE TABLE balances (account bigint, day bigint, total text, seen_at integer)")
    world.run("CREATE UNIQUE INDEX in_part ON balances (day, account) WHERE account > 5")
    with pytest.raises(
        SinkError, match=r"no primary key or unique constraint of exactly \['account', 'day'\]"
    ):
        world.adopt()
    world.run("CREATE UNIQUE INDEX whole ON balances (day, account)")
    world.adopt()
    world.apply(0, 1, [(1, 2, "a"), (1, 3, "b")])
    world.apply(1, 2, [(1, 2, "A")])
    assert world.rows("SELECT * FROM balances ORDER BY day") == [(1, 2, "A", None, 2), (1, 3, "b", None, 1)]


@pytest.mark.parametrize("name", ["check", "not null", "varchar"])
def test_a_row_that_the_table_refuses_is_named_with_its_column(world: World, name: str) -> None:
    """It is in the state by then, so nothing can set it aside: the table stays as it is until it takes the row."""
    rule, value, says = {
        "check": ("text CONSTRAINT short CHECK (length(total) < 4)", "abcd", "(constraint|failed:) short"),
        "not null": ("text NOT NULL", None, "the column 'total' holds null: it must not be null"),
        "varchar": ("varchar(3)", "abcd", "the column 'total' holds 'abcd': it takes 3 characters at most"),
    }[name]
    if world.is_sqlite and name == "varchar":
        pytest.skip("SQLite holds longer texts, too")
    world.run(f"CREATE TABLE balances (account bigint PRIMARY KEY, total {rule})")
    world.adopt()
    world.apply(0, 1, [(1, "a")])
    why = rf"does not take the rows of checkpoint 2: the row with account=7: .*{says}.*let the table take them and run"
    with pytest.raises(SinkError, match=why):
        world.apply(1, 2, [(5, "b"), (7, value)])
    with pytest.raises(SinkError, match=why):
        world.replace(2, [(5, "b"), (7, value)])
    assert (world.shown(), world.content()) == (1, [(1, "a")])
    world.apply(1, 2, [(5, "b")])
    assert world.content() == [(1, "a"), (5, "b")]


def test_a_view_shows_no_state(world: World) -> None:
    world.run("CREATE VIEW balances AS SELECT 1 AS account, 'a' AS total")
    for asked_for in (world.adopt, lambda: world.replace(1, []), world.content):
        with pytest.raises(SinkError, match="is a view: name a table"):
            asked_for()


def test_keys_that_sqlite_holds_as_text_are_not_taken_over(lite: World) -> None:
    lite.columns = TableColumns(pa.schema([("day", pa.date32()), ("n", pa.int64())]), ("day",))
    lite.run("CREATE TABLE balances (day date PRIMARY KEY, n bigint)")
    with pytest.raises(SinkError, match="cannot be taken over: SQLite holds the key column 'day' as text"):
        lite.adopt()


def test_values_that_the_state_cannot_have(lite: World) -> None:
    lite.columns = TableColumns(pa.schema([("id", pa.int64()), ("n", pa.int8())]), ("id",))
    lite.run("CREATE TABLE balances (id bigint PRIMARY KEY, n bigint)")
    lite.run("INSERT INTO balances VALUES (1, 1000)")
    with pytest.raises(SinkError, match=r"holds a value that the state cannot have.*rebuild-table job"):
        lite.content()


def test_a_state_that_gets_fields(world: World) -> None:
    world.replace(1, [(1, "a"), (2, "b")])
    more = TableColumns(COLUMNS.schema.append(pa.field("per cent %", pa.int16())), ("account",))
    world.columns = more
    world.target.check_columns(more)
    assert world.content() == [(1, "a", None), (2, "b", None)], "a check changes nothing"
    world.apply(1, 2, [(2, "B", 50)])
    assert world.content() == [(1, "a", None), (2, "B", 50)]
    world.columns = replace(more, schema=more.schema.append(pa.field("at", pa.timestamp("us"))))
    world.replace(3, [(3, "c", 1, datetime(2026, 1, 1))])
    assert world.content() == [(3, "c", 1, datetime(2026, 1, 1))]
    world.columns = COLUMNS
    world.target.check_columns(COLUMNS)
    world.apply(3, 4, [(4, "d")])
    assert world.content() == [(3, "c"), (4, "d")]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        (
            TableColumns(pa.schema([("account", pa.int64()), ("total", pa.int64())]), ("account",)),
            "has total TEXT, which does not hold every int64",
        ),
        (
            TableColumns(COLUMNS.schema.append(pa.field("day", pa.date32())), ("account",), ("day",)),
            "has no column 'day'",
        ),
    ],
)
def test_a_state_whose_columns_do_not_fit_any_more(world: World, columns: TableColumns, why: str) -> None:
    world.replace(1, [(1, "a")])
    with pytest.raises(
        SinkError, match=f"{why}.*Alter the table; or .*`statelake rebuild-table job balance`"
    ):
        world.target.check_columns(columns)
    assert (world.shown(), world.content()) == (1, [(1, "a")])
    world.columns = columns
    world.replace(2, rows := [(1, 2)] if len(columns.schema) == 2 else [(1, "a", date(2026, 1, 1))])
    assert (world.shown(), world.content()) == (2, rows), "it was rebuilt with the columns of the state"


def test_a_table_of_others_is_never_made_anew(world: World) -> None:
    world.run("CREATE TABLE balances (account bigint PRIMARY KEY, total bigint)")
    world.run("INSERT INTO balances VALUES (1, 7)")
    with pytest.raises(SinkError, match=r"which does not hold every string.*drop it, and the next run"):
        world.replace(1, [(1, "a")])
    assert world.rows("SELECT account, total FROM balances") == [(1, 7)]


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (pa.field("tags", pa.list_(pa.string())), "cannot hold tags list.*DeltaStateTable"),
        (pa.field("_checkpoint_id", pa.int64()), "has a field _checkpoint_id itself; rename it"),
    ],
)
def test_states_that_no_table_can_show(lite: World, field: pa.Field, why: str) -> None:
    lite.columns = TableColumns(COLUMNS.schema.append(field), ("account",))
    for asked_for in (lite.create, lambda: lite.target.check_columns(lite.columns)):
        with pytest.raises(SinkError, match=why):
            asked_for()
    assert lite.shown() is None


def test_no_sink_writes_to_a_table_that_shows_a_state(lite: World) -> None:
    lite.create()
    with pytest.raises(SinkError, match=r"shows a keyed state.*only its job writes to it"):
        SqlSink(lite.url, "balances").prepare(asked(None, COLUMNS.schema, "w1"))


@pytest.mark.long
def test_a_schema_of_the_database(postgres: World) -> None:
    postgres.run("CREATE SCHEMA reports")
    postgres.schema = "reports"
    postgres.create()
    postgres.apply(0, 1, [(1, "a")])
    assert postgres.rows("SELECT account, total FROM reports.balances") == [(1, "a")]
    assert postgres.rows("SELECT app, checkpoint_id FROM reports._statelake_tables") == [(APP, 1)]


# -- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"url": "postgresql://me:s3cret@host/db"}, "url of a SqlStateTable holds a password.*password_env="),
        ({"url": "mysql://host/db"}, r"SqlStateTable does not write to mysql"),
        ({"url": "sqlite://"}, "SqlStateTable needs an SQLite database in a file"),
        ({"url": "/tmp/out.db"}, "url of a SqlStateTable is not one: use sqlite:"),
        ({"table": "public.balances"}, "SqlStateTable: 'public.balances' .* its schema goes into schema="),
    ],
)
def test_what_cannot_be_a_table(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        SqlStateTable(**{"url": "sqlite:////tmp/out.db", "table": "balances"} | options)
    assert "s3cret" not in str(caught.value)


def test_what_is_recorded_of_a_table() -> None:
    table = SqlStateTable(
        "postgresql://etl@db/reports", "balances", schema="flights", password_env="SECRET", adopt=True
    )
    assert table.place == "postgresql+psycopg://etl@db/reports#flights.balances"
    assert table.options() == {
        "url": "postgresql+psycopg://etl@db/reports",
        "table": "balances",
        "schema": "flights",
        "password_env": "SECRET",
        "adopt": True,
    }
