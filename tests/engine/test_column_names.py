"""Columns of any name: in sources, keys, orders, states and sinks they work, or are refused before anything runs."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from state_engine import (
    DataStream,
    DeltaSink,
    DeltaSource,
    DeltaStateTable,
    FileSink,
    FileSource,
    KafkaSink,
    KafkaSource,
    KeyedProcessFunction,
    OutputTag,
    Row,
    SqlSink,
    SqlStateTable,
    StateEngine,
    StatefulJob,
    Types,
    ValueStateDescriptor,
)
from state_engine.core.errors import ConfigurationError, StatelakeError
from state_engine.core.types.ddl import quoted
from state_engine.sources.base import Source

pytestmark = pytest.mark.spark

PLAIN = [
    "a.b",
    "a`b",
    'a"b',
    "a'b",
    "a%b",
    "a/b",
    "a\\b",
    "$a",
    "-",
    "é😀",
    "key",
    "value",
    "state",
    "op",
    "x" * 200,
]
NOT_IN_DELTA = ["bill city", " lead", "a;b", "a,b", "a=b", "a(b)", "a{b}", "a\nb", "a\tb", "100 %"]
NAMES = ["a.b", "a`b", 'a"b', "é😀", "key", "value", "x" * 200, "bill city", "a;b", "a\nb", "100 %"]
ROWS = [("k1", 1), ("k2", 2), ("k1", 3)]
TIMES = [datetime(2026, 1, 1, 0, 0, n, tzinfo=UTC) for n in range(3)]


class Copies(KeyedProcessFunction):
    """Keeps the last row in a record with the name, and gives the rows back."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, runtime_context: Any) -> None:
        kind = Types.ROW_NAMED([self.name, "n"], [Types.STRING(), Types.LONG()])
        self.last = runtime_context.get_state(ValueStateDescriptor("last", kind))

    def process_element(self, value: Any, ctx: Any) -> Any:
        row = (value[0], value[1])
        self.last.update(row)
        yield row


def table(name: str) -> pa.Table:
    columns = {
        name: [k for k, _ in ROWS],
        "n": [n for _, n in ROWS],
        "at": pa.array(TIMES, pa.timestamp("us", "UTC")),
    }
    return pa.table(columns)


def source(form: str, name: str, at: Path) -> Source:
    """The rows as another program writes them."""
    schema = f"{quoted(name)} string, n bigint, at timestamp"
    if form == "delta":
        write_deltalake(str(at), table(name))
        return DeltaSource(str(at))
    at.mkdir()
    if form == "parquet":
        pq.write_table(table(name), at / "0.parquet")
        return FileSource(str(at), format="parquet")
    texts = [[k, n, t.isoformat()] for (k, n), t in zip(ROWS, TIMES, strict=True)]
    with (at / f"0.{form}").open("w", newline="") as file:
        if form == "json":
            file.write("\n".join(json.dumps(dict(zip([name, "n", "at"], one, strict=True))) for one in texts))
            return FileSource(str(at), format="json", schema=schema)
        csv.writer(file).writerows([[name, "n", "at"], *texts])
    return FileSource(str(at), format="csv", schema=schema, options={"header": "true", "multiLine": "true"})


def job_of(name: str, at: Path, form: str = "parquet") -> tuple[StatefulJob, DataStream]:
    """The name in a source, a transform, an order, a key, a record of state, and an output."""
    job = StatefulJob("named", parallelism=1)
    rows = job.source("rows", source(form, name, at / "in"), order_by=["n", name], event_time="at")
    rows = rows.transform(lambda frame: frame.withColumn("n", F.col("n") + 0))
    kind = Types.ROW_NAMED([name, "n"], [Types.STRING(), Types.LONG()])
    return job, rows.key_by(name).process(Copies(name), uid="copies", output_type=kind)


def built_and_run(job: StatefulJob, at: Path, spark: SparkSession, build: Callable[[], Any]) -> None:
    """What is refused may be so by the job or by its first run."""
    build()
    run(job, at, spark).close()


def run(job: StatefulJob, at: Path, spark: SparkSession) -> StateEngine:
    engine = StateEngine(at / "root", spark)
    engine.run(job)
    return engine


