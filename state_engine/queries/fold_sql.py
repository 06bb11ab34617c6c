"""The fold of changes as SQL text, for queries of the engine and for views that any session of Spark can read.

The same fold as in the subtasks (``storage.state.changelog``): value: the last change of a key; map: the last change of
an entry after the key's last clear; list: what was appended after the last clear, in order. Reducing, aggregating and
folding states are values: what is stored is their accumulator. The text names nothing but columns of the files and
functions that come with Spark, and means the same whatever a session is set to. Decisions 0043 and 0077.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from state_engine.core.checkpoints.time_travel import METADATA, DeclaredState, Expiry
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.state.state_table import APPEND, CLEAR, PUT
from state_engine.core.types.column_forms import times_as_text
from state_engine.core.types.ddl import ddl_text, list_text, map_text, quoted, record_text
from state_engine.core.types.every_type import DictType, ListType, StructType, TimeType, TypeInformation
from state_engine.core.types.logical_types import DAY_US
from state_engine.core.types.type_text import type_from_text
from state_engine.core.types.walk import walked
from state_engine.storage.layout import state_column
from state_engine.storage.state.located_files import StateFile
from state_engine.storage.state.state_rows import op_of_entry

ORDER = "_statelake_order"
"""The column that says where a row stands in the fold: the order of its file."""
Alive = Callable[[str], str]


def state_sql(
    declared: DeclaredState,
    files: Sequence[StateFile],
    expiry: Expiry,
    *,
    source: str,
    metadata: bool = False,
    shown: pa.DataType | None = None,
) -> str:
    """A query for a state: key columns, ``map_key`` for maps, ``value``, and ``METADATA`` where that is wanted.

    Args:
        source: the rows of these files, as SQL names them, with ``ORDER``.
    """
    names = zip(declared.key_type, declared.key.shown, declared.key_names(metadata=metadata), strict=True)
    columns = [
        f"{_key_part(f'key.{quoted(f.name)}', f.type, kind)} AS {quoted(name)}" for f, kind, name in names
    ]
    columns += [*(["map_key"] if declared.shape == "map" else []), "value"]
    columns += _metadata(declared, expiry) if metadata else []
    folded = _FOLDS[declared.shape](_changes(declared, files, source, shown), _alive(expiry))
    return f"SELECT {', '.join(columns)} FROM ({folded})"


def _key_part(part: str, stored: pa.DataType, shown: pa.DataType) -> str:
    """A part of a key as readers see it; the twin of ``state_table.key_columns``.

    Example:
        >>> _key_part("key.`day`", pa.int64(), pa.date32())
        'date_from_unix_date(CAST(key.`day` AS INT))'
    """
    if stored == shown:
        return part
    if pa.types.is_string(shown):  # what is no text in storage is a time of day
        return _time_text(part)
    if pa.types.is_struct(shown):
        fields = (
            f"{_key_part(f'{part}.{quoted(f.name)}', s.type, f.type)} AS {quoted(f.name)}"
            for s, f in zip(stored, shown, strict=True)
        )
        return f"if({part} IS NULL, NULL, struct({', '.join(fields)}))"
    if pa.types.is_date(shown):
        return f"date_from_unix_date(CAST({part} AS INT))"
    return f"({part} = 1)" if pa.types.is_boolean(shown) else f"CAST({part} AS {ddl_text(shown)})"


def _changes(
    declared: DeclaredState, files: Sequence[StateFile], source: str, shown: pa.DataType | None
) -> str:
    """The rows of a state that count, in the form of changes; entries of bases come first."""
    column = quoted(state_column(declared.schema.column_name))
    want = shown or declared.shown_type
    stored = column if declared.column_type == want else f"CAST({column} AS {_type_text(want)})"
    stored = read_sql(stored, type_from_text(declared.schema.type), want)
    rows = (
        f"SELECT key_hash, key, updated_at, {stored} AS stored, coalesce(op, '{op_of_entry(declared.shape)}') AS op, "
        f"if(op IS NULL, 0, {ORDER}) AS place FROM {source} WHERE state = '{declared.schema.column_name}'"
    )
    partly = sorted({f.order for f in files if f.listed.counts is not None})
    if not partly:
        return rows
    conditions = (f"(place <> {at} OR {_counts([f for f in files if f.order == at])})" for at in partly)
    return f"SELECT * FROM ({rows}) WHERE {' AND '.join(conditions)}"


def read_sql(value: str, kind: TypeInformation, shown: pa.DataType, depth: int = 0) -> str:
    """A stored value as queries show it; the twin of ``column_forms``' ``with_defaults`` and ``times_as_text``.

    Args:
        shown: the type of the value, which has other names of fields than are stored.
    """
    part = f"e{depth}"
    if not (kind.completes or kind.has_times):
        return value
    if isinstance(kind, ListType):
        return f"transform({value}, {part} -> {read_sql(part, kind.element, shown.value_type, depth + 1)})"
    if isinstance(kind, DictType):
        item = read_sql(part, kind.value, shown.item_type, depth + 1)
        items = f"transform_values({value}, (k{depth}, {part}) -> {item})"
        if not kind.key.has_times:
            return items
        key = read_sql(f"k{depth}", kind.key, shown.key_type, depth + 1)
        return f"transform_keys({items}, (k{depth}, {part}) -> {key})"
    if isinstance(kind, TimeType):
        return _time_text(value)
    assert isinstance(kind, StructType)
    fields = []
    for place, (field, inner) in enumerate(zip(shown, kind.types, strict=True)):
        text = read_sql(f"{value}.{quoted(field.name)}", inner, field.type, depth + 1)
        if (default := kind.stored_defaults.get(place)) is not None:
            text = f"coalesce({text}, {literal(times_as_text(default.view(field.type), inner)[0])})"
        fields.append(f"{text} AS {quoted(field.name)}")
    return f"if({value} IS NULL, NULL, struct({', '.join(fields)}))"


def _time_text(micros: str) -> str:
    """A time of day as text; the twin of ``TimeType.as_text``."""
    hours, minutes, seconds = (
        f"lpad(CAST({micros} div {unit} % {most} AS STRING), 2, '0')"
        for unit, most in ((3_600_000_000, 24), (60_000_000, 60), (1_000_000, 60))
    )
    rest = f"CAST({micros} % 1000000 AS STRING)"
    fraction = f"if({rest} = '0', '', concat('.', lpad({rest}, 6, '0')))"
    text = f"concat({hours}, ':', {minutes}, ':', {seconds}, {fraction})"
    return f"if({micros} BETWEEN 0 AND {DAY_US - 1}, {text}, CAST({micros} AS STRING))"


def _counts(files: Sequence[StateFile]) -> str:
    """Whether a row of one checkpoint is in a key group for which the checkpoint's files count."""
    (max_parallelism,) = {c.max_parallelism for f in files if (c := f.listed.counts) is not None}
    inside = []
    for file in files:
        own = (KeyGroupRange(file.key_group_min, file.key_group_max),)
        ranges = own if file.listed.counts is None else file.listed.counts.ranges
        inside += [f"pmod(key_hash, {max_parallelism}) BETWEEN {one.start} AND {one.end}" for one in ranges]
    return f"({' OR '.join(inside) or 'false'})"


