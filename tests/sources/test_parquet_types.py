"""Types of Parquet files: what Spark infers is inferred; a declared type is read without loss, or refused, by all."""

from __future__ import annotations

import uuid
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from state_engine.core.errors import BadFileError
from state_engine.core.types.ddl import ddl_text
from state_engine.core.types.type_parsing import to_type
from state_engine.sources.file import FileSource
from state_engine.sources.parquet.file_types import columns_of, gives, inferred
from tests.sources.runs import SourceRun
from tests.support.limits import SetLimits
from tests.support.read_rows import table_of

NO_SPARK: Any = None
AT = datetime(2024, 1, 1, 1, 2, 3, 456789)
FILES: dict[str, tuple[pa.Array, dict[str, Any]]] = {
    name: (array, {})
    for name, array in {
        "int8": pa.array([-100, None], pa.int8()),
        "int16": pa.array([-30000], pa.int16()),
        "int32": pa.array([70000], pa.int32()),
        "int64": pa.array([2**53 + 1], pa.int64()),
        "uint8": pa.array([200], pa.uint8()),
        "uint16": pa.array([60000], pa.uint16()),
        "uint32": pa.array([2**32 - 1], pa.uint32()),
        "uint64": pa.array([2**64 - 1], pa.uint64()),
        "float": pa.array([1.1], pa.float32()),
        "double": pa.array([1.1]),
        "bool": pa.array([True]),
        "half": pa.array([1.5], pa.float32()).cast(pa.float16()),
        "date32": pa.array([date(2024, 1, 1)]),
        "date64": pa.array([date(2024, 1, 1)], pa.date64()),
        "ms": pa.array([AT.replace(microsecond=5000)], pa.timestamp("ms")),
        "us": pa.array([AT], pa.timestamp("us")),
        "us zoned": pa.array([AT], pa.timestamp("us", "UTC")),
        "ns": pa.array([AT], pa.timestamp("ns")),
        "ns zoned": pa.array([AT], pa.timestamp("ns", "UTC")),
        "time32": pa.array([time(1, 2, 3)], pa.time32("ms")),
        "time64": pa.array([time(1, 2, 3)], pa.time64("us")),
        "time64 ns": pa.array([time(1, 2, 3)], pa.time64("ns")),
        "duration": pa.array([timedelta(1)], pa.duration("us")),
        "fixed": pa.array([b"abc"], pa.binary(3)),
        "binary": pa.array([b"a"]),
        "large binary": pa.array([b"a"], pa.large_binary()),
        "binary view": pa.array([b"a"], pa.binary_view()),
        "string": pa.array(["a"]),
        "string view": pa.array(["a"], pa.string_view()),
        "large string": pa.array(["a"], pa.large_string()),
        "dictionary": pa.array(["a"]).dictionary_encode(),
        "null": pa.nulls(1),
        "decimal(9,2)": pa.array([Decimal("1.25")], pa.decimal128(9, 2)),
        "decimal(38,2)": pa.array([Decimal("1.25")], pa.decimal128(38, 2)),
        "decimal32": pa.array([Decimal("1.2")], pa.decimal32(5, 1)),
        "decimal(50,1)": pa.array([Decimal("1.2")], pa.decimal256(50, 1)),
        "uuid": pa.array([uuid.UUID(int=7).bytes], pa.uuid()),
        "list": pa.array([[1]]),
        "list of uint32": pa.array([[1]], pa.list_(pa.uint32())),
        "large list": pa.array([[1]], pa.large_list(pa.int64())),
        "fixed list": pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.uint8())),
        "record": pa.array([{"a": 1, "b": "x"}], pa.struct([("a", pa.uint16()), ("b", pa.large_string())])),
        "list of ns": pa.array([[AT]], pa.list_(pa.timestamp("ns"))),
        "list of null": pa.array([[None]], pa.list_(pa.null())),
        "record of records": pa.array([{"a": {"b": [1]}}]),
    }.items()
}
FILES["int96"] = (pa.array([AT], pa.timestamp("us")), {"use_deprecated_int96_timestamps": True})
FILES["int96 in a record"] = (
    pa.array([{"a": 1, "b": AT, "c": "x"}]),
    {"use_deprecated_int96_timestamps": True},
)
FILES["decimal as int"] = (FILES["decimal(9,2)"][0], {"store_decimal_as_integer": True})
FILES["list of two levels"] = (pa.array([[1]]), {"use_compliant_nested_type": False})
FILES["without Arrow's schema"] = (pa.array([timedelta(1)], pa.duration("us")), {"store_schema": False})
DECLARED = [
    "tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "binary", "date", "timestamp",
    "timestamp_ntz", "decimal(20,0)", "decimal(9,2)", "decimal(9,1)", "decimal(12,3)", "decimal(5,2)", "decimal(38,2)",
    "array<bigint>", "array<int>", "struct<a:bigint,b:string>", "struct<a:tinyint>", "map<string,smallint>",
    "map<string,tinyint>", "struct<a:struct<b:array<bigint>>>", "struct<a:struct<b:array<int>>>",
]  # fmt: skip


