"""How stored Arrow columns of an earlier form are brought to a later one, and how a table's column grows.

Fields of records are matched by name: a missing one is null, one too many is left out. Nothing else changes, for
states are stored in the widest type of their kind. Plays the part of a Flink serializer that reads old bytes.
"""

from __future__ import annotations

import pyarrow as pa

from state_engine.core.errors import StateMigrationError
from state_engine.core.types.ddl import ddl_text, quoted
from state_engine.core.types.walk import common_shape, shape_of, with_parts

_WAY_OUT = "Give the new field another name"


def conform(array: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """A stored column as one of another form: fields that it lacks are null, those it has too many are left out.

    Works in both directions: to read what was written earlier, and to write records with all fields of the table.

    Example:
        >>> old = pa.array([{"a": 1, "b": "x"}, None])
        >>> conform(old, pa.struct([("c", pa.date32()), ("a", pa.int64())])).to_pylist()
        [{'c': None, 'a': 1}, None]
    """
    if array.type.equals(kind):
        return array
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([conform(chunk, kind) for chunk in array.chunks], kind)
    shape = common_shape(array.type, kind)
    if shape == "record":
        have = {field.name: i for i, field in enumerate(array.type)}
        parts = [
            conform(array.field(have[f.name]), f.type) if f.name in have else pa.nulls(len(array), f.type)
            for f in kind
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if shape == "list" and pa.types.is_list(kind):
        return with_parts(array, [lambda values: conform(values, kind.value_type)], kind)
    if shape == "map":
        turned = [lambda keys: conform(keys, kind.key_type), lambda items: conform(items, kind.item_type)]
        return with_parts(array, turned, kind)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    raise StateMigrationError(
        f"a stored column is {ddl_text(array.type)} where {ddl_text(kind)} was recorded: "
        "something else wrote this file. Restore an older checkpoint, or a savepoint into another root"
    )


def grown(column: pa.DataType, needed: pa.DataType) -> pa.DataType:
    """The type that a table's column must get to hold values of another form, too; itself where it holds them.

    Fields are never removed, new ones come last.

    Example:
        >>> grown(pa.struct([("a", pa.int64())]), pa.struct([("b", pa.string())]))
        StructType(struct<a: int64, b: string>)
    """
    if column.equals(needed):
        return column
    shape = common_shape(column, needed)
    if shape == "record":
        return pa.struct(_grown_fields(column, needed))
    if shape == "list":
        return pa.list_(grown(column.value_type, needed.value_type))
    if shape == "map" and column.key_type.equals(needed.key_type):
        return pa.map_(column.key_type, grown(column.item_type, needed.item_type))
    raise StateMigrationError(
        f"the table's column holds {ddl_text(column)}, from an earlier declaration, and cannot hold "
        f"{ddl_text(needed)}, too. {_WAY_OUT}"
    )


def added_fields(
    column: pa.DataType, wanted: pa.DataType, at: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], pa.DataType]]:
    """What to add to a table's column to make it a ``grown`` one: paths in Delta's spelling, with types.

    Elements of lists are called ``element`` there, values of maps ``value``, as ``ALTER TABLE … ADD COLUMNS`` wants.

    Example:
        >>> old = pa.list_(pa.struct([("a", pa.int64())]))
        >>> new = pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())]))
        >>> added_fields(old, new, ("v_visits",))
        [(('v_visits', 'element', 'b'), DataType(string))]
    """
    shape = shape_of(column)
    if shape == "list":
        return added_fields(column.value_type, wanted.value_type, (*at, "element"))
    if shape == "map":
        return added_fields(column.item_type, wanted.item_type, (*at, "value"))
    if shape == "plain":
        return []
    have = {field.name: field.type for field in column}
    added = []
    for field in wanted:
        if field.name in have:
            added += added_fields(have[field.name], field.type, (*at, field.name))
        else:
            added.append(((*at, field.name), field.type))
    return added


def columns_text(added: list[tuple[tuple[str, ...], pa.DataType]]) -> str:
    """Columns and fields to add, as they stand in ``ALTER TABLE … ADD COLUMNS (…)``.

    Example:
        >>> columns_text([(("v_visits", "element", "b"), pa.string()), (("v_last",), pa.int64())])
        '`v_visits`.`element`.`b` string, `v_last` bigint'
    """
    return ", ".join(f"{'.'.join(map(quoted, path))} {ddl_text(kind)}" for path, kind in added)


def _grown_fields(column: pa.DataType, needed: pa.DataType) -> list[pa.Field]:
    wanted = {field.name: field.type for field in needed}
    spelled = {field.name.lower(): field.name for field in column}
    made = []
    for field in column:
        try:
            kind = grown(field.type, wanted[field.name]) if field.name in wanted else field.type
        except StateMigrationError as error:
            raise StateMigrationError(f"field '{field.name}': {error}") from None
        made.append(pa.field(field.name, kind))
    for name, kind in wanted.items():
        other = spelled.setdefault(name.lower(), name)
        if other != name:
            raise StateMigrationError(
                f"field '{name}': the table's column has a field '{other}' from an earlier declaration, and tables "
                f"do not distinguish upper and lower case. {_WAY_OUT}"
            )
        if name not in column.names:
            made.append(pa.field(name, kind))
    return made