def _metadata(declared: DeclaredState, expiry: Expiry) -> list[str]:
    """The columns beside key and value: times as stored, and the key group at the checkpoint's max parallelism.

    ``core.checkpoints.time_travel.Expiry`` defines when an item expires; ``queries.state_table`` computes the same in
    Arrow, and ``tests/queries/test_open_state.py`` compares both.
    """
    times = ["CAST(NULL AS TIMESTAMP_LTZ)"] * 2
    if expiry.ttl_ms is not None:
        times[0] = "updated_at"
    if expiry.ttl_ms is not None and expiry.latest_ms is not None:
        last = "unix_millis(lasting)"
        times[1] = (
            f"CASE WHEN {last} <= {_long(expiry.latest_ms)} THEN timestamp_millis({last} + {_long(expiry.ttl_ms)}) END"
        )
    group = f"pmod(key_hash, {_long(declared.operator.max_parallelism)})"
    return [f"{text} AS {name}" for text, name in zip([*times, group], METADATA, strict=True)]


def _alive(expiry: Expiry) -> Alive:
    """Which items are shown, given the column of their times."""
    hidden_ms = expiry.hidden_ms
    if hidden_ms is None:
        return lambda at: "true"
    return lambda at: f"({at} IS NULL OR unix_millis({at}) > {_long(hidden_ms)})"


# Each fold gives key_hash, key, [map_key,] value, updated_at, and lasting: the time from which the last item lives on.


