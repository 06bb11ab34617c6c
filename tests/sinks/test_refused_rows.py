"""A row that only the sink refuses is set aside, or ends the batch before anything is committed."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.schema import Field as DeltaField
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession

from state_engine import DeltaSink, FileSource, ProcessFunction, SqlSink, StateEngine, StatefulJob
from state_engine.core.errors import GateError, SinkError, UserFunctionError
from state_engine.core.types.ddl import ddl_text
from state_engine.sinks.base import Sink
from tests.sinks.databases import Database
from tests.support.costs import SparkRecords

US, DAYS = pa.timestamp("us", "UTC"), pa.date32()


class Same(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value


@dataclass(frozen=True)
class Case:
    """A rule of a table, with a row that it takes and one that it does not.

    Attributes:
        columns, more: of the table, as SQL; and what stands behind them, or is run afterwards.
        schema: of a table that SQL cannot say, because Spark makes no NOT NULL inside of lists and maps.
        kinds: of the output.
        good, bad: rows.
        says: of the letter, beside sink and place.
    """

    columns: str
    kinds: dict[str, pa.DataType]
    good: tuple[Any, ...]
    bad: tuple[Any, ...]
    says: str
    more: str = ""
    schema: pa.Schema | None = None


ID, TEXT = {"id": pa.int64()}, {"id": pa.int64(), "text": pa.string()}


def _needed(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


WORDS = pa.list_(pa.string())
NESTED = pa.struct(
    [("a", pa.string()), ("b", pa.map_(pa.string(), pa.list_(pa.struct([("c", pa.string())]))))]
)
DELTA = {
    "not null": Case("id BIGINT, text STRING NOT NULL", TEXT, (1, "a"), (2, None), "'text' holds null"),
    "not null in a record": Case(
        "s STRUCT<a: BIGINT NOT NULL>",
        {"s": pa.struct([("a", pa.int64())])},
        ({"a": 1},),
        ({"a": None},),
        "'s.a' holds null",
    ),
    "not null in a record of a record": Case(
        "s STRUCT<r: STRUCT<a: BIGINT NOT NULL, b: STRING>>",
        {"s": pa.struct([("r", pa.struct([("a", pa.int64()), ("b", pa.string())]))])},
        ({"r": {"a": 1, "b": None}},),
        ({"r": {"a": None, "b": "x"}},),
        r"'s\.r\.a' holds null",
    ),
    "not null in a list": Case(
        "", {"id": pa.int64(), "w": WORDS}, (1, ["a"]), (2, ["a", None]), r"'w\.element' holds null",
        schema=pa.schema([("id", pa.int64()), ("w", pa.list_(_needed("element", pa.string())))]),
    ),
    "not null in a map": Case(
        "", {"m": pa.map_(pa.string(), pa.int64())}, ([("a", 1)],), ([("a", 1), ("b", None)],),
        r"'m\.value' holds null",
        schema=pa.schema([("m", pa.map_(pa.string(), _needed("value", pa.int64())))]),
    ),
    "not null in records of a list": Case(
        "", {"w": pa.list_(pa.struct([("a", pa.int64())]))}, ([{"a": 1}],), ([{"a": 1}, {"a": None}],),
        r"'w\.element\.a' holds null",
        schema=pa.schema([("w", pa.list_(pa.struct([_needed("a", pa.int64())])))]),
    ),
    "not null deep inside": Case(
        "",
        {"s": NESTED},
        ({"a": None, "b": [("k", [{"c": "x"}]), ("l", [])]},),
        ({"a": None, "b": [("k", [{"c": "x"}, {"c": None}])]},),
        r"'s\.b\.value\.element\.c' holds null",
        schema=pa.schema(
            [
                (
                    "s",
                    pa.struct(
                        [
                            ("a", pa.string()),
                            ("b", pa.map_(pa.string(), pa.list_(pa.struct([_needed("c", pa.string())])))),
                        ]
                    ),
                )
            ]
        ),
    ),
    "check": Case(
        "id BIGINT", ID, (1,), (-2,), r"it breaks the constraint pos \(id > 0\)", "ADD CONSTRAINT pos CHECK (id > 0)"
    ),
    "check of null": Case(
        "id BIGINT", ID, (1,), (None,), "it breaks the constraint pos", "ADD CONSTRAINT pos CHECK (id > 0)"
    ),
    "varchar": Case(
        "id BIGINT, text VARCHAR(3)", TEXT, (1, "äöü"), (2, "abcd"), "'text' holds 'abcd': it takes 3 characters"
    ),
    "char": Case("id BIGINT, text CHAR(3)", TEXT, (1, "abc"), (2, "abcd"), "it takes 3 characters"),
    "varchar in a record": Case(
        "s STRUCT<a: VARCHAR(3), b: MAP<STRING, ARRAY<STRUCT<c: STRING>>>>",
        {"s": NESTED},
        ({"a": "abc", "b": None},),
        ({"a": "abcd", "b": None},),
        "'s.a' holds 'abcd': it takes 3 characters",
    ),
    "varchar in a list": Case(
        "id BIGINT, w ARRAY<VARCHAR(3)>",
        {"id": pa.int64(), "w": WORDS},
        (1, ["abc", None]),
        (2, ["a", "abcd"]),
        "'w.element' holds 'abcd': it takes 3 characters",
    ),
    "varchar in a map": Case(
        "m MAP<VARCHAR(2), CHAR(3)>",
        {"m": pa.map_(pa.string(), pa.string())},
        ([("ab", "abc")],),
        ([("ab", "abc"), ("abc", "abc")],),
        "'m.key' holds 'abc': it takes 2 characters",
    ),
    "varchar deep inside": Case(
        "s STRUCT<a: STRING, b: MAP<STRING, ARRAY<STRUCT<c: VARCHAR(2)>>>>",
        {"s": NESTED},
        ({"a": "abc", "b": [("k", [{"c": "ab"}])]},),
        ({"a": "abc", "b": [("k", []), ("l", [{"c": "abc"}])]},),
        "'s.b.value.element.c' holds 'abc': it takes 2 characters",
    ),
    "generated": Case(
        "id BIGINT, twice BIGINT GENERATED ALWAYS AS (id * 2)",
        {"id": pa.int64(), "twice": pa.int64()},
        (1, 2),
        (1, 3),
        r"it breaks the generated column 'twice' \(id \* 2\)",
    ),
    "empty partition": Case(
        "id BIGINT, text STRING", TEXT, (1, "a"), (2, ""), "would give back null", "PARTITIONED BY (text)"
    ),
    "partition of NUL": Case(
        "id BIGINT, text STRING", TEXT, (1, "a"), (2, "a\0b"), "NUL character", "PARTITIONED BY (text)"
    ),
    "long partition": Case(
        "id BIGINT, text STRING", TEXT, (1, "a:" * 60), (2, "a:" * 70), "such a long name", "PARTITIONED BY (text)"
    ),
}  # fmt: skip
SQL = {
    "not null": Case("id BIGINT, text TEXT NOT NULL", TEXT, (1, "a"), (2, None), "'text' holds null"),
    "check": Case("id BIGINT CONSTRAINT pos CHECK (id > 0)", ID, (1,), (-2,), "(constraint pos|failed: pos)"),
    "check without a name": Case(
        "id BIGINT, CHECK (id > 0)", ID, (1,), (-2,), "(delays_id_check|failed: id > 0)"
    ),
    "two columns": Case(
        "id BIGINT, text TEXT, CHECK (length(text) < id)",
        TEXT,
        (3, "ab"),
        (1, "ab"),
        "(_check|failed: length)",
    ),
    "date": Case(
        "id BIGINT, d DATE", {"id": pa.int64(), "d": DAYS}, (1, 0), (2, 9_000_000), "years 1 to 9999"
    ),
}
POSTGRES = {
    "timestamp": Case(
        "at TIMESTAMP WITH TIME ZONE",
        {"at": US},
        (0,),
        (10**18,),
        "'at' holds 33658-.*the years 1 to 9999",
    ),
    "varchar": Case("id BIGINT, text VARCHAR(3)", TEXT, (1, "äöü"), (2, "abcd"), "it takes 3 characters"),
    "char": Case("id BIGINT, text CHAR(3)", TEXT, (1, "abc"), (2, "abcd"), "it takes 3 characters"),
    "NUL": Case("id BIGINT, text TEXT", TEXT, (1, "a"), (2, "a\0b"), "NUL character"),
    "check of a default": Case(
        "id BIGINT, least BIGINT DEFAULT 5, CHECK (id > least)", ID, (6,), (4,), "it breaks the constraint"
    ),
}
SQLITE = {
    "NaN": Case("x DOUBLE NOT NULL", {"x": pa.float64()}, (1.0,), (float("nan"),), "'x' holds nan"),
    "the number of a row": Case(
        "id INTEGER PRIMARY KEY CHECK (id > 0)", ID, (None,), (-1,), "failed: id > 0"
    ),
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """A job whose one sink is a table of the user's."""

    directory: Path
    spark: SparkSession
    case: Case
    sink: Sink

    @cached_property
    def engine(self) -> StateEngine:
        return StateEngine(self.directory / "root", self.spark)

    def job(
        self, route: str = "operator", on_error: Any = "dead_letter", expected: tuple[Any, ...] = ()
    ) -> StatefulJob:
        job = StatefulJob("landing", parallelism=2, on_error=on_error)
        rows = job.source("rows", FileSource(str(self.directory / "feed")))
        if route == "operator":
            ddl = ", ".join(f"`{n}` {_ddl(k)}" for n, k in self.case.kinds.items())
            rows = rows.process(Same(), uid="same", output_type=ddl)
        elif route == "columns":
            rows = rows.transform(lambda frame: frame)
        rows = rows.expect(*expected) if expected else rows
        rows.sink("out", self.sink)
        return job

    def arrive(self, name: str, *rows: tuple[Any, ...]) -> None:
        (self.directory / "feed").mkdir(exist_ok=True)
        columns = [
            pa.array(values, pa.int64()).cast(kind) if pa.types.is_timestamp(kind)
            else pa.array(values, pa.int32()).cast(kind) if pa.types.is_date(kind)
            else pa.array(values, kind)
            for values, kind in zip(zip(*rows, strict=True), self.case.kinds.values(), strict=True)
        ]  # fmt: skip
        pq.write_table(pa.table(columns, list(self.case.kinds)), self.directory / "feed" / f"{name}.parquet")


