"""``stored_entries``: all that is stored of an operator's keyed state as of a checkpoint, as a DataFrame.

Unlike ``read_state`` it hides nothing: entries that have expired, every element's time, timers. Tasks fold disjoint key
groups as a compaction does; nothing is shuffled. For operations that change state; people read ``read_state``.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint
from state_engine.core.errors import ConfigurationError, InvalidKeyError
from state_engine.core.keys.key_arrays import canonical_array, hash_columns, key_refusals
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.ddl import parse_ddl, quoted
from state_engine.core.types.durations import Instant
from state_engine.core.types.spark_types import spark_schema
from state_engine.core.types.type_parsing import arrow_type, to_type
from state_engine.core.types.type_text import type_from_text
from state_engine.queries.state_rows import (
    KEY,
    KEY_HASH,
    MAP_KEY,
    STATE,
    UPDATED_AT,
    VALUE,
    StateForm,
)
from state_engine.queries.stored_columns import renamed, spark_data_type, times_stored
from state_engine.spark.engine_session import taken_in
from state_engine.spark.key_columns import canonical_column, key_hash_column, key_refusal_column
from state_engine.storage.layout import JobLayout, changelog_schema
from state_engine.storage.state.base import BaseSpec, read_entries
from state_engine.storage.state.listed_files import KeyGroups, ListedFile, check_files
from state_engine.storage.state.located_files import state_files

_ROWS_AT_ONCE = 300_000
"""Rows that a task folds at a time, about."""


@dataclass(frozen=True)
class _Chunk:
    groups: KeyGroups
    files: list[ListedFile]


def entry_schema(operator: OperatorCheckpoint) -> pa.Schema:
    """Columns of an operator's stored entries: hash, key, state, time, and one a state, by its name in storage."""
    types = {s.column_name: type_from_text(s.type).storage for s in operator.states}
    full = changelog_schema(parse_ddl(operator.key_schema).arrow, types)
    return pa.schema([f for f in full if f.name not in ("key_group", "op")])


