"""DataFrame code of a job: what its ``udf`` gives is of the declared type, and times without a zone are UTC."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PythonException
from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import DataType

from state_engine.core.errors import ValueTypeError
from state_engine.spark.engine_session import EngineSession
from state_engine.spark.frame_code import CheckedResult, frame_code

NOON = datetime(2026, 1, 5, 12)
FITTING: dict[str, list[tuple[Any, Any]]] = {
    "int": [(5, 5), (None, None)],
    "bigint": [(2**62, 2**62)],
    "double": [(1, 1.0), (2.5, 2.5)],
    "float": [(0.5, 0.5), (0.1, 0.10000000149011612)],
    "decimal(10,2)": [(3, Decimal("3.00")), (Decimal("1.5"), Decimal("1.50"))],
    "string": [("x", "x"), (5, "5")],
    "boolean": [(True, True)],
    "binary": [(b"x", b"x"), (bytearray(b"x"), b"x")],
    "date": [(date(2026, 1, 5), date(2026, 1, 5))],
    "timestamp_ntz": [(NOON, NOON)],
    "array<double>": [([1, 2.5], [1.0, 2.5]), ((1, None), [1.0, None])],
    "map<string,bigint>": [({"a": 1}, {"a": 1})],
    "struct<a:bigint,b:double>": [
        ((1, 2), SparkRow(a=1, b=2.0)),
        ({"b": 2, "a": 1}, SparkRow(a=1, b=2.0)),
        (SparkRow(a=1, b=2), SparkRow(a=1, b=2.0)),
    ],
    "array<struct<a:bigint,b:string>>": [
        ([(1, "x"), {"a": 2, "b": "y"}], [SparkRow(a=1, b="x"), SparkRow(a=2, b="y")])
    ],
}
"""By declared type: what a function returns, and what comes of it."""
OTHERS: list[tuple[str, Any]] = [
    ("int", "abc"), ("int", "5"), ("int", 2.5), ("int", 2.0), ("int", 10**12), ("int", True), ("tinyint", 300),
    ("bigint", 2**70), ("double", 2**53 + 1), ("double", "1.5"), ("decimal(10,2)", 1.5),
    ("decimal(10,2)", Decimal("1.005")), ("decimal(4,2)", Decimal("12345.1")), ("string", b"x"),
    ("string", date(2026, 1, 5)), ("string", 2.5), ("boolean", 1), ("binary", "x"), ("date", NOON),
    ("date", "2026-01-05"),
    ("timestamp_ntz", date(2026, 1, 5)), ("timestamp_ntz", NOON.replace(tzinfo=UTC)), ("timestamp", "2026-01-05"),
    ("array<int>", {1, 2}), ("array<int>", [1, "a"]), ("array<int>", [2.5]), ("map<string,int>", {"a": "b"}),
    ("struct<a:int,b:int>", (1,)), ("struct<a:int,b:int>", (1, 2.5)), ("struct<a:int,b:int>", {"a": 1}),
]  # fmt: skip
"""Declared types, and values that a plain ``udf`` of PySpark changes, or that end in an error."""


def json_of(declared: str) -> Any:
    kind: Any = DataType.fromDDL(declared)
    return kind.jsonValue()


@pytest.mark.parametrize(("declared", "value"), OTHERS, ids=str)
def test_a_value_of_another_type_is_refused(spark: SparkSession, declared: str, value: Any) -> None:
    with pytest.raises(
        ValueTypeError, match=r"a udf, half, declared .*\(.*\) is not a value of type.*declare the type"
    ):
        CheckedResult(lambda: value, "half", json_of(declared), declared)()


@pytest.mark.parametrize("by_arrow", [False, True])
def test_a_value_that_fits_becomes_one_of_the_declared_type(spark: SparkSession, by_arrow: bool) -> None:
    cases = [(declared, *pair) for declared, pairs in FITTING.items() for pair in pairs]
    with frame_code():
        columns = [
            F.udf(lambda _, value=value: value, declared, useArrow=by_arrow)("id")
            for declared, value, _ in cases
        ]
    (row,) = spark.range(1).select(*columns).collect()
    assert [bytes(v) if isinstance(v, bytearray) else v for v in row] == [expected for *_, expected in cases]


@pytest.mark.parametrize("by_arrow", [False, True])
def test_times_of_a_udf_are_utc(spark: SparkSession, by_arrow: bool) -> None:
    """Also those in lists and records."""
    with frame_code():
        columns = [
            F.udf(lambda _: NOON, "timestamp", useArrow=by_arrow)("id"),
            F.udf(lambda _: [NOON.replace(tzinfo=UTC)], "array<timestamp>", useArrow=by_arrow)("id")[0],
            F.udf(lambda _: (NOON,), "struct<at: timestamp>", useArrow=by_arrow)("id")["at"],
        ]
    (row,) = spark.range(1).select(*map(F.unix_seconds, columns)).collect()
    assert set(row) == {int(NOON.replace(tzinfo=UTC).timestamp())}


def test_the_users_own_queries_get_what_pyspark_gives(spark: SparkSession) -> None:
    half = F.udf(lambda n: n / 2, "int", useArrow=False)
    with frame_code():
        of_a_job = spark.range(1, 2).select(half("id"))
    assert spark.range(1, 2).select(half("id")).collect()[0][0] is None
    with pytest.raises(PythonException, match=r"a udf, <lambda>, declared int, and 0\.5"):
        of_a_job.collect()


# -- functions that SQL text names -------------------------------------------------------------------------------------


def test_a_function_that_is_registered_in_code_of_a_job_gives_its_declared_type(spark: SparkSession) -> None:
    session = EngineSession(spark)
    with frame_code():
        session.udf.register("half_of", lambda n: n / 2, "double")
        session.udf.register("halved", F.udf(lambda n: n / 2, "int", useArrow=False))
        session.udf.register("whole", lambda n: n, T.IntegerType())
        session.udf.register("as_text", lambda n: n)
        rows = session.range(1, 2)
        fitting = rows.selectExpr("half_of(id)", "whole(id)", "as_text(id)")
        others = [rows.selectExpr("halved(id)"), session.sql("SELECT halved(id) FROM range(1, 2)")]
    assert tuple(fitting.collect()[0]) == (0.5, 1, "1")
    for frame in others:
        with pytest.raises(PythonException, match=r"a udf, <lambda>, declared int, and 0\.5"):
            frame.collect()
    session.udf.register("half_of", lambda n: n / 2, "int")  # the user's own
    assert session.range(1, 2).selectExpr("half_of(id)").collect()[0][0] is None


@pytest.mark.parametrize("by_arrow", [False, True])
def test_a_function_that_the_user_registered_gives_its_declared_type_in_code_of_a_job(
    spark: SparkSession, by_arrow: bool
) -> None:
    spark.udf.register("half_elsewhere", F.udf(lambda n: n / 2, "int", useArrow=by_arrow))
    spark.udf.register("twice", F.udf(lambda n, times=2: n * times, "bigint", useArrow=by_arrow))
    try:
        session = EngineSession(spark)
        rows = session.range(4, 5).selectExpr(
            "half_elsewhere(id) AS half", "twice(id)", "twice(id, times => 3)"
        )
        with pytest.raises(PythonException, match=r"a udf, <lambda>, declared int, and 2\.0"):
            rows.collect()
        assert tuple(rows.drop("half").collect()[0]) == (8, 12)
        assert spark.range(4, 5).selectExpr("twice(id)").collect()[0][0] == 8
        assert by_arrow or spark.range(5, 6).selectExpr("half_elsewhere(id)").collect()[0][0] is None
    finally:
        for name in ("half_elsewhere", "twice"):
            spark.sql(f"DROP TEMPORARY FUNCTION {name}")


# -- rows of createDataFrame -------------------------------------------------------------------------------------------

ROWS: list[tuple[str, Any, Any]] = [
    ("v int", (5,), 5), ("v double", (1,), 1.0), ("v double", [1], 1.0), ("v double", {"v": 1}, 1.0),
    ("v double", {}, None), ("v double", SparkRow(v=1), 1.0), ("v decimal(4,2)", (Decimal("1.5"),), Decimal("1.50")),
    ("v timestamp", (NOON,), NOON.replace(tzinfo=UTC).timestamp()), ("v timestamp_ntz", (NOON,), NOON),
    ("v array<timestamp>", ([NOON],), NOON.replace(tzinfo=UTC).timestamp()), ("v string", (None,), None),
]  # fmt: skip
OTHER_ROWS: list[tuple[str, Any]] = [
    ("v decimal(4,2)", (Decimal("1.005"),)), ("v decimal(4,2)", (Decimal("12345.1"),)), ("v float", (0.123456789012,)),
    ("v string", (NOON,)), ("v string", (b"x",)), ("v int", (2.5,)), ("v int", (10**12,)), ("v double", (2**53 + 1,)),
    ("v int", (1, 2)), ("v int", {"v": 1, "w": 2}),
]  # fmt: skip


@pytest.mark.parametrize("by", ["a list", "an RDD", "toDF"])
@pytest.mark.parametrize("whose", ["the engine's", "the user's"])
def test_rows_of_code_of_a_job_are_of_their_declared_type(spark: SparkSession, by: str, whose: str) -> None:
    session = EngineSession(spark) if whose == "the engine's" else spark

    def made(row: Any, declared: str) -> Any:
        rows: Any = [row] if by == "a list" else session.sparkContext.parallelize([row], 1)
        return rows.toDF(schema=declared) if by == "toDF" else session.createDataFrame(rows, declared)

    for declared, row, expected in ROWS:
        with frame_code():
            frame = made(row, declared)
            if "array" in declared:
                frame = frame.select(F.col("v")[0].alias("v"))
            if declared.startswith(("v timestamp", "v array")) and "ntz" not in declared:
                frame = frame.select(F.unix_seconds("v").alias("v"))
        assert frame.collect()[0][0] == expected, (declared, row)


@pytest.mark.parametrize("by", ["a list", "an RDD"])
@pytest.mark.parametrize(("declared", "row"), OTHER_ROWS, ids=str)
def test_rows_of_another_type_are_refused(spark: SparkSession, declared: str, row: Any, by: str) -> None:
    rows = [row] if by == "a list" else spark.sparkContext.parallelize([row], 1)
    with pytest.raises(
        (ValueTypeError, PythonException, Py4JJavaError), match="createDataFrame with rows declared struct<v:"
    ):
        collected(spark, rows, declared)


def collected(spark: SparkSession, rows: Any, declared: str) -> Any:
    with frame_code():
        frame = spark.createDataFrame(rows, declared)
    return frame.collect()