def _ddl(kind: pa.DataType) -> str:
    if pa.types.is_nested(kind):
        return ddl_text(kind)
    names: dict[pa.DataType, str] = {
        pa.int64(): "bigint", pa.string(): "string", US: "timestamp", DAYS: "date", pa.float64(): "double",
    }  # fmt: skip
    return names[kind]


def follows(world: World, rows: Callable[[], int], *, route: str) -> None:
    """One letter a bad row, the others arrive, and a table that takes it gets it when it is sent again."""
    case = world.case
    world.arrive("a", case.good, case.bad)
    with world.engine as engine:
        with pytest.raises(
            UserFunctionError, match=f"sink 'out'.*{case.says}(?s:.*)on_error='dead_letter'"
        ) as refused:
            engine.run(world.job(route, "fail"))
        assert "row {" in str(refused.value)
        assert engine.checkpoints("landing") == []
        assert rows() == 0
        (batch,) = engine.run(world.job(route)).batches
        assert (batch.rows_in, batch.rows_refused, batch.rows_out) == (2, 1, {"out": 1})
        (letter,) = engine.list_dead_letters(world.job(route))
        assert (letter.sink, letter.operator) == ("out", "same" if route == "operator" else None)
        assert not letter.problem
        assert rows() == 1
        again = engine.replay_dead_letters(world.job(route))
        assert (len(again.sent), again.refused) == (1, 1), "the table takes it as little as before"
        world.arrive("b", case.good)
        assert [b.rows_refused for b in engine.run(world.job(route)).batches] == [0]
        assert rows() == 2


