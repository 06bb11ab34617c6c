"""What a ``FileSink`` writes, a ``FileSource`` reads back, for every format, type and value; or the sink refuses it.

Rows go through the writer that subtasks use, and are read as a job reads them.
"""

from __future__ import annotations

import shutil
import struct
from datetime import UTC
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from state_engine import FileSink, FileSource, StateEngine, StatefulJob
from state_engine.core.errors import ConfigurationError
from state_engine.core.types.spark_types import spark_schema
from state_engine.sinks.files import FilePublisher
from state_engine.sinks.row_rules import without_rows
from state_engine.sources.base import ROW_COLUMN
from state_engine.sources.rows import TaskRows
from state_engine.spark.engine_session import EngineSession
from state_engine.spark.spark_names import T
from tests.sinks.requests import APP, asked, staged_files
from tests.sources.other_values import DATES, NAIVE, TEXTS

NO_KERNEL: Any = None
Form = Literal["csv", "parquet"]
ODD_TEXTS = (
    "\r", "\r\n", "a\rb", "\n\n", '"\n"', "\x00", "a\x00b", "\ufeff", "\ufeffa", "\u2028", "\x85", "\x0b", "\x1c", "\t",
    " \t ", "a ", " a", '","', '\\"', "\\", "NaN", "inf", "-0", "+5",
)  # fmt: skip
TEXT = st.sampled_from((*TEXTS, *ODD_TEXTS)) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def numbers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**digits - 1
    return st.integers(-most, most).map(lambda number: Decimal(f"{number}e-{scale}"))


TIMES = st.sampled_from(NAIVE) | st.datetimes()
FLAT: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "string": (pa.string(), TEXT),
    "tinyint": (pa.int8(), numbers(8)),
    "smallint": (pa.int16(), numbers(16)),
    "int": (pa.int32(), numbers(32)),
    "bigint": (pa.int64(), numbers(64)),
    "float": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats() | st.sampled_from([0.1, -0.0, 1e22, 5e-324, 2.0**53 + 2])),
    "boolean": (pa.bool_(), st.booleans()),
    "decimal(10,2)": (pa.decimal128(10, 2), decimals(10, 2)),
    "decimal(38,0)": (pa.decimal128(38, 0), decimals(38, 0)),
    "decimal(38,38)": (pa.decimal128(38, 38), decimals(38, 38)),
    "date": (pa.date32(), st.sampled_from(DATES) | st.dates()),
    "timestamp": (pa.timestamp("us", "UTC"), TIMES.map(lambda at: at.replace(tzinfo=UTC))),
    "timestamp_ntz": (pa.timestamp("us"), TIMES),
}  # fmt: skip
NESTED: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "binary": (pa.binary(), st.binary(max_size=4)),
    "array<string>": (pa.list_(pa.string()), st.lists(st.none() | TEXT, max_size=3)),
    "struct": (
        pa.struct([("a b", pa.float64()), ("c", pa.list_(pa.timestamp("us", "UTC")))]),
        st.fixed_dictionaries({
            "a b": st.none() | st.floats(), "c": st.none() | st.lists(FLAT["timestamp"][1], max_size=2),
        }),
    ),
    "map": (
        pa.map_(pa.string(), pa.decimal128(10, 2)),
        st.dictionaries(TEXT, st.none() | decimals(10, 2), max_size=2).map(lambda d: list(d.items())),
    ),
}  # fmt: skip
KINDS: dict[Form, dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]]] = {
    "csv": FLAT,
    "parquet": FLAT | NESTED,
}
NAMES = st.text("abéß.`'\"\n,; ()=\\{}\t\u2028\ufeff#%", min_size=1, max_size=5)


@st.composite
def tables(draw: st.DrawFn, form: Form) -> pa.Table:
    """A few rows of a few columns."""
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS[form])), min_size=1, max_size=6))
    names = draw(st.lists(NAMES, min_size=len(kinds), max_size=len(kinds), unique_by=str.lower))
    rows = draw(st.integers(1, 6))
    columns = {}
    for name, kind in zip(names, kinds, strict=True):
        arrow, values = KINDS[form][kind]
        columns[name] = pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), arrow)
    return pa.table(columns)


def written(directory: Path, table: pa.Table, form: Form) -> Path:
    """The files of a sink that got these rows, by the writer of a subtask."""
    staged = staged_files(
        FileSink(str(directory / "sink"), form), asked(NO_KERNEL, table.schema, "w1"), table
    )
    feed = directory / "feed"
    feed.mkdir()
    for file in staged.files:
        shutil.move(directory / "sink" / file.path, feed)
    return feed


def rows_of(spark: SparkSession, feed: Path, schema: pa.Schema, form: Form) -> pa.Table:
    """The rows of files, in their order."""
    options = {"header": "true"} if form == "csv" else {}
    declared = T.StructType.fromJson(spark_schema(schema))
    source = FileSource(str(feed), schema=declared, format=form, options=options)
    part = source.plan(spark, [])
    assert part is not None
    rows = source.read(spark, part, keep_refused=False).rows
    if isinstance(rows, TaskRows):
        rows = rows.as_frame(spark)
    table = rows.toArrow() if isinstance(rows, DataFrame) else rows
    return table.sort_by(ROW_COLUMN).select(schema.names)