def write(directory: Path, name: str, *columns: str) -> Path:
    array, options = FILES[name]
    directory.mkdir(exist_ok=True)
    file = directory / "0.parquet"
    pq.write_table(pa.table(dict.fromkeys(columns or "c", array)), file, **options)
    return file


def test_what_spark_infers_is_inferred_and_what_has_no_type_says_so(
    tmp_path: Path, spark: SparkSession
) -> None:
    refused = set()
    for name in FILES:
        file = write(tmp_path / name, name)
        try:
            theirs = spark.read.parquet(str(file)).schema["c"].dataType.simpleString()
        except PySparkException:
            refused.add(name)
            with pytest.raises(BadFileError, match=r"0\.parquet: column 'c' holds .*, for which Spark has"):
                inferred(f"file://{file}", columns_of(pq.ParquetFile(file)))
            continue
        (mine,) = inferred("x", columns_of(pq.ParquetFile(file)))
        ours = to_type(mine.type, parameter="x").arrow
        assert (name, ddl_text(ours).replace("`", "").replace(": ", ":").replace(", ", ",")) == (name, theirs)
    assert refused == {
        "half",
        "ns",
        "ns zoned",
        "time32",
        "time64",
        "time64 ns",
        "decimal(50,1)",
        "uuid",
        "list of ns",
    }


@pytest.fixture(params=["driver", "tasks", "spark"])
def reader(request: pytest.FixtureRequest, limits: SetLimits) -> dict[str, Any]:
    if request.param == "tasks":
        limits(stored_bytes=0)
    return {"options": {"mergeSchema": "false"}} if request.param == "spark" else {}


@pytest.mark.parametrize("name", FILES)
def test_a_declared_type_is_read_without_loss_or_refused(
    tmp_path: Path, spark: SparkSession, reader: dict[str, Any], name: str
) -> None:
    write(tmp_path, name)
    good = []
    for kind in DECLARED:
        try:
            FileSource(str(tmp_path), schema=f"c {kind}", **reader).plan(NO_SPARK, [])
        except BadFileError as error:
            assert f"{tmp_path}/0.parquet: column 'c" in str(error)  # noqa: PT017
            assert "Declare it as" in str(error)  # noqa: PT017
        else:
            if name != "int96" or kind != "bigint":  # which Spark refuses while it reads
                good.append(kind)
    assert good or name == "int96 in a record"
    names = [f"c{place}" for place in range(len(good))]
    if not good:
        return
    write(tmp_path, name, *names)
    schema = ", ".join(f"{c} {kind}" for c, kind in zip(names, good, strict=True))
    source = FileSource(str(tmp_path), schema=schema, **reader)
    part = source.plan(spark, [])
    assert part is not None
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    table = table_of(spark, source.read(spark, part, keep_refused=False).rows)
    array = FILES[name][0]
    for column, kind in zip(names, good, strict=True):
        assert (kind, table[column].to_pylist()) == (
            kind,
            [expected(v, array, table.schema.field(column).type) for v in array],
        )


def expected(value: pa.Scalar, array: pa.Array, kind: pa.DataType) -> Any:
    """A value of a file as one of the declared type: equal, or the number or the bytes that are stored."""
    given = value.as_py()
    if pa.types.is_nested(kind) and array.type == pa.list_(pa.timestamp("ns")):
        return array.cast(pa.list_(pa.int64()))[0].as_py()
    if given is None or pa.types.is_nested(kind):
        return given
    if isinstance(given, timedelta):
        return given // timedelta(microseconds=1)
    if pa.types.is_integer(kind) and not isinstance(given, int | Decimal):
        stored = array[:1].cast(pa.date32()) if pa.types.is_date(array.type) else array[:1]
        return stored.cast(pa.int32() if stored.type.bit_width == 32 else pa.int64())[0].as_py()
    if pa.types.is_binary(kind):
        if isinstance(given, uuid.UUID):
            return given.bytes
        return given.encode() if isinstance(given, str) else given if isinstance(given, bytes) else ANYTHING
    if pa.types.is_string(kind) and isinstance(given, bytes):
        return given.decode()
    if pa.types.is_timestamp(kind):
        at = given if isinstance(given, datetime) else datetime(given.year, given.month, given.day)
        return pa.scalar(at.replace(tzinfo=None), pa.timestamp("us")).cast(kind).as_py()
    return given