@pytest.mark.parametrize("route", ["operator", "source", "columns"])
@pytest.mark.parametrize("name", DELTA)
def test_a_delta_table(spark: SparkSession, tmp_path: Path, name: str, route: str) -> None:
    if route != "operator" and name not in ("check", "not null"):
        pytest.skip("the way to the sink is the same for all")
    case, path = DELTA[name], f"{tmp_path}/out"
    partitioned = case.more.startswith("PARTITIONED")
    if case.schema is not None:
        DeltaTable.create(path, case.schema)
    else:
        spark.sql(
            f"CREATE TABLE delta.`{path}` ({case.columns}) USING delta {case.more if partitioned else ''}"
        )
    if case.more and not partitioned:
        spark.sql(f"ALTER TABLE delta.`{path}` {case.more}")
    world = World(tmp_path, spark, case, DeltaSink(path, lineage=False))
    follows(world, lambda: spark.read.format("delta").load(path).count(), route=route)


@pytest.mark.parametrize("name", [*SQL, *POSTGRES, *SQLITE])
def test_a_table_of_a_database(spark: SparkSession, tmp_path: Path, db: Database, name: str) -> None:
    own = POSTGRES if db.password_env else SQLITE
    if name not in own and name not in SQL:
        pytest.skip("a rule of the other database")
    case = own.get(name) or SQL[name]
    db.run(f"CREATE TABLE delays ({case.columns})")
    world = World(tmp_path, spark, case, SqlSink(db.url, "delays", password_env=db.password_env))
    # Python, and so a function, cannot hold what comes in these cases
    route = "source" if name in ("date", "timestamp") else "operator"
    follows(world, lambda: db.rows("SELECT count(*) FROM delays")[0][0], route=route)
    assert db.rows("SELECT checkpoint_id, earlier LIKE '%\"1\": %' FROM _statelake_tables") == [(3, True)]


