"""``walked``: the one walk over an Arrow type and its parts, from the inside out; and values turned along such a walk.

``common_shape`` is for walks over two types at once: it says which parts both have.

What a type becomes (text, JSON, another type, a converter of values) is said for a type without parts, a record, a list
and a map. Plays the part of Flink's ``LogicalTypeVisitor``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa

Made = TypeVar("Made")
Shape = Literal["record", "list", "map", "plain"]
"""Which parts a type has: fields, elements, keys and values, or none."""
Convert = Callable[[Any], Any]
"""From a value to another one."""


def walked(
    kind: pa.DataType,
    *,
    leaf: Callable[[pa.DataType], Made],
    record: Callable[[pa.DataType, list[Made]], Made],
    sequence: Callable[[pa.DataType, Made], Made],
    mapping: Callable[[pa.DataType, Made, Made], Made],
) -> Made:
    """What a type becomes; each function gets the type that it is at, and what its parts became.

    Args:
        mapping: of a map, from its keys and its values.

    Example:
        >>> def depth(kind: pa.DataType) -> int:
        ...     return walked(
        ...         kind,
        ...         leaf=lambda _: 0,
        ...         record=lambda _, fields: 1 + max(fields),
        ...         sequence=lambda _, element: 1 + element,
        ...         mapping=lambda _, key, value: 1 + max(key, value),
        ...     )
        >>> depth(pa.list_(pa.struct([("a", pa.int64()), ("b", pa.map_(pa.string(), pa.int64()))])))
        3
    """

    def walk(part: pa.DataType) -> Made:
        match shape_of(part):
            case "record":
                return record(part, [walk(field.type) for field in part])
            case "map":
                return mapping(part, walk(part.key_type), walk(part.item_type))
            case "list":
                return sequence(part, walk(part.value_type))
            case "plain":
                return leaf(part)

    return walk(kind)


def shape_of(kind: pa.DataType) -> Shape:
    """Which parts a type has.

    Example:
        >>> shape_of(pa.list_(pa.int64())), shape_of(pa.int64())
        ('list', 'plain')
    """
    if pa.types.is_struct(kind):
        return "record"
    if pa.types.is_map(kind):
        return "map"
    return "list" if pa.types.is_list(kind) or pa.types.is_large_list(kind) else "plain"


def common_shape(one: pa.DataType, other: pa.DataType) -> Shape | None:
    """The parts that two types have in common, for whoever compares them part by part; None where they differ.

    Example:
        >>> common_shape(pa.list_(pa.int64()), pa.list_(pa.string()))
        'list'
        >>> common_shape(pa.list_(pa.int64()), pa.large_list(pa.int64())) is None
        True
    """
    shape = shape_of(one)
    return shape if shape == shape_of(other) and (shape == "plain" or one.id == other.id) else None


def with_parts(
    array: pa.Array, turned: Sequence[Callable[[pa.Array], pa.Array]], wanted: pa.DataType | None = None
) -> pa.Array:
    """A list or map array, which may be sliced, with other parts.

    Args:
        turned: what the elements of a list become; what the keys and the values of a map become.
        wanted: the type; by default that of the parts.

    Example:
        >>> with_parts(pa.array([[1], None, [2, 3]]).slice(1), [lambda part: part.cast(pa.string())]).to_pylist()
        [None, ['2', '3']]
    """
    offsets, mask = array.offsets.to_numpy(), array.is_null() if array.null_count else None
    start, end = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    given = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    parts = [turn(part.slice(start, end - start)) for turn, part in zip(turned, given, strict=True)]
    make = pa.ListArray.from_arrays if len(parts) == 1 else pa.MapArray.from_arrays
    return make(pa.array((offsets - start).astype(np.int32)), *parts, type=wanted, mask=mask)


def converter(
    kind: pa.DataType,
    leaf: Callable[[pa.DataType], Convert],
    *,
    entries: Callable[[pa.DataType, list[tuple[Any, Any]]], Any],
    pairs: Callable[[Any], Iterable[tuple[Any, Any]]] = iter,
) -> Convert:
    """What turns a value of a type, as ``to_pylist`` gives it, into one that is built alike; None stays None.

    Args:
        leaf: gives what turns a value of a type without parts.
        entries: of the type of a map and its turned keys and values, what they become.
        pairs: gives the keys and values of a map, where it is no list of pairs.

    Example:
        >>> kind = pa.struct([("a", pa.list_(pa.int64()))])
        >>> texts = converter(kind, lambda _: str, entries=lambda _, pairs: dict(pairs))
        >>> texts({"a": [1, None]})
        {'a': ['1', None]}
    """
    return walked(
        kind,
        leaf=lambda part: _nullable(leaf(part)),
        record=lambda part, fields: _nullable(_of_record([f.name for f in part], fields)),
        sequence=lambda _, element: _nullable(lambda value: [element(v) for v in value]),
        mapping=lambda part, key, item: _nullable(
            lambda value: entries(part, [(key(k), item(v)) for k, v in pairs(value)])
        ),
    )


def _of_record(names: list[str], fields: list[Convert]) -> Convert:
    pairs = list(zip(names, fields, strict=True))
    # a field that is not there is null
    return lambda value: {name: field(value.get(name)) for name, field in pairs}


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)
