"""What becomes of entries of keyed state, as DataFrames: added, changed, deleted or the same. Builds expressions only.

Every row says what it was and is (``kind``), whether it counts for that (``counts``), and what is to be written of it
(``op``: put, delete, clear, append; null for nothing), in the columns of a changelog.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from state_engine.core.state.descriptors import TIMERS
from state_engine.core.state.state_table import APPEND, CLEAR, DELETE, PUT
from state_engine.queries.state_rows import KEY, KEY_HASH, OP, STATE, UPDATED_AT, WHY, StateForm

KIND, COUNTS = "kind", "counts"
SAME, ADDED, CHANGED, DELETED = "same", "added", "changed", "deleted"
_GONE, _ENTRY = "_gone", "_entry"


def taken_away(entries: DataFrame, forms: Sequence[StateForm], gone: Column) -> DataFrame:
    """Entries of which some are deleted."""
    gone = F.coalesce(gone, F.lit(False))
    lists = [f.name for f in forms if f.shape == "list"]
    deletion = (
        F.when(F.col(STATE).isin(lists), F.lit(CLEAR)).otherwise(F.lit(DELETE)) if lists else F.lit(DELETE)
    )
    columns = []
    for form in forms:
        name = form.column_name
        kind = entries.schema[name].dataType
        value = _entry_of(F.col(name)["key"], kind) if form.shape == "map" else F.lit(None).cast(kind)
        columns.append(F.when(gone & (F.col(STATE) == form.name), value).alias(name))
    return entries.select(
        KEY, KEY_HASH, STATE,
        F.when(gone, F.lit(DELETED)).otherwise(F.lit(SAME)).alias(KIND),
        F.lit(True).alias(COUNTS),
        F.lit(None).cast("string").alias(WHY),
        F.when(gone, deletion).alias(OP),
        F.lit(None).cast("timestamp").alias(UPDATED_AT),
        *columns,
    )  # fmt: skip


def difference(old: DataFrame, new: DataFrame, form: StateForm) -> DataFrame:
    """What must be written so that one state is the new one."""
    name = form.column_name
    kind = old.schema[name].dataType
    both = [KEY, KEY_HASH, *([_ENTRY] if form.shape == "map" else [])]
    parts = []
    for frame, why, is_new in ((old, F.lit(None).cast("string"), False), (new, F.col(WHY), True)):
        entry = [F.col(name)["key"].alias(_ENTRY)] if form.shape == "map" else []
        item = F.struct(F.col(UPDATED_AT).alias("at"), F.col(name).cast(kind).alias("v"))
        if form.shape == "list":  # an empty list is none
            item = F.when(F.size(name) > 0, item)
        none = F.lit(None).cast(StructType().add("at", "timestamp").add("v", kind))
        sides = (none.alias("old"), item.alias("new")) if is_new else (item.alias("old"), none.alias("new"))
        counted = F.lit(int(is_new)).alias("new_rows")
        parts.append(frame.select(KEY, KEY_HASH, *entry, *sides, counted, why.alias(WHY)))
    grouped = parts[0].unionByName(parts[1]).groupBy(*both).agg(
        F.first("old", ignorenulls=True).alias("old"),
        F.first("new", ignorenulls=True).alias("new"),
        F.sum("new_rows").alias("new_rows"),
        F.max(WHY).alias(WHY),
    )  # fmt: skip
    same = _comparable(F.col("old"), grouped.schema["old"].dataType).eqNullSafe(
        _comparable(F.col("new"), grouped.schema["new"].dataType)
    )
    change_kind = (
        F.when(F.col("new").isNull() & F.col("old").isNull(), F.lit(None))
        .when(F.col("old").isNull(), F.lit(ADDED))
        .when(F.col("new").isNull(), F.lit(DELETED))
        .when(same, F.lit(SAME))
        .otherwise(F.lit(CHANGED))
    )
    put, away = (APPEND, CLEAR) if form.shape == "list" else (PUT, DELETE)
    change = [CLEAR, APPEND] if form.shape == "list" else [PUT]
    ops = (
        F.when(F.col(KIND) == ADDED, F.array(F.lit(put)))
        .when(F.col(KIND) == DELETED, F.array(F.lit(away)))
        .when(F.col(KIND) == CHANGED, F.array(*map(F.lit, change)))
    )
    twice = F.when(
        F.col("new_rows") > 1, F.concat(F.col("new_rows").cast("string"), F.lit(" rows are given"))
    )
    rows = grouped.withColumn(KIND, change_kind).select("*", F.posexplode_outer(ops).alias("_at", OP))
    written = F.col(OP).isin(PUT, APPEND)
    value = F.when(written, F.col("new")["v"])
    if form.shape == "map":
        value = value.when(F.col(OP) == DELETE, _entry_of(F.col(_ENTRY), kind))
    return rows.select(
        KEY, KEY_HASH, F.lit(form.name).alias(STATE), KIND,
        (F.col(KIND).isNotNull() & (F.coalesce("_at", F.lit(0)) == 0)).alias(COUNTS),
        F.coalesce(F.col(WHY), twice).alias(WHY),
        OP,
        F.when(written, F.col("new")["at"]).alias(UPDATED_AT),
        value.alias(name),
    )  # fmt: skip


def keys_without_state(changes: DataFrame, others: DataFrame | None) -> DataFrame:
    """Keys of which something was deleted and nothing is left, timers aside."""
    real = changes.where((F.col(STATE) != TIMERS) & F.col(KIND).isNotNull())
    sides = real.select(KEY, KEY_HASH, (F.col(KIND) != DELETED).alias("_left"))
    if others is not None:
        sides = sides.unionByName(
            others.where(F.col(STATE) != TIMERS).select(KEY, KEY_HASH, F.lit(True).alias("_left"))
        )
    had = real.where(F.col(KIND) == DELETED).select(KEY, KEY_HASH).distinct()
    left = sides.where("_left").select(KEY, KEY_HASH).distinct()
    return had.join(left, [KEY_HASH, KEY], "left_anti")


def marked(entries: DataFrame, keys: DataFrame) -> tuple[DataFrame, Column]:
    right = keys.select(F.col(KEY).alias("_key"), F.col(KEY_HASH).alias("_hash"), F.lit(True).alias(_GONE))
    same = (F.col(KEY_HASH) == F.col("_hash")) & F.col(KEY).eqNullSafe(F.col("_key"))
    return entries.join(F.broadcast(right), same, "left").drop("_key", "_hash"), F.col(_GONE)


def _entry_of(map_key: Column, kind: DataType) -> Column:
    assert isinstance(kind, StructType)
    return F.struct(map_key.alias("key"), F.lit(None).cast(kind["value"].dataType).alias("value"))


def _comparable(column: Column, kind: DataType) -> Column:
    """A column that Spark compares: maps as lists of their entries."""
    if isinstance(kind, StructType):
        parts = [_comparable(column.getField(f.name), f.dataType).alias(f.name) for f in kind.fields]
        return F.when(column.isNotNull(), F.struct(*parts))
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return F.transform(column, lambda x: _comparable(x, element)) if _has_map(element) else column
    if isinstance(kind, MapType):
        entries = StructType().add("key", kind.keyType).add("value", kind.valueType)
        return _comparable(F.map_entries(column), ArrayType(entries))
    return column


def _has_map(kind: DataType) -> bool:
    return '"map"' in kind.json()