def test_a_letter_arrives_once_the_sink_takes_it(spark: SparkSession, tmp_path: Path, lite: Database) -> None:
    case = SQL["not null"]
    lite.run(f"CREATE TABLE delays ({case.columns})")
    world = World(tmp_path, spark, case, SqlSink(lite.url, "delays", lineage=False))
    world.arrive("a", case.good, case.bad, case.bad)
    with world.engine as engine:
        engine.run(world.job())
        lite.run("DROP TABLE delays")
        lite.run("CREATE TABLE delays (id BIGINT, text TEXT)")
        engine.published(world.job()).accept("out")
        sent = engine.replay_dead_letters(world.job())
        assert (len(sent.sent), sent.refused, sent.batches[0].rows_out) == (2, 0, {"out": 2})
        assert lite.rows() == [(2, None), (2, None)]
        assert engine.replay_dead_letters(world.job()).sent == []
        assert engine.list_dead_letters(world.job()) == []


@pytest.mark.parametrize(
    ("columns", "kinds", "says"),
    [
        (
            "id BIGINT, text mood",
            TEXT,
            r"has text mood, an enum of \['calm', 'wild'\], which does not hold every string",
        ),
        ("id BIGINT, text name_of", TEXT, "has text .*, which does not hold every string"),
        ("id INTEGER", ID, "has id INTEGER, which does not hold every int64"),
        (
            "id BIGINT GENERATED ALWAYS AS IDENTITY",
            ID,
            "gives values to 'id' itself: leave it out of the output",
        ),
        ("id BIGINT, text TEXT GENERATED ALWAYS AS (id::text) STORED", TEXT, "gives values to 'text' itself"),
        (
            "at TIMESTAMP(3) WITH TIME ZONE",
            {"at": US},
            "has at TIMESTAMP, which does not hold every timestamp",
        ),
        ("id BIGINT, other BIGINT NOT NULL", ID, "must be given a value of 'other'"),
    ],
    ids=[
        "an enum",
        "a domain",
        "an integer",
        "an identity",
        "a computed column",
        "milliseconds",
        "another column",
    ],
)
def test_a_column_that_holds_less_than_the_output_is_refused_before_the_batch(
    spark: SparkSession,
    tmp_path: Path,
    postgres: Database,
    columns: str,
    kinds: dict[str, pa.DataType],
    says: str,
) -> None:
    postgres.run("CREATE TYPE mood AS ENUM ('calm', 'wild')")
    postgres.run("CREATE DOMAIN name_of AS TEXT CHECK (VALUE <> '')")
    postgres.run(f"CREATE TABLE delays ({columns})")
    case = Case(columns, kinds, tuple(None for _ in kinds), (), says)
    world = World(tmp_path, spark, case, SqlSink(postgres.url, "delays", password_env=postgres.password_env))
    world.arrive("a", case.good)
    with world.engine as engine:
        with pytest.raises(SinkError, match=says):
            engine.run(world.job())
        assert engine.checkpoints("landing") == []


KEYED = {
    "NUL": ("", (1, "a"), (2, "a\0b"), "NUL character"),
    "varchar": ("id BIGINT PRIMARY KEY, text VARCHAR(3)", (1, "abc"), (2, "abcd"), "it takes 3 characters"),
    "not null": ("id BIGINT PRIMARY KEY, text TEXT NOT NULL", (1, "a"), (2, None), "'text' holds null"),
    "check": (
        "id BIGINT PRIMARY KEY CONSTRAINT few CHECK (id < 9), text TEXT",
        (1, "a"),
        (9, "a"),
        "(constraint few|failed: few)",
    ),
    "check of two": (
        "id BIGINT PRIMARY KEY, text TEXT, CHECK (length(text) < id)",
        (3, "ab"),
        (1, "ab"),
        "(_check|failed: length)",
    ),
}


