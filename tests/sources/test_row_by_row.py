"""A transform sees the same rows whoever reads them, and either treats them one by one or is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, DateTimeException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine import FileSource
from state_engine.core.errors import ConfigurationError
from state_engine.sources.frames import HIDDEN, StreamFrame, from_source
from state_engine.sources.output_type import OutputType
from state_engine.sources.rows import SparkRows, TaskRows
from tests.support.limits import SetLimits

pytestmark = pytest.mark.spark

ROWS = [(1, "a", "12"), (3, None, "3"), (2, "b", ""), (2, "b", "42"), (3, None, "3")]
NAMES = ["k", "s", "l"]
LETTERS = "filter(split(l, ''), x -> x != '')"


@dataclass(frozen=True)
class Step:
    """DataFrame code as ``transform`` keeps it."""

    function: Callable[[DataFrame], DataFrame]
    order_by: tuple[str, ...] | None = None
    output_type: OutputType | None = None


@pytest.fixture(autouse=True)
def no_view_is_left(spark: SparkSession) -> Iterator[None]:
    """Other tests of this session list the views that they find."""
    yield
    spark.catalog.dropTempView("of_the_stream")


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("feed")
    schema = pa.schema([("k", pa.int64()), ("s", pa.string()), ("l", pa.string())])
    for name, rows in (("0", ROWS[:2]), ("1", ROWS[2:])):
        pq.write_table(
            pa.table(dict(zip(NAMES, map(list, zip(*rows, strict=True)), strict=True)), schema),
            at / f"{name}.parquet",
        )
    return at


@pytest.fixture(params=["driver", "spark", "arrow"])
def frame(request: pytest.FixtureRequest, feed: Path, spark: SparkSession, limits: SetLimits) -> StreamFrame:
    """The rows of the feed, read by the driver, by a scan of Spark, or by tasks with Arrow."""
    if request.param != "driver":
        limits(rows=-1)
    source = FileSource(str(feed), format="parquet")
    part = source.plan(spark, [])
    assert part is not None
    read = source.read(spark, part, keep_refused=False)
    if request.param == "driver":
        assert isinstance(read.rows, pa.Table)
    else:
        assert isinstance(read.rows, TaskRows)
        assert read.rows.scan is not None
        if request.param == "arrow":
            read = replace(read, rows=replace(read.rows, scan=None))
    return from_source(spark, read, order_by=(), event_time=None, source="feed", labels=tuple(part.labels))


def in_order(frame: StreamFrame) -> list[tuple[Any, ...]]:
    """The rows as users see them, in the order of the stream."""
    ordered = frame.ordered()
    order = [F.col(name).asc_nulls_first() for name, _ in ordered.order]
    rows = ordered.rows.repartition(3).sortWithinPartitions(F.rand(1)).orderBy(*order).collect()
    shown = [place for place, name in enumerate(ordered.rows.columns) if not name.startswith(HIDDEN)]
    return [tuple(row[place] for place in shown) for row in rows]


def lookup(spark: SparkSession) -> DataFrame:
    """A table that is no stream: whatever makes its rows is its own affair."""
    rows = spark.createDataFrame([(1, "x"), (2, "y"), (2, "z"), (2, "z"), (9, "w")], "k bigint, name string")
    return rows.distinct().orderBy("name").limit(4).withColumn("at", F.current_timestamp()).drop("at")


def with_sql(rows: DataFrame) -> DataFrame:
    rows.createOrReplaceTempView("of_the_stream")
    return rows.sparkSession.sql(
        "WITH twos AS (SELECT * FROM of_the_stream WHERE k = 2), ks AS (SELECT s, k FROM twos) SELECT k, s FROM ks"
    )


ONE_BY_ONE: dict[str, tuple[Callable[[DataFrame], DataFrame], list[tuple[Any, ...]]]] = {
    "nothing": (lambda d: d, ROWS),
    "columns": (lambda d: d.select(d.columns[0], F.lit(len(d.columns))), [(r[0], 3) for r in ROWS]),
    "other columns": (
        lambda d: d.withColumns({"z": F.lit(1)}).withColumnRenamed("k", "kk").drop("s").select("z", "kk"),
        [(1, r[0]) for r in ROWS],
    ),
    "all columns by a star": (
        lambda d: d.select(F.struct("*").alias("t")).selectExpr("t.*", "size(array(struct(t.*)))"),
        [(*r, 1) for r in ROWS],
    ),
    "a hash of equal rows": (
        lambda d: d.withColumn("h", F.xxhash64("k", "s", "l") == F.xxhash64("*")).select("h"), [(True,)] * 5
    ),
    "names by place": (lambda d: d.toDF("a", "b", "c").select("c", "a"), [(r[2], r[0]) for r in ROWS]),
    "a schema": (
        lambda d: d.to(d.schema).replace("b", "c").select("s"),
        [({"a": "a", "b": "c", None: None}[r[1]],) for r in ROWS],
    ),
    "no nulls": (lambda d: d.na.drop(), [r for r in ROWS if r[1]]),
    "nulls filled": (lambda d: d.na.fill("-").select("s"), [(r[1] or "-",) for r in ROWS]),
    "rows elsewhere": (lambda d: d.repartition(4).coalesce(1).select("k"), [(r[0],) for r in ROWS]),
    "explode": (lambda d: d.selectExpr("k", f"explode({LETTERS})"), [(r[0], e) for r in ROWS for e in r[2]]),
    "explode twice": (
        lambda d: d.withColumn("e", F.expr(f"explode({LETTERS})")).select("e", F.expr(f"explode(reverse({LETTERS}))")),
        [(e, f) for r in ROWS for e in r[2] for f in r[2][::-1]],
    ),
    "unpivot": (
        lambda d: d.selectExpr("k", "k AS b", "-k AS a").unpivot(["k"], ["b", "a"], "name", "n").select("name", "n"),
        [(name, n) for r in ROWS for name, n in (("b", r[0]), ("a", -r[0]))],
    ),
    "explode and a join": (
        lambda d: d.selectExpr("k", f"explode({LETTERS})").join(lookup(d.sparkSession).select("k").distinct(), "k"),
        [(r[0], e) for r in ROWS if r[0] < 3 for e in r[2]],
    ),
    "a left join": (
        lambda d: d.join(lookup(d.sparkSession).where("name != 'z'"), "k", "left").select("k", "name"),
        [(r[0], {1: "x", 2: "y"}.get(r[0])) for r in ROWS],
    ),
    "a right join": (
        lambda d: lookup(d.sparkSession).where("k = 1").join(d, "k", "right").select("k", "name"),
        [(r[0], {1: "x"}.get(r[0])) for r in ROWS],
    ),
    "an anti join": (
        lambda d: d.join(lookup(d.sparkSession), "k", "left_anti").select("k"), [(r[0],) for r in ROWS if r[0] == 3]
    ),
    "a subquery of another table": (
        lambda d: d.where(F.col("k") < lookup(d.sparkSession).select(F.max("k")).scalar()).select("k"),
        [(r[0],) for r in ROWS],
    ),
    "SQL": (with_sql, [(2, "b"), (2, "b")]),
    "a union of its parts": (
        lambda d: d.where("k = 3").unionByName(d.where("k < 3")).select("k"), [(r[0],) for r in ROWS]
    ),
    "functions": (
        lambda d: d.withColumn("u", F.udf(lambda k: k + 1, "long").asNondeterministic()("k")).select(
            "u", F.udf(lambda k: -k, "long", useArrow=True)("k")
        ),
        [(r[0] + 1, -r[0]) for r in ROWS],
    ),
    "kept in memory": (lambda d: d.where("k > 1").cache().select("k"), [(r[0],) for r in ROWS if r[0] > 1]),
    "windows of time": (
        lambda d: d.withColumn("t", F.timestamp_seconds("k")).select(F.window("t", "1 hour")["start"].isNotNull()),
        [(True,)] * 5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ONE_BY_ONE)
def test_code_that_treats_rows_one_by_one_keeps_their_order(frame: StreamFrame, what: str) -> None:
    code, expected = ONE_BY_ONE[what]
    assert in_order(frame.transformed(Step(code))) == expected


def test_all_readers_show_the_same_columns(frame: StreamFrame) -> None:
    seen = []

    def code(rows: DataFrame) -> DataFrame:
        seen.append((rows.columns, rows.schema.json(), rows.dtypes))
        return rows

    twice = frame.transformed(Step(code)).transformed(Step(code))
    assert seen[0][0] == NAMES
    assert seen[1] == seen[0]
    assert [(f["name"], f["nullable"]) for f in frame.user_schema.jsonValue()["fields"]] == [
        (n, True) for n in NAMES
    ]
    assert twice.user_columns == NAMES


def test_rows_that_one_row_became_have_one_order_whoever_reads(frame: StreamFrame) -> None:
    """Where a join or a union moves them, their contents order them: equal rows may then come in any order."""
    joined = frame.transformed(Step(lambda d: d.join(lookup(d.sparkSession), "k").select("k", "name")))
    again = joined.transformed(
        Step(lambda d: d.union(d).withColumn("e", F.explode(F.array(F.lit(2), F.lit(1)))))
    )
    rows = in_order(again)
    assert rows == in_order(again)
    assert [row[0] for row in rows] == [1] * 4 + [2] * 16
    of_a_two = sorted((2, name, e) for name in "yz" for e in (1, 1, 2, 2))
    assert sorted(rows[4:12]) == sorted(rows[12:]) == of_a_two
    assert rows[4:12] == rows[12:]


def test_new_rows_need_an_order(frame: StreamFrame) -> None:
    def new(rows: DataFrame) -> DataFrame:
        return rows.mapInArrow(lambda batches: batches, rows.schema)

    unordered = frame.transformed(Step(new))
    with pytest.raises(ConfigurationError, match=r"makes new rows \(mapInArrow.*which have no order. Name"):
        unordered.ordered()
    by_k = in_order(frame.transformed(Step(new, order_by=("k",))))
    assert [row[0] for row in by_k] == sorted(r[0] for r in ROWS)
    after = frame.transformed(Step(new, order_by=("k",))).transformed(
        Step(lambda d: d.where("k > 1").union(d))
    )
    assert [row[0] for row in in_order(after)] == [1, 2, 2, 2, 2, 3, 3, 3, 3]
    assert "uses limit" in refused(after, lambda d: d.limit(1))


def refused(frame: StreamFrame, code: Callable[[DataFrame], DataFrame]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        frame.transformed(Step(code, order_by=("k",)))
    return str(caught.value)


OTHER_ROWS: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "limit": (lambda d: d.limit(3), "uses limit,.*option of its source"),
    "offset": (lambda d: d.offset(1), "uses offset,.*in state"),
    "distinct": (lambda d: d.select("k").distinct(), "uses distinct or dropDuplicates,.*function with state"),
    "dropDuplicates": (lambda d: d.dropDuplicates(["k"]), "uses distinct or dropDuplicates,.*function with state"),
    "groupBy": (lambda d: d.groupBy("k").count(), "uses an aggregate.*function with state, or an aggregate"),
    "describe": (lambda d: d.describe().withColumn("k", F.lit(1)), "uses an aggregate"),
    "pivot": (lambda d: d.groupBy("k").pivot("s", ["a"]).count(), "uses an aggregate"),
    "orderBy": (lambda d: d.orderBy("k"), r"uses a sort,.*order_by=\[...\] of the source or of transform"),
    "sort within partitions": (lambda d: d.sortWithinPartitions("k"), "uses a sort,"),
    "a window function": (
        lambda d: d.selectExpr("k", "row_number() OVER (PARTITION BY k ORDER BY s)"), "uses a window function,"
    ),
    "sample": (lambda d: d.sample(0.5, seed=1), "uses sample,.*pmod"),
    "intersect": (lambda d: d.intersect(d), "uses intersect,"),
    "exceptAll": (lambda d: d.exceptAll(d.where("k = 1")), "uses except"),
    "a join with itself": (lambda d: d.join(d.groupBy("k").count(), "k"), "uses an aggregate"),
    "a plain join with itself": (lambda d: d.join(d.selectExpr("k", "s AS t"), "k"), "a join with the stream itself"),
    "a subquery of itself": (lambda d: d.where(F.col("k") > d.select("k").scalar()), "a join with the stream itself"),
    "an aggregate below a subquery": (lambda d: d.where(F.col("k") > d.select(F.max("k")).scalar()), "an aggregate"),
    "a full join": (lambda d: d.join(lookup(d.sparkSession), "k", "full"), "adds rows of the other table"),
    "a left join of the stream": (
        lambda d: lookup(d.sparkSession).join(d, "k", "left"), "adds rows of the other table"
    ),
    "rows of another table": (
        lambda d: d.select("k").union(lookup(d.sparkSession).select("k")), "a union with rows of another table"
    ),
    "applyInPandas": (
        lambda d: d.groupBy("k").applyInPandas(lambda p: p, d.schema), "uses applyInPandas,.*function with state"
    ),
    "zipWithIndex": (lambda d: d.zipWithIndex(), "uses zipWithIndex"),
    "a limit below functions": (lambda d: d.limit(1).mapInArrow(lambda it: it, d.schema), "uses limit"),
    "a number by partition": (
        lambda d: d.withColumn("n", F.monotonically_increasing_id()), "uses monotonically_increasing_id,"
    ),
    "a random number": (lambda d: d.withColumn("n", F.rand(1) + 1), "uses rand,.*in a function"),
    "a filter by chance": (lambda d: d.where(F.rand() < 0.5), "uses rand,"),
    "uuid": (lambda d: d.withColumn("n", F.concat(F.lit("x"), F.uuid())), "uses uuid,"),
    "shuffled lists": (lambda d: d.select("k", F.shuffle(F.expr(LETTERS))), "uses shuffle,"),
    "the name of a file": (lambda d: d.withColumn("n", F.input_file_name()), "uses input_file_name,.*as a column"),
    "the number of a partition": (lambda d: d.withColumn("n", F.spark_partition_id()), "uses spark_partition_id,"),
    "now": (lambda d: d.withColumn("n", F.expr("now()")), "uses now,.*current_processing_time"),
    "a literal now": (lambda d: d.select(F.expr("TIMESTAMP 'now'")), "uses TIMESTAMP 'now',.*current_processing_time"),
    "a literal today": (
        lambda d: d.where(F.expr("DATE '2024-01-01' < date ' Today UTC'")), "uses date ' Today UTC',.*recorded clock"
    ),
    "a literal inside": (
        lambda d: d.select(F.expr("transform(array(1), x -> year(timestamp_ntz'yesterday'))")), "uses timestamp_ntz'"
    ),
    "a literal below functions": (
        lambda d: d.withColumn("k", F.expr("year(DATE 'tomorrow')")).mapInArrow(lambda it: it, d.schema),
        "uses DATE 'tomorrow',",
    ),
    "current_timestamp": (lambda d: d.select("k", F.year(F.current_timestamp())), "uses current_timestamp,"),
    "current_date": (lambda d: d.where(F.current_date() > "2020-01-01"), "uses current_date,.*recorded clock"),
    "localtimestamp": (lambda d: d.withColumn("n", F.localtimestamp()), "uses localtimestamp,"),
    "unix_timestamp of now": (lambda d: d.withColumn("n", F.unix_timestamp()), "uses current_timestamp,"),
    "the user": (lambda d: d.withColumn("n", F.current_user()), "uses current_user,"),
    "one who explodes by chance": (
        lambda d: d.select("k", F.explode(F.array(F.rand()))), "uses rand,"
    ),
}  # fmt: skip


@pytest.mark.parametrize("frame", ["driver"], indirect=True)
@pytest.mark.parametrize("what", OTHER_ROWS)
def test_what_looks_at_other_rows_or_at_the_run_is_refused(frame: StreamFrame, what: str) -> None:
    if what == "zipWithIndex" and not hasattr(DataFrame, what):
        pytest.skip("this version of Spark has none")
    code, message = OTHER_ROWS[what]
    assert re.search(f"transform.*{message}", refused(frame, code))


OF_THE_DAY = ["12:30", "7:5", " 07:00:00.5", "T07", "t7:30"]
WITH_A_DATE = ["2024-01-05 07:00:00", "2024-01-05T07:00", "2024-01-05", "2024"]
MADE_TIMES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a cast": lambda d: d.select(F.col("t").cast("timestamp")),
    "to_timestamp": lambda d: d.where("year(to_timestamp(t)) > 0"),
    "a comparison": lambda d: d.where(F.col("t") > F.lit(datetime(2020, 1, 1))),
    "deep inside": lambda d: d.select(F.expr("transform(array(t), x -> struct(hour(x)))")),
}
NO_DATES = {
    "today": "cast('today' AS date)", "now": "cast(' NOW ' AS timestamp)", "tomorrow": "to_timestamp('tomorrow')",
    "to_date": "to_date('today')", "without zone": "cast('yesterday' AS timestamp_ntz)",
    "a literal": "to_timestamp('12:30')",
}  # fmt: skip


@pytest.mark.parametrize("frame", ["driver"], indirect=True)
def test_no_text_gets_the_date_of_the_run(frame: StreamFrame) -> None:
    def with_texts(texts: list[str]) -> StreamFrame:
        return frame.transformed(Step(lambda d: d.select(F.explode(F.array(*map(F.lit, texts))).alias("t"))))

    def times(texts: list[str], code: Callable[[DataFrame], DataFrame]) -> list[Any]:
        return [row[0] for row in in_order(with_texts(texts).transformed(Step(code)))]

    try_cast = "try_cast(t AS timestamp)"
    assert times(OF_THE_DAY, lambda d: d.selectExpr(try_cast)) == [None] * 5 * len(ROWS)
    dated = times(WITH_A_DATE, lambda d: d.selectExpr(f"year({try_cast})"))
    assert dated == [2024] * 4 * len(ROWS)
    for text, code in zip(OF_THE_DAY, MADE_TIMES.values(), strict=False):
        assert len(times(WITH_A_DATE, code)) == 4 * len(ROWS)
        with pytest.raises(DateTimeException, match=f"depends on the day of the run: {text}"):
            times([text], code)
    for made in NO_DATES.values():
        with pytest.raises(DateTimeException, match="depends on the day of the run"):
            times(["x"], lambda d, made=made: d.selectExpr(made))  # type: ignore[misc]
    fixed = ("TIMESTAMP '2024-01-01 00:00:00'", "DATE '1970-01-01'", "TIMESTAMP 'epoch'", "'now'")
    assert len({times(["x"], lambda d, made=made: d.selectExpr(made))[0] for made in fixed}) == 4  # type: ignore[misc]

    def new(rows: DataFrame) -> DataFrame:
        return rows.mapInArrow(lambda batches: batches, rows.schema)

    below = Step(lambda d: new(d.selectExpr("t", "cast(t AS timestamp) AS at")), order_by=("t",))
    above = Step(lambda d: d.selectExpr("t", "cast(t AS timestamp) AS at"))
    for text in OF_THE_DAY:
        for frames in (
            with_texts([text]).transformed(below),
            with_texts([text]).transformed(Step(new, ("t",))).transformed(above),
        ):
            with pytest.raises((DateTimeException, PythonException), match="depends on the day of the run"):
                in_order(frames)
    with pytest.raises(ConfigurationError, match=r"makes times of texts in a node Generate.*in front of it"):
        times(WITH_A_DATE, lambda d: d.select(F.explode(F.array(F.col("t").cast("timestamp")))))


INSIDE = {
    "a list": ("cast(array(t) AS array<timestamp>)", "try_cast"),
    "a list, tried": ("try_cast(array(t) AS array<timestamp>)", "try_cast"),
    "a map": ("cast(map(t, t) AS map<string, timestamp>)", "try_cast"),
    "a record": ("cast(struct(t) AS struct<t: timestamp>)", "try_cast"),
    "from_json": ("from_json(t, 'at timestamp')", "timestampFormat"),
    "from_csv": ("from_csv(t, 'at timestamp')", "timestampFormat"),
    "from_xml": ("from_xml(t, 'at timestamp')", "timestampFormat"),
    "a variant": ("cast(parse_json(t) AS timestamp)", "get a string"),
    "inside of a variant": ("variant_get(parse_json(t), '$.a', 'timestamp')", "get a string"),
}
NO_TIMES_INSIDE = [
    "cast(array(t) AS array<string>)", "from_json(t, 'at string')",
    "from_json(t, 'at timestamp', map('timestampFormat', 'yyyy-MM-dd'))", "cast(array(k) AS array<timestamp>)",
    "transform(array(t), x -> try_cast(x AS timestamp))",
]  # fmt: skip


def test_times_of_texts_inside_of_values_are_refused(frame: StreamFrame) -> None:
    with_text = frame.transformed(Step(lambda d: d.selectExpr("k", "s AS t")))
    for what, (code, way_out) in INSIDE.items():
        message = refused(with_text, lambda d, code=code: d.selectExpr(code))  # type: ignore[misc]
        assert re.search(f"makes times of texts inside of values.*{way_out}", message), what
    for code in NO_TIMES_INSIDE:
        with_text.transformed(Step(lambda d, code=code: d.selectExpr(code)))  # type: ignore[misc]


TIMES = {
    "a time": lambda d: d.withColumn("n", F.udf(lambda at: at.hour, "int")(F.timestamp_seconds("k"))),
    "by Arrow": lambda d: d.select(F.udf(lambda at: at.hour, "int", useArrow=True)(F.timestamp_seconds("k"))),
    "in a list": lambda d: d.where(F.udf(lambda at: at[0].hour > 2, "boolean")(F.array(F.timestamp_seconds("k")))),
    "given back": lambda d: d.withColumn("n", F.year(F.udf(lambda k: None, "timestamp")("k"))),
    "in a record": lambda d: d.withColumn("n", F.udf(lambda k: None, "struct<timestamp: timestamp>")("k")),
}  # fmt: skip
OF_COLUMNS: Any = F.pandas_udf
NO_TIMES = {
    "no time": lambda d: d.withColumn("n", F.udf(lambda k: k, "bigint")("k")),
    "a name": lambda d: d.withColumn("n", F.udf(lambda k: (k,), "struct<timestamp: bigint>")("k")),
    "columns": lambda d: d.withColumn("n", OF_COLUMNS(lambda at: at.dt.hour, "int")(F.timestamp_seconds("k"))),
    "without a zone": lambda d: d.withColumn("n", F.udf(lambda k: None, "timestamp_ntz")("k")),
}  # fmt: skip


@pytest.mark.parametrize("frame", ["driver"], indirect=True)
def test_a_udf_that_goes_by_the_zone_of_the_process_is_refused(
    frame: StreamFrame, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark converts times that it gives to Python's functions by the zone of their process."""
    monkeypatch.setitem(spark.sparkContext.environment, "TZ", "Asia/Tokyo")
    for what, code in TIMES.items():
        assert re.search(
            "transform.* uses a udf, .*of a timestamp.*Asia/Tokyo where tasks run.*pandas_udf",
            refused(frame, code),
        ), what
    for code in NO_TIMES.values():
        frame.transformed(Step(code))
    monkeypatch.setitem(spark.sparkContext.environment, "TZ", "UTC")
    for code in TIMES.values():
        frame.transformed(Step(code))


def test_a_hidden_column_of_spark_is_refused(spark: SparkSession, feed: Path) -> None:
    """Only a scan has ``_metadata``."""
    scan = (
        spark.read.parquet(str(feed))
        .withColumn("_statelake_file", F.lit(0))
        .withColumn("_statelake_row", F.col("k"))
    )
    frame = StreamFrame(spark, SparkRows(scan), (), ("_statelake_file", "_statelake_row"), 0, None)
    with pytest.raises(
        (ConfigurationError, AnalysisException), match=r"metadata column \(_metadata\)|UNRESOLVED_COLUMN"
    ):
        frame.transformed(Step(lambda d: d.select("*", "_metadata.file_name"), order_by=("k",)))


def test_a_name_of_ours_is_unknown_to_the_code(frame: StreamFrame) -> None:
    seen = []

    def code(rows: DataFrame) -> DataFrame:
        seen.append(rows.drop("_statelake_row").columns)
        return rows.select("*", F.col("_statelake_row"))

    with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
        frame.transformed(Step(code))
    assert seen == [NAMES]
