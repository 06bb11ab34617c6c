"""``Stream``: what all streams have in common: a node of the graph, and how an operator is added behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from state_engine.core.errors import ConfigurationError, InvalidKeyError
from state_engine.core.function import Function
from state_engine.core.functions.function_calls import check_stream
from state_engine.core.functions.key_selector import KeySelector
from state_engine.core.keys.canonical import storage_type
from state_engine.core.keys.key_arrays import check_key_column
from state_engine.core.names import check_text_name
from state_engine.core.state.ttl import StateTtlConfig, TtlTime
from state_engine.core.types.column_names import check_there
from state_engine.core.types.durations import Span
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import to_type
from state_engine.job.changing_streams import check_no_running_results, check_operator
from state_engine.job.graph import (
    Node,
    OperatorInput,
    OperatorNode,
    PublishedNode,
    SelectedKey,
    declared_columns,
    has_event_time,
    type_in_code,
)
from state_engine.job.late_outputs import check_late_types
from state_engine.machine.defects import guarded_class
from state_engine.operators.idle_keys import IdleTime, as_ttl_config
from state_engine.sources.output_type import OutputType
from state_engine.state_tables.base import StateTable

if TYPE_CHECKING:
    from state_engine.job.job import StatefulJob
    from state_engine.job.streams import DataStream


@guarded_class
class Stream:
    """What all streams have in common."""

    _made_by_operator = True
    """Whether a name may be given to the operator before: not behind a step that makes none, as in Flink."""

    def __init__(self, job: StatefulJob, node: Node) -> None:
        self._job, self._node = job, node

    def uid(self, uid: str) -> Self:
        """Give the operator that makes this stream its identity: state is found by it. Returns the stream."""
        self._job.rename(self._operator("uid"), uid)
        return self

    def name(self, name: str) -> Self:
        """Give the operator that makes this stream a name for people. Returns the stream."""
        self._operator("name").name = name
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Give the operator that makes this stream a number of subtasks of its own. Returns the stream."""
        operator = self._operator("set_parallelism")
        self._job.check_parallelism(parallelism, what=f"operator '{operator.uid}'")
        operator.parallelism = parallelism
        return self

    def force_non_parallel(self) -> Self:
        """One subtask for the operator that makes this stream: ``set_parallelism(1)``. Returns the stream."""
        return self.set_parallelism(1)

    def drop_states(self, *names: str) -> Self:
        """Drop states of the operator that makes this stream. Returns the stream.

        A run refuses a state with entries that the function no longer asks for. One that is dropped is gone from
        the next checkpoint on: older ones still read it, the next compaction leaves its entries out, and a state that
        is declared under its name later starts empty. Flink has no such thing.

        Args:
            names: of keyed states, and of operator state: ``list_checkpointed`` is that of a ``ListCheckpointed``.

        Raises:
            InvalidNameError: a name cannot be that of a state.
            ConfigurationError: a state is to be kept, too.
        """
        operator = self._operator("drop_states")
        operator.dropped_states += _state_names(names, beside=operator.kept_states)
        return self

    def keep_states(self, *names: str) -> Self:
        """Keep states of the operator that makes this stream, though its function does not ask for them in ``open``.

        A run refuses a stored state with entries that the function does not ask for: it would be left behind. Name it
        here where it is wanted again later, or where the function asks for it only as it runs.

        Args:
            names: as for ``drop_states``.

        Returns:
            The stream.

        Raises:
            InvalidNameError: a name cannot be that of a state.
            ConfigurationError: a state is dropped, too.
        """
        operator = self._operator("keep_states")
        operator.kept_states += _state_names(names, beside=operator.dropped_states)
        return self

    def publish(self, table: StateTable, *, name: str | None = None) -> Self:
        """Show the state that the operator keeps for a table, as ``publish_state`` does.

        It is ``versions`` of ``scd2`` and ``join_asof``, ``top`` of ``top_n``, also in tumbling windows and sessions,
        ``windows`` and ``sessions`` of what else is computed of these, ``seen`` and ``row`` of ``drop_duplicates``,
        ``last_seen`` of ``silent``, and ``partial`` of ``sequence``. The other joins and ``over`` keep two states each:
        show ``left`` or ``right``, ``tiles`` or ``rows`` by ``publish_state``.

        Args:
            table: where it is shown: ``DeltaStateTable(path)`` or ``SqlStateTable(url, table)``.
            name: of the table among the sinks of the job; the name of the state by default.

        Returns:
            The stream.

        Raises:
            ConfigurationError: the operator keeps no state for a table; or as ``publish_state`` does.
        """
        operator = self._operator("publish")
        if operator.function.shows is None:
            raise ConfigurationError(
                f"publish: operator '{operator.uid}' does not say which of its states a table shows; name it: "
                "publish_state(state, table). A table of the newest row that comes out for each key is a sink: "
                "sink(name, DeltaSink(path, key=[…]))"
            )
        state, map_key = operator.function.shows
        return self.publish_state(state, table, name=name, map_key=map_key)

    def publish_state(
        self, state: str, table: StateTable, *, name: str | None = None, map_key: str | None = "map_key"
    ) -> Self:
        """Show a keyed state of the operator that makes this stream as a table, which follows the head.

        After a checkpoint is committed, what it changed in the state is applied to the table by key, deletions
        included, in one transaction that records the checkpoint. A restore, a promotion and a backfill move the table
        as they move the state. Columns: the key's, for a map that of its keys, and ``value``, or for a record one a
        field. Flink has no such thing.

        Args:
            state: name of the state.
            table: where it is shown: ``DeltaStateTable(path)`` or ``SqlStateTable(url, table)``.
            name: of the table among the sinks of the job; the name of the state by default.
            map_key: name of the column of a map's keys; None gives each field of keys that are records its own column.

        Returns:
            The stream.

        Raises:
            ConfigurationError: the operator has no keyed state, the name is taken, or the table shows another state.
        """
        operator, known = self._operator("publish_state"), state if name is None else name
        self._job.check_output_name(known, what="published table")
        check_text_name(state, what="state")
        if not isinstance(table, StateTable):
            raise ConfigurationError(
                f"published table '{known}': {table!r} is not one; use DeltaStateTable(path), or SqlStateTable(url, "
                "table)"
            )
        if not operator.keyed:
            raise ConfigurationError(
                f"publish_state: operator '{operator.uid}' is on a stream without key, so it has no keyed state to "
                "show; call key_by before it"
            )
        self._job.check_table(known, table)
        self._job.published[known] = PublishedNode(known, operator, state, table, map_key)
        return self

    def _operator(self, method: str) -> OperatorNode:
        if not self._made_by_operator or not isinstance(self._node, OperatorNode):
            kind = type(self).__name__
            raise ConfigurationError(
                f"{method} is about the operator that makes a stream, and no operator makes this {kind} (it comes from "
                "a source, key_by, connect, union, transform, rebalance, …): call it right after map, process, …"
            )
        return self._node

    def _add(
        self,
        inputs: tuple[OperatorInput, ...],
        function: Function,
        *,
        method: str,
        uid: str | None,
        output_type: TypeLike,
    ) -> DataStream:
        job = self._job
        named = job.new_uid(method) if uid is None else uid
        check_stream(function, operator=named, keyed=inputs[0].key is not None)
        check_operator(function, inputs, operator=named, method=method)
        check_no_running_results(inputs, operator=named, method=method)
        for one in inputs:
            _check_key(one, operator=named)
        check_late_types(function, inputs, operator=named)
        made = None
        if output_type is not None:
            made = OutputType.of(to_type(output_type, parameter=f"output_type of operator '{named}'"))
        elif method in _NEED_OUTPUT_TYPE:
            raise ConfigurationError(
                f"operator '{named}': output_type is missing: declare what {method} gives"
            )
        node = OperatorNode(inputs, function, named, made, explicit_uid=uid is not None)
        job.add_operator(node)
        made_stream = job.stream(node)
        for late_to in (function.late_to, function.late_right_to):
            if late_to is not None:
                made_stream.get_side_output(late_to)
        return made_stream