@pytest.mark.parametrize("route", ["source", "operator", "columns"])
@pytest.mark.parametrize("name", KEYED)
def test_a_keyed_table_of_a_database(
    spark: SparkSession, tmp_path: Path, db: Database, name: str, route: str
) -> None:
    columns, good, bad, says = KEYED[name]
    if route != "source" and name != "check":
        pytest.skip("the way to the sink is the same for all")
    if not db.password_env and name in ("NUL", "varchar"):
        pytest.skip("a rule of the other database")
    if columns:
        db.run(f"CREATE TABLE delays ({columns})")
    sink = SqlSink(db.url, "delays", ["id"], password_env=db.password_env, adopt=bool(columns))
    world = World(tmp_path, spark, Case(columns, TEXT, good, bad, says), sink)
    world.arrive("a", good, bad)
    with world.engine as engine:
        with pytest.raises(UserFunctionError, match=f"operator 'sink_out'.*sink 'out', .*{says}") as refused:
            engine.run(world.job(route, "fail"))
        assert f'"id": {bad[0]}' in str(refused.value)
        assert engine.checkpoints("landing") == []
        assert [b.rows_refused for b in engine.run(world.job(route)).batches] == [1]
        assert db.rows() == [good]
        assert [one.operator for one in engine.list_dead_letters(world.job(route))] == ["sink_out"]
        again = engine.replay_dead_letters(world.job(route))
        assert (len(again.sent), again.refused) == (1, 1), "the table takes it as little as before"
        world.arrive("b", good)
        assert [b.rows_refused for b in engine.run(world.job(route)).batches] == [0]


def keyed_delta(spark: SparkSession, tmp_path: Path, name: str) -> World:
    """A job that keeps the last rows by ``n`` in a Delta table of a case."""
    case, path = DELTA[name], f"{tmp_path}/out"
    if case.schema is not None:
        DeltaTable.create(path, case.schema)
    else:
        spark.sql(f"CREATE TABLE delta.`{path}` ({case.columns}) USING delta")
    if case.more:
        spark.sql(f"ALTER TABLE delta.`{path}` {case.more}")
    DeltaTable(path).alter.add_columns(DeltaField("n", PrimitiveType("long")))
    sink = DeltaSink(path, key=["n"], adopt=True)
    return World(tmp_path, spark, replace(case, kinds={"n": pa.int64(), **case.kinds}), sink)


def judged_by_arrow(name: str) -> bool:
    return name.startswith(("not null", "varchar", "char"))


@pytest.mark.parametrize("name", [name for name in DELTA if judged_by_arrow(name)])
def test_a_keyed_delta_table(spark: SparkSession, tmp_path: Path, name: str) -> None:
    world, case = keyed_delta(spark, tmp_path, name), DELTA[name]
    world.arrive("a", (1, *case.good), (2, *case.bad), (3, *case.good))
    with world.engine as engine:
        with pytest.raises(
            UserFunctionError, match=f"operator 'sink_out'.*sink 'out', .*{case.says}"
        ) as refused:
            engine.run(world.job("source", "fail"))
        assert '"n": 2' in str(refused.value)
        assert engine.checkpoints("landing") == []
        assert [b.rows_refused for b in engine.run(world.job("source")).batches] == [1]
        world.arrive("b", (3, *case.good), (4, *case.good), (1, *case.bad))
        assert [b.rows_refused for b in engine.run(world.job("source")).batches] == [1]
        assert [one.operator for one in engine.list_dead_letters(world.job("source"))] == ["sink_out"] * 2
    rows = spark.read.format("delta").load(f"{tmp_path}/out").select("n", *case.kinds).collect()
    assert sorted(row.n for row in rows) == [1, 3, 4]
    assert len({str(row[1:]) for row in rows}) == 1, "a refused row leaves the one before"


