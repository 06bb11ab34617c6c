"""``StateForm`` and ``state_rows``: a user's DataFrame as rows of one keyed state, checked against its declaration.

What the columns are: those of the key, ``map_key`` for maps, ``value`` (or the fields of a record as columns of their
own), ``updated_at`` where the state has a time to live, ``position`` where the order of elements or entries is given.
Types must be those that were declared, in any width; nothing is rounded, cut or parsed on the way. Only builds
expressions. Plays the part of the ``KeyedStateBootstrapFunction`` of Flink's State Processor API.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, IntegralType, StructField, StructType, TimestampType

from state_engine.core.errors import ConfigurationError, InvalidKeyError
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.state.descriptors import SHAPES
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.state.ttl import Lifetime
from state_engine.core.types.ddl import quoted
from state_engine.core.types.every_type import ListType, TypeInformation
from state_engine.core.types.every_type import StructType as Record
from state_engine.core.types.type_parsing import to_type
from state_engine.core.types.type_text import shown_storage, type_from_text
from state_engine.queries.stored_columns import as_stored, renamed
from state_engine.spark.key_columns import (
    canonical_column,
    canonical_type,
    key_hash_column,
    key_refusal_column,
)
from state_engine.storage.layout import state_column

MAP_KEY, VALUE, UPDATED_AT, POSITION = "map_key", "value", "updated_at", "position"
KEY, KEY_HASH, STATE, OP, WHY, PLACE, WHOLE = "key", "key_hash", "state", "op", "why", "place", "whole"
"""Columns of the rows: why one is refused, its place among those of its key, whether it is all of a list."""

_STAMP = "_statelake_updated_at"


@dataclass(frozen=True)
class StateForm:
    """What one state stores.

    Attributes:
        value: type of a value, list element or map value.
    """

    schema: StateSchema
    column: TypeInformation
    value: TypeInformation
    map_key: TypeInformation | None

    @classmethod
    def of(cls, schema: StateSchema) -> StateForm:
        column = type_from_text(schema.type)
        if SHAPES[schema.kind] == "value":
            return cls(schema, column, column, None)
        if SHAPES[schema.kind] == "list":
            return cls(schema, column, cast(Record, cast(ListType, column).element).types[0], None)
        map_key, value = cast(Record, column).types
        return cls(schema, column, value, map_key)

    @property
    def shape(self) -> str:
        return SHAPES[self.schema.kind]

    @property
    def name(self) -> str:
        """What its rows bear in the column of states: the name that it was stored under first."""
        return self.schema.column_name

    @property
    def column_name(self) -> str:
        return state_column(self.schema.column_name)

    @property
    def shown(self) -> pa.DataType:
        """Stored type of a value, its fields called as they are declared: as users read and give it."""
        column = shown_storage(self.schema.type)
        if self.shape == "value":
            return column
        return (column.value_type if self.shape == "list" else column).field("value").type

    @property
    def event_time(self) -> bool:
        life = Lifetime.recorded(self.schema.ttl)
        return life is not None and life.by_event_time


def key_schema_of(frame: DataFrame, names: Sequence[str], *, what: str) -> KeySchema:
    fields = {f.name: f.dataType for f in frame.schema.fields}
    missing = [n for n in names if n not in fields]
    if missing:
        raise ConfigurationError(
            f"{what}: the DataFrame has no columns {missing} of the key; it has {list(fields)}"
        )
    for name in names:
        try:
            canonical_type(fields[name], name)
        except InvalidKeyError as error:
            raise InvalidKeyError(f"{what}: {error}") from None
    return KeySchema(tuple(names), tuple(to_type(fields[n], parameter=f"key of {what}").arrow for n in names))


def state_rows(
    frame: DataFrame, form: StateForm, keys: Sequence[str], *, clock_ms: int, what: str
) -> DataFrame:
    """A frame as rows of a changelog: key, hash, state, time, value, and why a row cannot be taken.

    Args:
        clock_ms: when entries were last accessed, where the frame does not say so.
        what: names job, operator and state, for messages.
    """
    fields = {f.name: f.dataType for f in frame.schema.fields}
    given, taken = _value_column(fields, form, keys, what)
    known = {*keys, *taken, POSITION} | ({MAP_KEY} if form.map_key else set())
    known |= {UPDATED_AT} if form.schema.ttl else set()
    extra = [n for n in fields if n not in known]
    if extra:
        why = " (the state has no time to live)" if UPDATED_AT in extra else ""
        raise ConfigurationError(
            f"{what}: columns {extra} are not needed{why}; drop them, or name them as declared"
        )
    # a name of its own: inside a lambda, Spark would take ``updated_at`` for the column that is made here
    frame, stamp = frame.withColumn(_STAMP, _stamp(fields, form, clock_ms, what)), F.col(_STAMP)
    pairs = [(F.col(quoted(k)), fields[k]) for k in keys]
    refusals = [key_refusal_column(pairs)]
    column, whole = _stored(given, form, fields, stamp, refusals, what)
    place = F.col(POSITION).cast("bigint") if POSITION in fields else F.monotonically_increasing_id()
    canonical = [canonical_column(c, kind).alias(name) for name, (c, kind) in zip(keys, pairs, strict=True)]
    return frame.select(
        F.struct(*canonical).alias(KEY),
        key_hash_column(pairs).alias(KEY_HASH),
        F.lit(form.name).alias(STATE),
        F.lit(None).cast("string").alias(OP),
        (F.lit(None).cast("timestamp") if form.shape == "list" else stamp).alias(UPDATED_AT),
        F.coalesce(*refusals).alias(WHY),
        place.alias(PLACE),
        F.lit(whole).alias(WHOLE),
        column.alias(form.column_name),
    )


# -- pieces ------------------------------------------------------------------------------------------------------------


def _value_column(
    fields: dict[str, DataType], form: StateForm, keys: Sequence[str], what: str
) -> tuple[tuple[Column, DataType], set[str]]:
    if form.map_key is not None and MAP_KEY not in fields:
        raise ConfigurationError(
            f"{what} is a map: the DataFrame needs a column '{MAP_KEY}'; it has {list(fields)}"
        )
    if VALUE in fields and VALUE not in keys:
        return (F.col(VALUE), fields[VALUE]), {VALUE}
    record = form.shown
    if pa.types.is_struct(record) and set(record.names) <= set(fields) - set(keys):
        made = StructType([StructField(n, fields[n]) for n in record.names])
        return (F.struct(*[F.col(quoted(n)) for n in record.names]), made), set(record.names)
    fields_too = f" or the columns {record.names}" if pa.types.is_struct(record) else ""
    raise ConfigurationError(
        f"{what}: the DataFrame needs a column '{VALUE}'{fields_too}; it has {list(fields)}"
    )


def _stamp(fields: dict[str, DataType], form: StateForm, clock_ms: int, what: str) -> Column:
    if not form.schema.ttl:
        return F.lit(None).cast("timestamp")
    if UPDATED_AT not in fields:
        if form.event_time:
            raise ConfigurationError(
                f"{what} expires by event time: the DataFrame needs a column '{UPDATED_AT}'"
            )
        return F.timestamp_millis(F.lit(clock_ms))
    given = F.col(UPDATED_AT)
    if isinstance(fields[UPDATED_AT], IntegralType):
        given = F.timestamp_millis(given.cast("bigint"))
    elif form.shape == "list" and fields[UPDATED_AT] == ArrayType(TimestampType()):
        return given
    elif not isinstance(fields[UPDATED_AT], TimestampType):
        raise ConfigurationError(
            f"{what}: {UPDATED_AT} is {fields[UPDATED_AT].simpleString()}: give milliseconds as a bigint, or a "
            "timestamp"
        )
    return given


def _stored(
    given: tuple[Column, DataType],
    form: StateForm,
    fields: dict[str, DataType],
    stamp: Column,
    refusals: list[Column],
    what: str,
) -> tuple[Column, bool]:
    """The state's column, and whether a row is all that its key (or map key) has; adds reasons to refuse a row."""
    column, have = given
    want, name = form.shown, f"{what}: column '{VALUE}'"
    stored = form.value.storage  # the same, but for the names of renamed fields
    if form.schema.ttl and UPDATED_AT in fields:
        refusals.append(F.when(F.col(UPDATED_AT).isNull(), F.lit(f"'{UPDATED_AT}' is null")))
    if form.map_key is not None:
        map_key = as_stored(
            F.col(MAP_KEY),
            fields[MAP_KEY],
            form.map_key,
            form.map_key.storage,
            what=f"{what}: column '{MAP_KEY}'",
        )
        refusals.append(key_refusal_column([(F.col(MAP_KEY), fields[MAP_KEY])]))
        value = renamed(as_stored(column, have, form.value, want, what=name), want, stored)
        return F.struct(map_key.alias("key"), value.alias("value")), True
    refusals.append(F.when(column.isNull(), F.lit(f"'{VALUE}' is null")))
    if form.shape == "value":
        return renamed(as_stored(column, have, form.value, want, what=name), want, stored), True
    whole = _is_whole_list(have, want)
    if whole:
        refusals.append(F.when(F.exists(column, lambda x: x.isNull()), F.lit(f"'{VALUE}' holds a null")))
    else:
        column, have = F.array(column), ArrayType(have)
    elements = as_stored(column, have, ListType(form.value), pa.list_(want), what=name)
    elements = renamed(elements, pa.list_(want), pa.list_(stored))
    if whole and isinstance(fields.get(UPDATED_AT), ArrayType):
        refusals.append(
            F.when(F.size(VALUE) != F.size(UPDATED_AT), F.lit(f"one '{UPDATED_AT}' an element is needed"))
        )
        return F.zip_with(
            elements, stamp, lambda x, at: F.struct(x.alias("value"), at.alias("updated_at"))
        ), whole
    return F.transform(elements, lambda x: F.struct(x.alias("value"), stamp.alias("updated_at"))), whole


def _is_whole_list(have: DataType, element: pa.DataType) -> bool:
    """Whether a column holds whole lists, and not one element a row: decided by how deep it is nested."""
    depth = 0
    while isinstance(have, ArrayType):
        have, depth = have.elementType, depth + 1
    while pa.types.is_list(element):
        element, depth = element.value_type, depth - 1
    return depth > 0