class Anything:
    """Equal to all: the stored bytes of a number that Spark has no type for."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, bytes)

    def __hash__(self) -> int:
        return 0


ANYTHING = Anything()


@pytest.mark.parametrize(
    ("there", "wanted"),
    [
        ("bigint", "int"),
        ("int", "tinyint"),
        ("double", "float"),
        ("bigint", "double"),
        ("int", "date"),
        ("date", "tinyint"),
        ("decimal(9,2)", "int"),
        ("decimal(9,2)", "decimal(9,1)"),
        ("decimal(9,2)", "decimal(10,4)"),
        ("string", "int"),
        ("timestamp", "date"),
        ("boolean", "int"),
        ("double", "decimal(38,18)"),
    ],
)
def test_what_may_lose_something_is_no_way_to_read(there: str, wanted: str) -> None:
    kinds = [to_type(kind, parameter="kind").arrow for kind in (there, wanted)]
    assert not gives(kinds[0], kinds[1])
    assert gives(kinds[0], kinds[0])


@pytest.mark.parametrize("schema", ["id bigint", None])
def test_a_file_without_columns_is_one_letter_and_the_others_are_read(
    tmp_path: Path, spark: SparkSession, schema: str | None
) -> None:
    feed = tmp_path / "feed"
    feed.mkdir()
    pq.write_table(pa.table({}), feed / "0.parquet")
    pq.write_table(pa.table({"id": [1]}), feed / "1.parquet")
    with pytest.raises(BadFileError, match=r"0\.parquet: it has no columns: .*on_bad_file='dead_letter'"):
        FileSource(str(feed), schema=schema).plan(spark, [])
    source = FileSource(str(feed), schema=schema, on_bad_file="dead_letter")
    run = SourceRun(spark, tmp_path, source, on_error="dead_letter")
    run.run()
    assert run.ids() == [1]
    assert "it has no columns" in run.engine.list_dead_letters(run.job)[0].error


def test_a_file_of_another_type_is_one_letter_and_the_others_are_read(
    tmp_path: Path, spark: SparkSession
) -> None:
    feed = tmp_path / "feed"
    feed.mkdir()
    for place, kind in enumerate((pa.int32(), pa.int64(), pa.int32())):
        pq.write_table(pa.table({"id": pa.array([place], kind)}), feed / f"{place}.parquet")
    source = FileSource(str(feed), schema="id int", on_bad_file="dead_letter")
    run = SourceRun(spark, tmp_path, source, on_error="dead_letter")
    run.run()
    assert run.ids() == [0, 2]
    (letter,) = run.engine.list_dead_letters(run.job)
    assert "column 'id' holds bigint, and not every such value is one of the declared int" in letter.error


def test_a_time_that_spark_cannot_hold_names_its_column_and_the_advice_helps(
    tmp_path: Path, spark: SparkSession
) -> None:
    feed = tmp_path / "feed"
    feed.mkdir()
    far = pa.array([5, 2**62], pa.timestamp("ms"))
    pq.write_table(pa.table({"id": [1, 2], "at": far}), feed / "0.parquet")
    pq.write_table(pa.table({"id": [3], "at": far[:1]}), feed / "1.parquet")
    with pytest.raises(
        BadFileError, match=r"0\.parquet: column 'at': long overflow.*Write such times as bigint"
    ):
        SourceRun(spark, tmp_path / "a", FileSource(str(feed))).run()
    run = SourceRun(
        spark, tmp_path / "b", FileSource(str(feed), on_bad_file="dead_letter"), on_error="dead_letter"
    )
    run.run()
    assert run.ids() == [3]
    (letter,) = run.engine.list_dead_letters(run.job)
    assert "column 'at': long overflow" in letter.error
    pq.write_table(pa.table({"id": [1, 2], "at": far.cast(pa.int64())}), feed / "0.parquet")
    (feed / "1.parquet").unlink()
    run = SourceRun(spark, tmp_path / "c", FileSource(str(feed)))
    run.run()
    assert sorted(run.ids()) == [1, 2]