@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
@pytest.mark.parametrize("name", ["check", "generated"])
def test_a_delta_table_with_rules_in_sql_is_refused_for_last_rows_before_the_commit(
    spark: SparkSession, tmp_path: Path, name: str, on_error: str
) -> None:
    world, case = keyed_delta(spark, tmp_path, name), DELTA[name]
    world.arrive("a", (1, *case.good), (2, *case.bad))
    with world.engine as engine:
        with pytest.raises(
            SinkError, match=r"sink 'out'.*cannot show .* because of .*publish to a table without"
        ) as refused:
            engine.run(world.job("source", on_error))
        assert engine.checkpoints("landing") == []
        (advice,) = re.findall(r"\.expect\((.*)\)$", str(refused.value).splitlines()[0])
        rule = ast.literal_eval(f"({advice})")
        world = replace(world, sink=DeltaSink(f"{tmp_path}/new", key=["n"]))
        if on_error == "fail":
            with pytest.raises(GateError, match=rf"expectation '{rule[0]}'.*\"n\": 2"):
                engine.run(world.job("source", on_error, expected=(*rule[:2], "fail")))
            assert engine.checkpoints("landing") == []
        (batch,) = engine.run(world.job("source", on_error, expected=rule)).batches
        assert (batch.rows_in, batch.rows_refused, batch.rows_out) == (2, 1, {})
    assert spark.read.format("delta").load(f"{tmp_path}/out").count() == 0
    assert [row.n for row in spark.read.format("delta").load(f"{tmp_path}/new").collect()] == [1]


def test_a_check_of_a_few_rows_for_a_keyed_table_is_no_spark_job(
    spark: SparkSession, tmp_path: Path, lite: Database
) -> None:
    columns, good, bad, says = KEYED["check"]
    lite.run(f"CREATE TABLE delays ({columns})")
    world = World(
        tmp_path, spark, Case(columns, TEXT, good, bad, says), SqlSink(lite.url, "delays", ["id"], adopt=True)
    )
    world.arrive("a", good, bad)
    records = SparkRecords(spark)
    with world.engine as engine:
        assert [b.rows_refused for b in engine.run(world.job("source")).batches] == [1]
    assert lite.rows() == [good]
    assert records.new() == []


def test_a_chained_operator_gets_what_a_sink_refuses(
    spark: SparkSession, tmp_path: Path, lite: Database
) -> None:
    case = SQL["check"]
    lite.run(f"CREATE TABLE delays ({case.columns})")
    world = World(tmp_path, spark, case, SqlSink(lite.url, "delays"))
    world.arrive("a", case.good, case.bad)
    job = StatefulJob("landing", on_error="dead_letter")
    rows = job.source("rows", FileSource(str(tmp_path / "feed"))).process(
        Same(), uid="same", output_type="id bigint"
    )
    rows.sink("out", world.sink)
    rows.process(Same(), uid="again", output_type="id bigint").sink("all", DeltaSink(f"{tmp_path}/all"))
    with world.engine as engine:
        engine.run(job)
    assert lite.rows("SELECT id FROM delays") == [(1,)]
    assert sorted(r.id for r in spark.read.format("delta").load(f"{tmp_path}/all").collect()) == [-2, 1]


def test_what_only_the_commit_of_the_database_refuses_has_a_way_out_from_the_first_checkpoint_on(
    spark: SparkSession, tmp_path: Path, lite: Database
) -> None:
    """A unique key depends on other rows: nobody can know before."""
    case = Case("id BIGINT UNIQUE", ID, (1,), (1,), "")
    lite.run(f"CREATE TABLE delays ({case.columns})")
    world = World(tmp_path, spark, case, SqlSink(lite.url, "delays"))
    world.arrive("a", (1,), (1,))
    with world.engine as engine:
        for _ in range(2):
            with pytest.raises(SinkError, match=r"UNIQUE constraint failed.*give the sink another name"):
                engine.run(world.job())
        renamed = StatefulJob("landing", parallelism=2)
        source = renamed.source("rows", FileSource(str(tmp_path / "feed")))
        source.process(Same(), uid="same", output_type="id bigint").sink("landed", world.sink)
        world.arrive("b", (2,))
        assert [b.rows_out for b in engine.run(renamed).batches] == [{"landed": 1}]
        assert lite.rows("SELECT id FROM delays") == [(2,)]
        world.arrive("c", (3,), (3,))
        with pytest.raises(SinkError, match="restore the checkpoint's parent"):
            engine.run(renamed)
        parent = engine.checkpoints("landing")[-1].parent_id
        engine.restore(renamed, checkpoint_id=parent)
        world.arrive("d", (4,))
        (tmp_path / "feed" / "c.parquet").unlink()
        engine.run(renamed)
        assert lite.rows("SELECT id FROM delays ORDER BY id") == [(2,), (4,)]
