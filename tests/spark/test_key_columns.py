"""Spark's key columns and the pure functions agree on every key, whatever its type and the session's settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from state_engine.core.errors import InvalidKeyError
from state_engine.core.keys.canonical import canonical_key, decode_keys, key_hash, storage_type
from state_engine.core.keys.key_arrays import hash_columns
from state_engine.core.keys.key_groups import key_group_of_hash, subtask_for_key_group
from state_engine.spark.key_columns import (
    canonical_column,
    canonical_type,
    key_group_column,
    key_hash_column,
    key_refusal_column,
    subtask_column,
)
from tests.support.key_samples import COMPOSITES, KINDS, arrow_column, encode_keys, random_keys

pytestmark = pytest.mark.spark

ROWS = 6_500
MAX_PARALLELISM, PARALLELISM = 1000, 7  # no powers of two, which would hide a wrong modulo
SESSIONS = [
    {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "UTC"},
    {"spark.sql.ansi.enabled": "false", "spark.sql.session.timeZone": "America/New_York"},
]


@contextmanager
def settings(spark: SparkSession, wanted: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) or "" for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def kind_of(name: str) -> str:
    return name.removeprefix("part_")


def routed(frame: DataFrame) -> pa.Table:
    """For every key its hash, group and subtask, and for the single ones the canonical column too; one Spark job."""
    types = {field.name: field.dataType for field in frame.schema.fields}
    keys = {kind: [kind] for kind in KINDS} | {
        "+".join(columns): [f"part_{kind}" for kind in columns] for columns in COMPOSITES
    }
    hashes = {
        name: key_hash_column([(F.col(column), types[column]) for column in columns])
        for name, columns in keys.items()
    }
    groups = {name: key_group_column(hashed, MAX_PARALLELISM) for name, hashed in hashes.items()}
    return frame.select(
        *[hashed.alias(f"hash {name}") for name, hashed in hashes.items()],
        *[group.alias(f"group {name}") for name, group in groups.items()],
        *[
            subtask_column(g, MAX_PARALLELISM, PARALLELISM).alias(f"subtask {name}")
            for name, g in groups.items()
        ],
        *[canonical_column(F.col(kind), types[kind]).alias(f"key {kind}") for kind in KINDS],
        *[F.xxhash64(F.col(kind)).alias(f"order {kind}") for kind in KINDS],
    ).toArrow()


@pytest.mark.parametrize(
    "session", [SESSIONS[0], pytest.param(SESSIONS[1], marks=pytest.mark.long)], ids=["ansi", "legacy"]
)
def test_core_and_catalyst_agree_on_every_key(spark: SparkSession, session: dict[str, str]) -> None:
    columns = random_keys(seed=len(session["spark.sql.session.timeZone"]), rows=ROWS)
    table = pa.table(
        {name: arrow_column(values, KINDS[kind_of(name)][0]) for name, values in columns.items()}
    )
    with settings(spark, session):
        schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
        assert schema["timestamp_ntz"].dataType == T.TimestampNTZType()
        result = routed(spark.createDataFrame(table, schema))
    assert result.num_rows == ROWS

    keys: dict[str, list[Any]] = {kind: columns[kind] for kind in KINDS}
    for parts in COMPOSITES:
        keys["+".join(parts)] = list(zip(*[columns[f"part_{kind}"] for kind in parts], strict=True))
    assert sum(map(len, keys.values())) >= 100_000
    for name, of_kind in keys.items():
        hashes = [key_hash(key) for key in of_kind]
        groups = [key_group_of_hash(hashed, MAX_PARALLELISM) for hashed in hashes]
        subtasks = [subtask_for_key_group(MAX_PARALLELISM, PARALLELISM, group) for group in groups]
        assert result[f"hash {name}"].to_pylist() == hashes, name
        assert result[f"group {name}"].to_pylist() == groups, name
        assert result[f"subtask {name}"].to_pylist() == subtasks, name
    for kind, (declared, _) in KINDS.items():
        stored = result[f"key {kind}"].combine_chunks().cast(storage_type(declared))
        expected = encode_keys([canonical_key(key) for key in columns[kind]], declared)
        assert stored.equals(expected), kind
        assert repr(stored.to_pylist()) == repr(expected.to_pylist()), kind  # for Arrow -0.0 equals 0.0
        assert decode_keys(stored, declared) == columns[kind], kind
        order = hash_columns([arrow_column(columns[kind], declared)])
        assert result[f"order {kind}"].to_pylist() == order.tolist(), kind  # of rows without a key


def test_every_key_group_has_the_subtask_that_core_gives_it(spark: SparkSession) -> None:
    layouts = [
        (128, 3),
        (128, 5),
        (13, 4),
        (1, 1),
        (32768, 32768),
        (32768, 1),
        (32767, 32766),
        (32768, 30011),
    ]
    columns = [
        F.when(F.col("id") < m, subtask_column(F.col("id").cast("int"), m, p)).alias(f"{m}/{p}")
        for m, p in layouts
    ]
    result = spark.range(32768).select(*columns).toArrow()
    for m, p in layouts:
        expected = [subtask_for_key_group(m, p, group) for group in range(m)]
        assert result[f"{m}/{p}"].to_pylist()[:m] == expected
        assert result.schema.field(f"{m}/{p}").type == pa.int32()


def test_collations_and_widths_do_not_move_a_key(spark: SparkSession) -> None:
    row = spark.sql(
        "select 'Ab' a, cast('Ab' as string collate UTF8_LCASE) b, 7Y c, 7L d, 1.5BD e, 1.50000BD f"
    )
    types = {field.name: field.dataType for field in row.schema.fields}
    canonical = row.select(*[canonical_column(F.col(name), types[name]).alias(name) for name in types])
    assert [field.dataType for field in canonical.schema.fields] == [
        T.StringType(), T.StringType(), T.LongType(), T.LongType(), T.StringType(), T.StringType(),
    ]  # fmt: skip
    hashes = row.select(
        *[key_hash_column([(F.col(name), types[name])]).alias(name) for name in types]
    ).collect()[0]
    assert hashes.a == hashes.b == key_hash("Ab")
    assert hashes.c == hashes.d == key_hash(7)
    assert hashes.e == hashes.f == key_hash(Decimal("1.5"))


def test_columns_that_are_canonical_already_are_left_alone(spark: SparkSession) -> None:
    column = F.col("k")
    kept: list[T.DataType] = [
        T.LongType(),
        T.StringType(),
        T.BinaryType(),
        T.TimestampType(),
        T.TimestampNTZType(),
    ]
    kept.append(T.StructType([T.StructField(f"f{i}", kind, i > 1) for i, kind in enumerate(kept)]))
    for data_type in kept:
        assert canonical_column(column, data_type) is column
    changed = [
        T.IntegerType(),
        T.DoubleType(),
        T.FloatType(),
        T.DateType(),
        T.BooleanType(),
        T.DecimalType(38, 0),
    ]
    changed += [T.StringType("UTF8_LCASE"), T.VarcharType(5), T.CharType(5)]
    in_structs = [T.StructType([T.StructField("a", kind)]) for kind in changed]
    for data_type in [*changed, *in_structs]:
        assert canonical_column(column, data_type) is not column


NO_KEYS = [
    T.ArrayType(T.LongType()),
    T.MapType(T.StringType(), T.LongType()),
    T.NullType(),
    T.DayTimeIntervalType(),
    T.VariantType(),
    T.TimeType(),
    T.StructType([]),
]


@pytest.mark.parametrize("data_type", NO_KEYS, ids=[kind.simpleString() for kind in NO_KEYS])
def test_types_that_cannot_be_keys_are_refused_by_name(spark: SparkSession, data_type: T.DataType) -> None:
    nested = T.StructType([T.StructField("ok", T.DoubleType()), T.StructField("part", data_type)])
    with pytest.raises(InvalidKeyError, match=r"'tail num' has the type"):
        canonical_column(F.col("`tail num`"), data_type)
    with pytest.raises(InvalidKeyError, match=r"'route\.part' has the type"):
        key_hash_column([(F.col("id"), T.LongType()), (F.col("route"), nested)])
    with pytest.raises(InvalidKeyError, match="cannot be a key"):
        canonical_type(nested)


def test_bad_arguments_are_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidKeyError, match="at least one column"):
        key_hash_column([])
    with pytest.raises(InvalidKeyError, match="at least one column"):
        key_refusal_column([])
    with pytest.raises(ValueError, match="max_parallelism must be"):
        key_group_column(F.col("h"), 32769)
    with pytest.raises(ValueError, match="parallelism 5 is greater"):
        subtask_column(F.col("g"), 4, 5)


def test_null_and_nan_keys_are_found(spark: SparkSession) -> None:
    schema = "id bigint, x double, s struct<a: struct<y: float>, b: string>"
    nan = float("nan")
    rows = [(1, 1.0, ((1.0,), "b")), (None, None, None), (2, nan, ((nan,), None)), (3, 0.0, (None, None))]
    frame = spark.createDataFrame(rows, schema)
    types = {field.name: field.dataType for field in frame.schema.fields}
    keys = [["id"], ["x"], ["s"], ["id", "x"], ["id", "s"]]
    columns = frame.coalesce(1).select(
        *[
            key_refusal_column([(F.col(name), types[name]) for name in key]).alias("+".join(key))
            for key in keys
        ]
    )
    expected = {
        "id": [None, "the key 'id' is null", None, None],
        "x": [None, "the key 'x' is null", "the key 'x' is NaN", None],
        "s": [None, "the key 's' is null", "the key 's['a']['y']' is NaN", None],
        "id+x": [None, None, "the key 'x' is NaN", None],
        "id+s": [None, None, "the key 's['a']['y']' is NaN", None],
    }
    assert columns.toArrow().to_pydict() == expected
    for name, refusals in expected.items():
        for row, refusal in zip(rows, refusals, strict=True):
            values = [row[["id", "x", "s"].index(part)] for part in name.split("+")]
            key = values[0] if len(values) == 1 else tuple(values)
            if refusal is None:
                canonical_key(key)
            else:
                with pytest.raises(InvalidKeyError):
                    canonical_key(key)