@pytest.mark.parametrize("name", NAMES)
def test_any_name_works_from_a_file_to_state_and_files(
    tmp_path: Path, spark: SparkSession, name: str
) -> None:
    job, rows = job_of(name, tmp_path)
    rows.sink("parquet", FileSink(str(tmp_path / "parquet"))).sink(
        "csv", FileSink(str(tmp_path / "csv"), "csv")
    )
    rows.sink("sql", SqlSink(f"sqlite:///{tmp_path}/rows.db", "rows"))
    rows.sink("latest", SqlSink(f"sqlite:///{tmp_path}/rows.db", "latest", key=[name]))
    with run(job, tmp_path, spark) as engine:
        state = engine.read_state("named", "copies", "last").toArrow().to_pylist()
        assert sorted((next(iter(row.values())), row["value"][name], row["value"]["n"]) for row in state) == [
            ("k1", "k1", 3), ("k2", "k2", 2)
        ]  # fmt: skip
        pq.write_table(table(name).slice(1, 1), tmp_path / "in" / "1.parquet")
        engine.run(job)
        engine.compact("named")
        assert engine.read_state("named", "copies", "last").count() == 2
    written = ds.dataset(tmp_path / "parquet", partitioning="hive").to_table().select([name, "n"])
    assert sorted(map(tuple, zip(*written.to_pydict().values(), strict=True))) == sorted([*ROWS, ROWS[1]])
    files = [pa_csv.read_csv(path, parse_options=pa_csv.ParseOptions(newlines_in_values=True)).column_names
             for path in (tmp_path / "csv").rglob("*.csv")]  # fmt: skip
    assert files
    assert all(names[:2] == [name, "n"] for names in files)
    with closing(sqlite3.connect(tmp_path / "rows.db")) as database:
        latest = database.execute("SELECT * FROM latest").fetchall()
    assert sorted(row[:2] for row in latest) == [("k1", 3), ("k2", 2)]


@pytest.mark.parametrize("form", ["json", "csv", "delta"])
def test_any_name_works_in_other_sources(tmp_path: Path, spark: SparkSession, form: str) -> None:
    names = [*PLAIN, *NOT_IN_DELTA] if form != "delta" else PLAIN
    for place, name in enumerate(names):
        at = tmp_path / str(place)
        at.mkdir()
        job, _ = job_of(name, at, form)
        with run(job, at, spark) as engine:
            assert engine.read_state("named", "copies", "last").count() == 2, name


@pytest.mark.parametrize("name", [*PLAIN[:4], PLAIN[-1]])
def test_a_name_that_delta_can_have_works_in_its_tables(
    tmp_path: Path, spark: SparkSession, name: str
) -> None:
    job, rows = job_of(name, tmp_path)
    rows.sink("all", DeltaSink(str(tmp_path / "all"))).sink(
        "latest", DeltaSink(str(tmp_path / "latest"), key=[name])
    )
    with run(job, tmp_path, spark):
        for directory, count in (("all", 3), ("latest", 2)):
            shown = spark.read.format("delta").load(str(tmp_path / directory))
            assert shown.columns[:2] == [name, "n"]
            assert shown.count() == count


DELTA_SINKS: dict[str, Callable[[DataStream, Path, str], Any]] = {
    "a sink": lambda rows, at, name: rows.sink("out", DeltaSink(str(at / "out"))),
    "a keyed sink": lambda rows, at, name: rows.sink("out", DeltaSink(str(at / "out"), key=["n"])),
    "a state": lambda rows, at, name: rows.publish_state("last", DeltaStateTable(str(at / "out"))),
}


@pytest.mark.parametrize("what", DELTA_SINKS)
def test_a_name_that_delta_cannot_have_is_refused_before_anything_is_committed(
    tmp_path: Path, spark: SparkSession, what: str
) -> None:
    for place, name in enumerate(NOT_IN_DELTA if what == "a sink" else NOT_IN_DELTA[:2]):
        at = tmp_path / str(place)
        at.mkdir()
        job, rows = job_of(name, at)
        with pytest.raises(ConfigurationError, match=r"a Delta table cannot have columns .*Rename them"):
            built_and_run(job, at, spark, partial(DELTA_SINKS[what], rows, at, name))
        assert not (at / "out").exists()
        assert not list((at / "root").rglob("checkpoints/*.parquet"))