def exact(value: Any) -> Any:
    """A value that equals another one only where it is the same to the last bit."""
    if isinstance(value, float):
        return "NaN" if value != value else struct.pack("d", value)
    if isinstance(value, list | tuple):
        return [exact(one) for one in value]
    if isinstance(value, dict):
        return {name: exact(one) for name, one in value.items()}
    return str(value) if isinstance(value, Decimal) else value


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """As a run has it."""
    return EngineSession(spark)


@pytest.mark.parametrize(("form", "examples"), [("csv", 300), ("parquet", 30)])
def test_what_a_sink_writes_a_source_reads(
    session: SparkSession, tmp_path: Path, form: Form, examples: int
) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(tables(form))
    def check(table: pa.Table) -> None:
        directory = tmp_path / uuid4().hex
        directory.mkdir()
        sink = FileSink(str(directory / "sink"), form)
        refused = sink.prepare(asked(NO_KERNEL, table.schema, "w1")).refused(table)
        first = table.column(0).to_pylist()
        alone = form == "csv" and table.num_columns == 1
        assert list(refused) == [row for row, value in enumerate(first) if alone and value is None]
        kept = without_rows(table, refused)
        if kept.num_rows:
            feed = written(directory, kept, form)
            assert exact(rows_of(session, feed, table.schema, form).to_pylist()) == exact(kept.to_pylist())

    check()


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")], ids=str)
def test_dates_that_no_text_says_are_refused_as_rows(tmp_path: Path, kind: pa.DataType) -> None:
    """Beyond the years 1 to 9999; Arrow writes some of them as ``<value out of range: …>``."""
    number = pa.int32() if pa.types.is_date(kind) else pa.int64()
    far = pa.array([0, 2**31 - 1 if number == pa.int32() else 2**63 - 1], number).cast(kind)
    schema = pa.schema([("at", kind), ("n", pa.int64())])
    target = FileSink(str(tmp_path / "sink"), "csv").prepare(asked(NO_KERNEL, schema, "w1"))
    refused = target.refused(pa.table({"at": far, "n": [1, 2]}, schema=schema))
    assert list(refused) == [1]
    assert "the column 'at' holds" in refused[1]


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")], ids=str)
def test_parquet_has_dates_that_python_has_not(
    session: SparkSession, tmp_path: Path, kind: pa.DataType
) -> None:
    bits = 32 if pa.types.is_date(kind) else 64
    number = pa.int32() if bits == 32 else pa.int64()
    ends = pa.array([2 ** (bits - 1) - 1, -(2 ** (bits - 1)), -719529, None], number)
    table = pa.table({"at": ends.cast(kind)})
    rows = rows_of(session, written(tmp_path, table, "parquet"), table.schema, "parquet")
    assert rows["at"].combine_chunks().cast(number).to_pylist() == ends.to_pylist()


WITHOUT_TEXT = {
    "binary": pa.binary(),
    "array<int>": pa.list_(pa.int32()),
    "struct<a:int>": pa.struct([("a", pa.int32())]),
    "map<string,int>": pa.map_(pa.string(), pa.int32()),
}


@pytest.mark.parametrize("ddl", WITHOUT_TEXT)
def test_what_csv_has_no_text_for_is_refused_before_the_batch(tmp_path: Path, ddl: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("c", WITHOUT_TEXT[ddl])])
    with pytest.raises(ConfigurationError, match=r"CSV has no text for values of 'c' \(.*\): use"):
        FileSink(str(tmp_path), "csv").check_columns(schema, name="out")
    FileSink(str(tmp_path), "parquet").check_columns(schema, name="out")


def test_a_published_directory_gives_the_rows_of_all_checkpoints(
    session: SparkSession, tmp_path: Path
) -> None:
    sink, schema = FileSink(str(tmp_path / "sink"), "csv"), pa.schema([("a b", pa.string())])
    for checkpoint_id, text in enumerate(("1", 'an inch is 1"'), start=1):
        request = asked(NO_KERNEL, schema, f"w{checkpoint_id}")
        staged = staged_files(sink, request, pa.table({"a b": [text]}))
        FilePublisher().publish(staged, APP, checkpoint_id)
    source = FileSource(
        sink.path, schema="`a b` string, checkpoint_id bigint", format="csv", options={"header": "true"}
    )
    part = source.plan(session, [])
    assert part is not None
    rows = source.read(session, part, keep_refused=False).rows
    assert isinstance(rows, pa.Table)
    assert rows.select(["a b", "checkpoint_id"]).to_pylist() == [
        {"a b": "1", "checkpoint_id": 1}, {"a b": 'an inch is 1"', "checkpoint_id": 2},
    ]  # fmt: skip


def test_a_row_that_csv_cannot_hold_is_a_letter(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"n": 1}\n{}\n{"n": 3}\n')
    job = StatefulJob("alone", on_error="dead_letter")
    source = FileSource(str(tmp_path / "in"), schema="n bigint", format="json")
    job.source("rows", source).sink("out", FileSink(str(tmp_path / "out"), "csv"))
    with StateEngine(tmp_path / "root", spark) as engine:
        (batch,) = engine.run(job).batches
        (letter,) = engine.list_dead_letters(job)
    assert (batch.rows_in, batch.rows_refused) == (3, 1)
    assert "the column 'n' holds null: readers of CSV pass over a blank line" in letter.error
    assert [file.read_text() for file in (tmp_path / "out").rglob("*.csv")] == ['"n"\n1\n3\n']