def stored_entries(
    spark: SparkSession,
    layout: JobLayout,
    path: Sequence[CheckpointRow],
    uid: str,
    *,
    states: Collection[str] | None = None,
    key_groups: Collection[int] | None = None,
) -> DataFrame:
    """The entries of an operator at the end of a path; of lists one row a key, of maps one row an entry."""
    operator = path[-1].operator(uid)
    assert operator is not None
    schema = entry_schema(operator)
    files = state_files(layout, path, uid)
    check_files([f.listed for f in files])
    groups = sorted(range(operator.max_parallelism) if key_groups is None else key_groups)
    rows = sum(f.listed.rows for f in files)
    wanted = max(spark.sparkContext.defaultParallelism, -(-rows // _ROWS_AT_ONCE))
    chunks = []
    size = max(1, -(-len(groups) // wanted))
    for part in (groups[i : i + size] for i in range(0, len(groups), size)):
        ranges = tuple(KeyGroupRange(g, g) for g in part)
        inside = [f.listed for f in files if any(f.key_group_min <= g <= f.key_group_max for g in part)]
        if inside:
            chunks.append(_Chunk(KeyGroups(operator.max_parallelism, ranges), inside))
    structure = StructType.fromJson(spark_schema(schema))
    if not chunks:
        return spark.createDataFrame([], structure)
    chosen = [s for s in operator.states if states is None or s.name in states]
    key_type, groups_of = parse_ddl(operator.key_schema).arrow, operator.max_parallelism
    spec = BaseSpec(key_type, tuple(chosen), groups_of)
    numbers = spark.range(0, len(chunks), 1, min(len(chunks), spark.sparkContext.defaultParallelism))
    return numbers.mapInArrow(_reader(spec, schema, chunks), structure)


def _reader(
    spec: BaseSpec, schema: pa.Schema, chunks: Sequence[_Chunk]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (n for batch in batches for n in batch.column(0).to_pylist()):
            for table in read_entries(spec, chunks[number].files, chunks[number].groups):
                have = set(table.schema.names)
                arrays = [
                    table[f.name] if f.name in have else pa.nulls(table.num_rows, f.type) for f in schema
                ]
                yield from pa.Table.from_arrays(arrays, schema=schema).combine_chunks().to_batches(100_000)

    return run


def state_view(entries: DataFrame, form: StateForm, key: KeySchema) -> DataFrame:
    """One state as users see it: key columns as stored, ``map_key``, ``value``, and with a time to live ``updated_at``.

    ``updated_at`` of a list is a list, too: one time an element. Fields are called as they are declared.
    """
    column = F.col(form.column_name)
    stored, shown = form.value.storage, form.shown
    made = [F.col(KEY).getField(c).alias(n) for c, n in zip(key.columns, key.names, strict=True)]
    stamp = F.col(UPDATED_AT)
    if form.shape == "map":
        made += [column["key"].alias(MAP_KEY), renamed(column["value"], stored, shown).alias(VALUE)]
    elif form.shape == "list":
        values = F.transform(column, lambda x: x["value"])
        made.append(renamed(values, pa.list_(stored), pa.list_(shown)).alias(VALUE))
        stamp = F.transform(column, lambda x: x["updated_at"])
    else:
        made.append(renamed(column, stored, shown).alias(VALUE))
    if form.schema.ttl:
        made.append(stamp.alias(UPDATED_AT))
    return entries.where(F.col(STATE) == form.name).select(*made)


def operator_of(row: CheckpointRow, uid: str, *, job: str) -> OperatorCheckpoint:
    """An operator's keyed state as of a checkpoint. Raises ConfigurationError where there is none."""
    operator = row.operator(uid)
    if operator is None:
        known = [o.uid for o in row.operators]
        raise ConfigurationError(f"job '{job}': there is no keyed state of '{uid}'; there is of {known}")
    return operator


def key_schema(operator: OperatorCheckpoint) -> KeySchema:
    """Names and types of an operator's key: as declared, or where that is not known as stored."""
    return KeySchema.recorded(operator.key_schema, operator.key_type)


def keys_frame(
    spark: SparkSession, keys: DataFrame | Iterable[Any], schema: KeySchema, *, what: str
) -> DataFrame:
    """Keys as they are stored, with their hashes, each once.

    Args:
        keys: a DataFrame with the key columns, or keys: as functions see them, or dicts by column.
    """
    types = [spark_data_type(t) for t in schema.types]
    if not isinstance(keys, DataFrame):
        keys = spark.createDataFrame(key_table(keys, schema, what=what))
    keys = times_stored(taken_in(keys, spark), schema.times, what=what)
    missing = sorted(set(schema.names) - set(keys.columns))
    if missing:
        raise ConfigurationError(
            f"{what}: its key has the columns {list(schema.names)}; {missing} are missing"
        )
    typed = keys.select(
        *[F.col(quoted(n)).cast(t).alias(n) for n, t in zip(schema.names, types, strict=True)]
    )
    pairs: list[tuple[Column, Any]] = [
        (F.col(quoted(n)), t) for n, t in zip(schema.names, types, strict=True)
    ]
    bad = typed.where(key_refusal_column(pairs).isNotNull()).limit(1).collect()
    if bad:
        raise InvalidKeyError(
            f"{what}: {bad[0].asDict()} cannot be a key, or not one of type {schema.declared_text}"
        )
    canonical = [canonical_column(c, t).alias(n) for n, (c, t) in zip(schema.columns, pairs, strict=True)]
    return typed.select(F.struct(*canonical).alias(KEY), key_hash_column(pairs).alias(KEY_HASH)).distinct()


def stored_key(key: Any, schema: KeySchema, *, what: str) -> tuple[Any, int]:
    """A key as functions have it inside of the engine, and its hash; without Spark, else as ``keys_frame``."""
    given = key_table([key], schema, what=what)
    try:
        columns = [
            _column(one_chunk(given[name]), kind)
            for name, kind in zip(schema.names, schema.types, strict=True)
        ]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise InvalidKeyError(f"{what}: {key!r} cannot be of type {schema.declared_text}: {error}") from None
    if any(why is not None for why in key_refusals(schema.names, columns).to_pylist()):
        raise InvalidKeyError(f"{what}: {key!r} cannot be a key, or not one of type {schema.declared_text}")
    canonical = [canonical_array(column) for column in columns]
    return schema.decode(canonical)[0], int(hash_columns(canonical)[0])


def _column(given: pa.Array, kind: pa.DataType) -> pa.Array:
    """A part of a key in its type; times also as ISO 8601 text."""
    if pa.types.is_timestamp(kind) and pa.types.is_string(given.type):
        at = datetime.fromisoformat(given[0].as_py())
        if kind.tz is None and at.tzinfo is not None:
            at = at.astimezone(UTC).replace(tzinfo=None)
        given = pa.array([at.replace(tzinfo=at.tzinfo or UTC) if kind.tz is not None else at])
    return given.cast(kind)


def key_table(keys: Iterable[Any], schema: KeySchema, *, what: str) -> pa.Table:
    """Keys as a user gives them, as columns: as functions see them; bytes also in base64, as commands print them."""
    rows = [_fields(key, schema, what) for key in keys]
    parts = list(zip(*rows, strict=True)) or [()] * len(schema.names)
    columns = [
        [_bytes(part, f"{what}: the column '{name}' of its key") for part in given]
        if pa.types.is_binary(kind)
        else [_stored(_of_text(part, kind)) for part in given]
        for name, kind, given in zip(schema.names, schema.types, parts, strict=True)
    ]
    try:
        return pa.table([pa.array(column) for column in columns], list(schema.names))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise InvalidKeyError(
            f"{what}: the keys that are given cannot be of type {schema.declared_text}: {error}"
        ) from None


def _bytes(given: Any, what: str) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return b64decode(given, validate=True)
    except ValueError:
        raise ConfigurationError(
            f"{what} holds bytes, and given is {given!r}: give bytes, or base64 as commands print them"
        ) from None


def _of_text(value: Any, kind: pa.DataType) -> Any:
    """A time of day that is given as text: the only text with a colon that a column of numbers can take."""
    if isinstance(value, str) and ":" in value and pa.types.is_integer(kind):
        with suppress(ValueError):
            return time.fromisoformat(value)
    return value


def _stored(value: Any) -> Any:
    """A part of a key as storage has it, where a declared type has a class that storage does not have."""
    if isinstance(value, time | Instant):
        kind = to_type(type(value), parameter="key")
        return arrow_type(kind.arrow).from_arrow(kind.to_arrow([value], storage=False))[0]
    if type(value) is int and value.bit_length() > 63:
        return Decimal(value)
    if (record := _as_dict(value)) is not None:
        return {name: _stored(part) for name, part in record.items()}
    return value


def _as_dict(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass or a NamedTuple; None of anything else."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    return None


def _fields(key: Any, schema: KeySchema, what: str) -> tuple[Any, ...]:
    record = _as_dict(key)
    if record is not None and set(record) == set(schema.names):
        key = record
    elif record is not None and len(schema.names) == 1:
        return (key,)
    if isinstance(key, dict):
        if set(key) != set(schema.names):
            raise ConfigurationError(f"{what}: its key has the columns {list(schema.names)}, given is {key}")
        return tuple(key[n] for n in schema.names)
    fields = tuple(key) if isinstance(key, tuple | list) else (key,)
    if len(fields) != len(schema.names):
        raise ConfigurationError(f"{what}: its key has the columns {list(schema.names)}, given is {key!r}")
    return fields


def form_of(operator: OperatorCheckpoint, state: str, *, what: str) -> StateForm:
    """The form of one state. Raises ConfigurationError where there is none of this name."""
    schema: StateSchema | None = next((s for s in operator.states if s.name == state), None)
    if schema is None or state == TIMERS:
        known = [s.name for s in operator.states if s.name != TIMERS]
        raise ConfigurationError(f"{what}: there is no state '{state}'; there are {known}")
    return StateForm.of(schema)