def test_a_table_with_column_mapping_takes_any_name(tmp_path: Path, spark: SparkSession) -> None:
    spark.sql(
        f"CREATE TABLE delta.`{tmp_path / 'out'}` (`bill city` string, n bigint) USING delta "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    job, rows = job_of("bill city", tmp_path)
    rows.sink("out", DeltaSink(str(tmp_path / "out")))
    with run(job, tmp_path, spark):
        assert spark.read.format("delta").load(str(tmp_path / "out")).count() == 3


def test_names_that_differ_by_case_are_two_in_state(tmp_path: Path, spark: SparkSession) -> None:
    kind = Types.ROW_NAMED(["id", "Id"], [Types.LONG(), Types.LONG()])

    class Both(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.both = runtime_context.get_state(ValueStateDescriptor("both", kind))

        def process_element(self, value: Any, ctx: Any) -> Any:
            before = self.both.value()
            self.both.update(Row(id=value.n, Id=-value.n))
            return [] if before is None else [before.Id]

    job = StatefulJob("cases")
    rows = job.from_collection(ROWS, "k string, n bigint", max_rows_per_batch=1)
    rows.key_by("k").process(Both(), uid="both", output_type=int).sink("out", FileSink(str(tmp_path / "out")))
    with run(job, tmp_path, spark) as engine:
        state = engine.read_state("cases", "both", "both").select("value").toArrow().to_pylist()
    assert sorted(tuple(row["value"].values()) for row in state) == [(2, -2), (3, -3)]
    assert ds.dataset(tmp_path / "out", partitioning="hive").to_table()["value"].to_pylist() == [-1]


class Both(KeyedProcessFunction):
    """Counts the rows of a key in a record with the name; gives them back, and to a side output."""

    def __init__(self, name: str, tag: OutputTag) -> None:
        self.name, self.tag = name, tag

    def open(self, runtime_context: Any) -> None:
        kind = Types.ROW_NAMED([self.name, "n"], [Types.STRING(), Types.LONG()])
        self.last = runtime_context.get_state(ValueStateDescriptor("last", kind))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.last.update((value[0], value[1]))
        yield self.tag, (value[0], value[1])
        yield value[0], value[1]


@pytest.mark.parametrize("name", [*NAMES, " lead", "select", "%s", ":a", "_checkpoint_id"])
def test_any_name_works_in_side_outputs_views_explanations_and_erasure(
    tmp_path: Path, spark: SparkSession, name: str
) -> None:
    job = StatefulJob("named", parallelism=1)
    kind = Types.ROW_NAMED([name, "n"], [Types.STRING(), Types.LONG()])
    tag = OutputTag("side", kind)
    rows = job.from_collection(ROWS, kind, name="rows").key_by(name)
    both = rows.process(Both(name, tag), uid="both", output_type=kind)
    both.sink("main", FileSink(str(tmp_path / "main")))
    both.get_side_output(tag).sink("side", FileSink(str(tmp_path / "side")))
    with run(job, tmp_path, spark) as engine:
        side = ds.dataset(tmp_path / "side", partitioning="hive").to_table().select([name, "n"])
        assert sorted(zip(*side.to_pydict().values(), strict=True)) == sorted(ROWS)
        shown = "key_value" if name == "value" else name  # as the guide on queries says
        query = f"SELECT {quoted(shown)}, value.{quoted(name)}, value.n FROM last"
        assert sorted(map(tuple, engine.sql("named", query).collect())) == [("k1", "k1", 3), ("k2", "k2", 2)]
        history = engine.explain(job, {name: "k1"})
        assert history.keys == {"both": {name: "k1"}}
        (event,) = history.events
        assert [one.after for one in event.states] == [{name: "k1", "n": 3}]
        assert {one.count for one in event.outputs} == {2}
        engine.state_processor(job).erase_keys([{name: "k1"}])
        left = engine.read_state("named", "both", "last").toArrow().to_pylist()
        assert [row["value"] for row in left] == [{name: "k2", "n": 2}]


POSTGRES = "postgresql://user@nowhere/rows"
AVRO = '{"type": "record", "name": "Row", "fields": [{"name": "n", "type": "long"}]}'
REFUSED: dict[str, tuple[list[str], Callable[[Path], Any], str]] = {
    "longer than PostgreSQL has": (["x" * 64], lambda at: SqlSink(POSTGRES, "rows"), "cuts names behind byte 63"),
    "longer in bytes": (["é" * 32], lambda at: SqlSink(POSTGRES, "rows"), "cuts names behind byte 63"),
    "longer, as a key": (["x" * 64], lambda at: SqlSink(POSTGRES, "rows", key=["x" * 64]), "cuts names behind byte 63"),
    "a longer table": (["k"], lambda at: SqlSink(POSTGRES, "t" * 64), "cuts names behind byte 63, and 'ttt"),
    "empty, in a database": ([""], lambda at: SqlSink(f"sqlite:///{at}/a.db", "rows"), "'' cannot be the name"),
    "with NUL, in a database": (["a\0b"], lambda at: SqlSink(POSTGRES, "rows"), "cannot be the name of a column"),
    "with NUL, as a key": (
        ["a\0b"], lambda at: SqlSink(f"sqlite:///{at.parent}/a.db", "rows", key=["a\0b"]), "be the name of a column",
    ),
    "alike in SQLite": (["id", "Id"], lambda at: SqlSink(f"sqlite:///{at}/a.db", "rows"), "SQLite does not dist"),
    "alike in Delta": (["id", "Id"], lambda at: DeltaSink(str(at)), r"distinguish the columns \['id', 'Id'\]: rename"),
    "alike in a keyed table": (["id", "Id"], lambda at: DeltaSink(str(at), key=["id"]), "rename all but one"),
    "what Delta cannot have, in a keyed table": (
        ["bill city"], lambda at: DeltaSink(str(at), key=["bill city"]), "Rename them in a map or transform",
    ),
    "what Delta cannot have": (["a;b"], lambda at: DeltaSink(str(at)), "Rename .* before, or create the table"),
    "of a FileSink's directories": (["checkpoint_id"], lambda at: FileSink(str(at)), "nobody would see .* rename it"),
    "what Avro does not have": (
        ["a.b"], lambda at: KafkaSink("broker:9092", "rows", format="avro", schema=AVRO), "no field for the columns",
    ),
    "no key of a topic": (["k"], lambda at: KafkaSink("broker:9092", "rows", key=["K"]), "there is no column 'K'"),
}  # fmt: skip


IN_CODE: dict[str, Callable[[StatefulJob, list[str]], DataStream]] = {
    "a collection": lambda job, names: job.from_collection([], texts(names)),
    "files": lambda job, names: job.source("rows", FileSource("/rows", format="csv", schema=ddl(names))),
    "records": lambda job, names: job.source("rows", KafkaSource("broker:9092", "rows", schema=ddl(names))),
    "a transform": lambda job, names: job.source("rows", DeltaSource("/rows")).transform(
        lambda rows: rows, output_type=texts(names)
    ),
}
"""Streams that code alone shows the columns of."""


def texts(names: list[str]) -> Any:
    return Types.ROW_NAMED([*names, "n"], [*[Types.STRING() for _ in names], Types.LONG()])


def ddl(names: list[str]) -> str:
    """The same; there is none of a column without a name."""
    return ", ".join([*(f"{quoted(name)} string" for name in names), "n bigint"])


@pytest.mark.parametrize(
    ("what", "rows"),
    [
        (what, rows)
        for what, (names, *_) in REFUSED.items()
        for rows in IN_CODE
        if all(names) or rows[0] == "a"
    ],
)
def test_a_name_that_a_sink_cannot_have_is_refused_while_the_job_is_built(
    tmp_path: Path, what: str, rows: str
) -> None:
    names, sink, words = REFUSED[what]
    with pytest.raises(StatelakeError, match=f"sink 'out': .*{words}"):
        IN_CODE[rows](StatefulJob("named"), names).sink("out", sink(tmp_path))


def in_files(at: Path, rows: pa.Table) -> Source:
    at.mkdir()
    pq.write_table(rows, at / "0.parquet")
    return FileSource(str(at))


def in_a_log(at: Path, rows: pa.Table) -> Source:
    write_deltalake(str(at), rows)
    for name in rows.column_names:
        before, cut, behind = name.partition("\0")
        if cut:  # Arrow's interface for other languages cuts a name there
            log = at / "_delta_log" / "00000000000000000000.json"
            text = log.read_text()
            assert rf"\"name\":\"{before}\"" in text
            log.write_text(text.replace(rf"\"name\":\"{before}\"", rf"\"name\":\"{before}\\u0000{behind}\""))
    return DeltaSource(str(at))


NOT_FROM_A_LOG = {("",), ("id", "Id")}
"""Names that a table does not bring along."""


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        (what, shown)
        for what, (names, *_) in REFUSED.items()
        for shown in (in_files, in_a_log)
        if shown is in_files or tuple(names) not in NOT_FROM_A_LOG
    ],
)
def test_where_only_rows_show_a_name_the_first_run_refuses_it_before_anything_is_written(
    tmp_path: Path, spark: SparkSession, what: str, shown: Callable[[Path, pa.Table], Source]
) -> None:
    names, sink, words = REFUSED[what]
    rows = pa.table({**{name: ["k"] for name in names}, "n": [1]})
    job = StatefulJob("named")
    stream = job.source("rows", shown(tmp_path / "in", rows))
    with pytest.raises(
        StatelakeError, match=f"{words}|rename all but one"
    ) as refused:  # a key's while it is built
        built_and_run(job, tmp_path, spark, lambda: stream.sink("out", sink(tmp_path / "out")))
    assert re.search(r"sink 'out'|in/0\.parquet: the columns", str(refused.value))
    assert not list((tmp_path / "root").rglob("*.parquet"))
    assert not [path for path in tmp_path.rglob("out/**/*") if path.is_file()]