def _fold_value(changes: str, alive: Alive) -> str:
    of_keys = f"SELECT key_hash, key, place, struct(op, updated_at, stored) AS change FROM ({changes})"
    return _last_of("key_hash, key", of_keys, alive)


def _fold_map(changes: str, alive: Alive) -> str:
    of_entries = (
        "SELECT key_hash, key, stored.key AS map_key, place, struct(op, updated_at, stored.value AS stored) AS change "
        f"FROM ({_after_clear(changes)}) WHERE op <> '{CLEAR}'"
    )
    return _last_of("key_hash, key, map_key", of_entries, alive)


def _last_of(item: str, changes: str, alive: Alive) -> str:
    """The last change of each item, where that is a value which is shown."""
    last = f"SELECT {item}, max_by(change, place) AS last FROM ({changes}) GROUP BY {item}"
    return (
        f"SELECT {item}, last.stored AS value, last.updated_at AS updated_at, last.updated_at AS lasting "
        f"FROM ({last}) WHERE last.op = '{PUT}' AND {alive('last.updated_at')}"
    )


def _fold_list(changes: str, alive: Alive) -> str:
    # by a comparison of their places: elements may be maps, which have no order
    lists = (
        "SELECT key_hash, key, array_sort(collect_list(struct(place, stored)), (a, b) -> a.place - b.place) AS parts "
        f"FROM ({_after_clear(changes)}) WHERE op = '{APPEND}' GROUP BY key_hash, key"
    )
    kept = (
        "SELECT key_hash, key, filter(flatten(transform(parts, p -> p.stored)), "
        f"e -> {alive('e.updated_at')}) AS kept FROM ({lists})"
    )
    times = "transform(kept, e -> e.updated_at)"
    # an element without a time stays for ever
    lasting = f"CASE WHEN NOT exists({times}, t -> t IS NULL) THEN array_max({times}) END"
    return (
        f"SELECT key_hash, key, transform(kept, e -> e.value) AS value, array_max({times}) AS updated_at, "
        f"{lasting} AS lasting FROM ({kept}) WHERE size(kept) > 0"
    )


def _after_clear(changes: str) -> str:
    """Rows of a key from its last clear on; in one attempt the clear comes first."""
    cleared = f"max(if(op = '{CLEAR}', place, NULL)) OVER (PARTITION BY key)"
    return f"SELECT * FROM (SELECT *, {cleared} AS cleared FROM ({changes})) WHERE cleared IS NULL OR place >= cleared"


_FOLDS: dict[str, Callable[[str, Alive], str]] = {
    "value": _fold_value,
    "map": _fold_map,
    "list": _fold_list,
}


def _long(number: int) -> str:
    """A number of 64 bits: SQL reads the smallest one as no number of 64 bits without its sign."""
    return f"CAST('{number}' AS BIGINT)"


def literal(value: pa.Scalar) -> str:
    """A stored value as SQL that means the same in all sessions.

    Example:
        >>> literal(pa.scalar("it's")), literal(pa.scalar(None, pa.int64()))
        ("CAST(X'69742773' AS string)", 'CAST(NULL AS bigint)')
    """
    return f"CAST({_plain_literal(value)} AS {_type_text(value.type)})"


def _plain_literal(value: pa.Scalar) -> str:
    kind = value.type
    if not value.is_valid:
        return "NULL"
    if pa.types.is_struct(kind):
        return f"struct({', '.join(literal(value[n]) for n in range(kind.num_fields))})"
    if pa.types.is_map(kind):
        entries = pa.array([value], kind)
        pairs = zip(entries.keys, entries.items, strict=True)
        return f"map({', '.join(literal(part) for pair in pairs for part in pair)})"
    if pa.types.is_list(kind):
        return f"array({', '.join(map(literal, value.values))})"
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        data = value.as_py()
        return f"X'{(data.encode() if isinstance(data, str) else data).hex()}'"
    return f"'{value.cast(pa.string()).as_py()}'"


def _type_text(kind: pa.DataType) -> str:
    """A type as DDL; that of a time with a zone does not depend on the session's own."""
    return walked(
        kind,
        leaf=lambda leaf: "timestamp_ltz" if (text := ddl_text(leaf)) == "timestamp" else text,
        record=lambda part, texts: record_text([quoted(f.name) for f in part], texts),
        sequence=lambda _, element: list_text(element),
        mapping=lambda _, key, value: map_text(key, value),
    )