def _state_names(names: Sequence[str], *, beside: Sequence[str]) -> tuple[str, ...]:
    checked = tuple(check_text_name(name, what="state") for name in names)
    both = sorted(set(checked).intersection(beside))
    if both:
        raise ConfigurationError(f"drop_states and keep_states both name {both}: leave one of them out")
    return checked


_NEED_OUTPUT_TYPE = ("map", "flat_map", "process", "map_with_state", "aggregate", "interval_join")


def column_names(given: Any, *, what: str) -> tuple[str, ...]:
    names = tuple(given) if isinstance(given, list | tuple) else (given,)
    for name in names:
        if not isinstance(name, str):
            shown = f"the function {getattr(name, '__name__', name)}" if callable(name) else repr(name)
            raise ConfigurationError(
                f"{what} takes names of columns, not {shown}. Make a column of it first: "
                'transform(lambda rows: rows.withColumn("name", …))'
            )
    return names


KeyLike = str | Sequence[str] | KeySelector | Callable[[Any], Any]
"""What ``key_by`` of connected streams takes for each of them: columns, or a function from an element to its key."""


def key_of(key: Sequence[Any], key_type: TypeLike | None) -> tuple[str, ...] | SelectedKey:
    """What ``key_by`` was given, checked: names of columns, or a function with the type that it gives."""
    if key and all(isinstance(c, str) for c in key):
        if key_type is not None:
            raise ConfigurationError("key_type is for functions: a column has its type already")
        return tuple(key)
    if (
        len(key) == 1
        and not isinstance(key[0], str)
        and (callable(key[0]) or isinstance(key[0], KeySelector))
    ):
        selector = KeySelector.of(key[0], what="key_by")
        return SelectedKey(selector, to_type(key_type, parameter="key_type of key_by"))
    raise ConfigurationError(
        f"key_by takes names of columns, or one function and its key_type, not {tuple(key)!r}"
    )