TABLES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "PostgreSQL": ("x" * 64, lambda at: SqlStateTable(POSTGRES, "rows"), "cuts names behind byte 63"),
    "SQLite": (
        "",
        lambda at: SqlStateTable(f"sqlite:///{at}/a.db", "rows"),
        "cannot be the name of a column",
    ),
    "Delta": ("bill city", lambda at: DeltaStateTable(str(at / "t")), "Rename them in a map or transform"),
}


@pytest.mark.parametrize("what", TABLES)
def test_a_name_that_a_published_table_cannot_have_is_refused_before_anything_is_committed(
    tmp_path: Path, spark: SparkSession, what: str
) -> None:
    name, table_of, words = TABLES[what]
    job = StatefulJob("named", parallelism=1)
    kind = Types.ROW_NAMED([name, "n"], [Types.STRING(), Types.LONG()])
    copies = (
        job.from_collection(ROWS, kind).key_by(name).process(Copies(name), uid="copies", output_type=kind)
    )
    copies.publish_state("last", table_of(tmp_path))
    with pytest.raises(ConfigurationError, match=f"job 'named', table 'last': .*{words}"):
        run(job, tmp_path, spark)
    assert not list((tmp_path / "root").rglob("checkpoints/*.parquet"))


RESERVED: dict[str, Callable[[StatefulJob, Path], Any]] = {
    "a file": lambda job, at: job.source("rows", source("parquet", "_statelake_x", at / "in")).sink(
        "out", FileSink(str(at / "out"))
    ),
    "a place": lambda job, at: job.source("rows", source("parquet", "_Statelake_Row", at / "in")).sink(
        "out", FileSink(str(at / "out"))
    ),
    "a transform": lambda job, at: job.from_collection(ROWS, "k string, n bigint")
    .transform(lambda frame: frame.withColumnRenamed("k", "_statelake_k")).sink("out", FileSink(str(at / "out"))),
    "an output": lambda job, at: job.from_collection(ROWS, "k string, n bigint").map(
        lambda row: row, "`_statelake_k` string, n bigint"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", RESERVED)
def test_names_of_the_engine_are_refused(tmp_path: Path, spark: SparkSession, what: str) -> None:
    job = StatefulJob("reserved")
    with pytest.raises(StatelakeError, match="names that begin with _statelake_ are the"):
        built_and_run(job, tmp_path, spark, lambda: RESERVED[what](job, tmp_path))
