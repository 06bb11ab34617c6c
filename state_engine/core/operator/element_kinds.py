"""The kind of each element on its way through an operator: how it comes in, and which one an output has.

``map``, ``filter`` and ``flat_map`` keep the kind of their element. What a process function emits is an insert; one
with ``emits_changes = True`` gives each output its kind: that of a Row, or of a pair ``RowKind.DELETE, value``, for an
element that is no Row has no place for one. Plays the part of ``RowData.getRowKind`` and ``setRowKind`` of Flink's
operators over tables, for elements of any type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from state_engine.core.errors import ValueTypeError
from state_engine.core.functions.function_calls import Process
from state_engine.core.functions.timestamped import is_marked
from state_engine.core.state.state_table import KeyContext
from state_engine.core.types.row import Row, RowKind, row_of_kind


class ElementChange(NamedTuple):
    """An element of a stream that changes, with its kind. Where the element is a Row, that has the kind, too.

    Example:
        >>> ElementChange(RowKind.DELETE, 7) == (RowKind.DELETE, 7)
        True
    """

    kind: RowKind
    value: Any


KindOf = Callable[[Any], ElementChange]
"""The kind of an output, and the output without it."""


def own_kind(output: Any) -> ElementChange:
    """The kind that a Row has, or the first of a pair of a kind and a value; anything else is an insert.

    Example:
        >>> own_kind(Row.of_kind(RowKind.DELETE, id=7))
        ElementChange(kind=<RowKind.DELETE: 3>, value=Row(id=7))
        >>> own_kind((RowKind.UPDATE_AFTER, 7)).value, own_kind(7).kind
        (7, <RowKind.INSERT: 0>)
    """
    if isinstance(output, Row):
        return ElementChange(output.get_row_kind(), row_of_kind(output, RowKind.INSERT))
    if isinstance(output, tuple) and len(output) == 2 and isinstance(output[0], RowKind):
        kind, value = output
        return ElementChange(kind, row_of_kind(value, RowKind.INSERT) if isinstance(value, Row) else value)
    return ElementChange(RowKind.INSERT, output)


def kept_kind(context: KeyContext) -> KindOf:
    """What gives an output the kind of the element that it came from.

    Raises, when it is called:
        ValueTypeError: the output is a Row of a kind that is neither that of the element nor an insert.
    """

    def kind_of(output: Any) -> ElementChange:
        kind = context.row_kind
        if isinstance(output, Row):
            if output.get_row_kind() not in (kind, RowKind.INSERT):
                raise ValueTypeError(
                    f"{output!r} has the kind {output.get_row_kind()}, but outputs of map, filter and "
                    f"flat_map have the kind of their element, here {kind}. Give outputs a kind in a process "
                    "function that says emits_changes = True"
                )
            output = row_of_kind(output, RowKind.INSERT)
        return ElementChange(kind, output)

    return kind_of


def changing_outputs(
    normalise: Callable[[Any], Any], kind_of: KindOf, marked: object
) -> Callable[[Any], Any]:
    """What makes an ``ElementChange`` of every output.

    Args:
        marked: what ``normalise`` gives for an output with a tag or an event time of its own; it is passed on.
    """

    def made(output: Any) -> Any:
        if is_marked(output):
            return marked
        kind, value = kind_of(output)
        return ElementChange(kind, normalise(value))

    return made


def with_kinds(process: Process, context: KeyContext, kinds: Iterable[RowKind]) -> Process:
    """The call of a function that sees the kind of its element; it is called once for each, in their order."""
    following = iter(kinds)

    def call(value: Any, element: Any) -> Any:
        context.row_kind = next(following)
        return process(value, element)

    return call


def split(changes: Sequence[ElementChange]) -> tuple[list[RowKind], list[Any]]:
    """Kinds and values of outputs.

    Example:
        >>> split([ElementChange(RowKind.DELETE, 7)])
        ([<RowKind.DELETE: 3>], [7])
    """
    return [change.kind for change in changes], [change.value for change in changes]


def rows_of_kinds(values: list[Any], kinds: Iterable[RowKind]) -> list[Any]:
    """Elements as functions see them: the kind is in each Row, and in nothing else.

    Example:
        >>> rows_of_kinds([Row(id=7)], [RowKind.DELETE])[0].get_row_kind()
        <RowKind.DELETE: 3>
    """
    return [
        row_of_kind(value, kind) if isinstance(value, Row) and kind is not RowKind.INSERT else value
        for value, kind in zip(values, kinds, strict=True)
    ]


def shown_changes(values: list[Any], kinds: Iterable[RowKind]) -> list[Any]:
    """Elements as they are shown where there is no context beside them: Rows of their kind, or pairs.

    Example:
        >>> shown_changes([7], [RowKind.DELETE])
        [ElementChange(kind=<RowKind.DELETE: 3>, value=7)]
    """
    return [
        row_of_kind(value, kind) if isinstance(value, Row) else ElementChange(kind, value)
        for value, kind in zip(values, kinds, strict=True)
    ]