def _check_key(given: OperatorInput, *, operator: str) -> None:
    """Refuse a key that cannot be one, as far as code shows its type."""
    what, key = f"operator '{operator}'", given.key
    try:
        if isinstance(key, SelectedKey):
            what += ": key_type of key_by"
            storage_type(key.key_type.arrow)
        elif key and (columns := declared_columns(given.parent, type_in_code)) is not None:
            check_there(key, columns.names, what=f"key_by of {what}")
            for name in key:
                check_key_column(columns.types[columns.names.index(name)].arrow, name)
    except InvalidKeyError as error:
        raise InvalidKeyError(f"{what}: {error}") from None


def idle_time(node: Node, ttl: Span | StateTtlConfig | None, *, method: str) -> IdleTime | None:
    """How long an operator keeps a key behind its last row; None where it keeps it for ever.

    Raises:
        ConfigurationError: it is not a time to live of keys; or it is of event time, and the stream has none.
    """
    check_time_of_ttl(node, None if ttl is None else as_ttl_config(ttl), method=method)
    return IdleTime.of(ttl)


def check_time_of_ttl(node: Node, ttl: StateTtlConfig | None, *, method: str) -> None:
    """Refuse a time to live by event time of a stream without. Raises ConfigurationError."""
    if ttl is None or not ttl.is_enabled() or has_event_time(node):
        return
    if ttl.get_ttl_time_characteristic() is TtlTime.EventTime:
        raise ConfigurationError(
            f"ttl of {method} is by event time, and none of the sources of the stream has it: give "
            "source(event_time=…), or leave use_event_time() out of the StateTtlConfig"
        )
