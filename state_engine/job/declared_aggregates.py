"""Declared aggregates of a keyed stream: ``keyed.aggregate(n=count(), …)`` as a function that its columns make.

What comes out has the columns of the key, then one for each aggregate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.key_selector import KeySelector
from state_engine.core.keys.key_form import DeclaredKey
from state_engine.core.state.aggregate_functions import AggregateFunction
from state_engine.core.types.column_names import check_there
from state_engine.core.types.every_type import StructType, TypeInformation
from state_engine.job.changing_streams import from_origins
from state_engine.job.graph import KEY_COLUMN, SelectedKey
from state_engine.job.typed_by_input import TypedByInput
from state_engine.operators.aggregates.declarations import Aggregate
from state_engine.operators.aggregates.keyed_aggregates import KeyedAggregates
from state_engine.operators.aggregates.plan import check_able, plan
from state_engine.sources.output_type import OutputType

Key = tuple[str, ...] | SelectedKey


class OneForAll(KeySelector):
    """The key that all rows have, of windows of a stream without key."""

    def get_key(self, value: Any) -> int:
        return 0


def declared_aggregates(
    aggregates: Mapping[str, Aggregate], key: Key, *, origins: Sequence[str], emits_changes: bool
) -> TypedByInput:
    """The running aggregates of a keyed stream.

    Args:
        origins: what makes its rows change; empty where they are only added.
        emits_changes: whether each result takes the one before back; where the stream changes, it does.
    """
    check_aggregates(aggregates, origins)
    retract = bool(origins)
    return TypedByInput(
        partial(_function, aggregates, key, retract, emits_changes),
        gives=partial(result_columns, aggregates, key, retract=retract),
        accepts_changes=True,
        emits_changes=emits_changes,
        gives_running_results=not emits_changes,
    )


def check_aggregates(
    aggregates: Mapping[str, Aggregate], origins: Sequence[str], *, merge: bool = False
) -> None:
    """Refuse what is no aggregate, and what cannot take rows back or be merged where that is needed.

    Args:
        origins: what makes the rows of the stream change; empty where they are only added.
    """
    for name, aggregate in aggregates.items():
        if isinstance(aggregate, AggregateFunction):
            raise ConfigurationError(
                f"aggregate({name}={aggregate!r}): give it with its types, as in "
                f"{name}=aggregate_with({type(aggregate).__name__}(…), accumulator_type, output_type, field='amount')"
            )
        if not isinstance(aggregate, Aggregate):
            raise ConfigurationError(
                f"aggregate({name}={aggregate!r}): by the name of the column that it becomes, an aggregate is count(), "
                "count(field), sum_(field), first(field) or another one of the guide on aggregates"
            )
    check_able(aggregates, retract=bool(origins), merge=merge, of=from_origins(origins))


def _function(
    aggregates: Mapping[str, Aggregate], key: Key, retract: bool, emits_changes: bool, kind: OutputType
) -> KeyedAggregates:
    made = plan(aggregates, kind.columns, scalar=kind.scalar, retract=retract)
    return KeyedAggregates(made, record_key=record_key(key_columns(key, kind)), emits_changes=emits_changes)


def result_columns(
    aggregates: Mapping[str, Aggregate],
    key: Key,
    kind: OutputType,
    *,
    retract: bool,
    between: Mapping[str, TypeInformation] = MappingProxyType({}),
) -> OutputType:
    """The columns of results: the key's, those in between, one for each aggregate.

    Raises:
        ConfigurationError: an aggregate does not fit the stream, or has the name of another column.
    """
    made = plan(aggregates, kind.columns, scalar=kind.scalar, retract=retract)
    columns = key_columns(key, kind)
    _check_names(aggregates, columns.names, of="the key has a column")
    _check_names(aggregates, tuple(between), of="a window has a column")
    names = [*columns.names, *between, *(result.name for result in made.results)]
    types = [*columns.types, *between.values(), *(result.type for result in made.results)]
    return OutputType(StructType(names, types, "row"), scalar=False)


def _check_names(aggregates: Mapping[str, Aggregate], names: Sequence[str], *, of: str) -> None:
    """Refuse aggregates with the name of another column that comes out."""
    for name, aggregate in aggregates.items():
        if name in names:
            raise ConfigurationError(
                f"aggregate {name}={aggregate}: {of} of this name, which comes out as well; give the aggregate another "
                "name"
            )


def record_key(columns: DeclaredKey) -> bool:
    return columns.record is not None or len(columns.names) > 1


def key_columns(key: Key, kind: OutputType) -> DeclaredKey:
    """The columns of a key, of a stream of some kind; none of the key that all rows have."""
    if isinstance(key, SelectedKey) and isinstance(key.selector, OneForAll):
        return DeclaredKey((), ())
    if isinstance(key, SelectedKey):
        return DeclaredKey.of(KEY_COLUMN, key.key_type)
    names = kind.columns.names
    check_there(key, names, what="key_by")
    return DeclaredKey(key, tuple(kind.columns.types[names.index(name)] for name in key))
