"""``VectorizedOperator``: runs a function over columns once for the rows of one subtask during one micro-batch.

The counterpart of ``StreamOperator``, in the harness and on Spark. Knows nothing of files: the
state of the touched keys comes as columns, and what changed goes as columns. Decisions 0075 and 0112.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.function_calls import check_stream
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.functions.vectorized_functions import (
    ERROR,
    KEY,
    MAP_KEY,
    ROW,
    VALUE,
    PerElement,
    StandsForElements,
    VectorizedKeyedFunction,
    VectorizedResult,
)
from state_engine.core.operator.column_outputs import KINDS, ColumnOutputs, key_at
from state_engine.core.operator.column_results import ColumnResults
from state_engine.core.operator.column_states import (
    Changed,
    ChangedColumn,
    MapEntries,
    StateColumn,
    StoredColumns,
    Timers,
    changed_entries,
    check_state,
)
from state_engine.core.operator.guarded_operator import GuardedOperator
from state_engine.core.operator.operator_lifecycle import FIRST_RUN, OperatorLifecycle, Resumption
from state_engine.core.operator.outputs import ElementRefused, Refusal
from state_engine.core.state.descriptors import MapStateDescriptor, StateDescriptor
from state_engine.core.state.keyed_state import KeyedStateStore
from state_engine.core.state.state_table import KeyContext
from state_engine.core.state.ttl import TtlUpdateType, horizon
from state_engine.core.time.timers import TimersDescriptor
from state_engine.core.types.every_type import StructType
from state_engine.core.types.timestamps import MIN_TIMESTAMP

Numbers = np.ndarray[Any, Any]


@dataclass
class VectorizedOutputs:
    """What a subtask produced.

    Attributes:
        side: outputs by the id of their tag.
        first_timers_ms: time of the first timer that the keys of the batch have left, by domain; None where the
            function leaves timers alone.
    """

    outputs: ColumnOutputs
    side: dict[str, ColumnOutputs] = field(default_factory=dict)
    changes: list[Changed] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    first_timers_ms: dict[str, int] | None = None


@dataclass(frozen=True)
class VectorizedRows:
    """The rows of one subtask, in total order.

    Attributes:
        keys: of the rows, and of due timers; in columns as they are declared.
        hashes: of the keys, where they are known.
        timestamps, watermarks: in milliseconds, where the stream has event time.
        kinds: ``RowKind.value`` of each, where the stream changes.
        inputs: of two streams, the numbers of the rows of each and their columns; ``rows`` says which row is of which.
    """

    rows: pa.Table
    key_of: Numbers
    keys: pa.Table
    hashes: Numbers | None = None
    timestamps: pa.Array | None = None
    watermarks: pa.Array | None = None
    kinds: pa.Array | None = None
    inputs: tuple[tuple[Numbers, pa.Table], ...] = ()


class VectorizedOperator(GuardedOperator):
    """One subtask during one micro-batch: ``open``, ``process``, ``snapshot``, ``close``.

    Args:
        stored: the state of the keys of the batch.
        end_ms: the watermark at the end of the batch; the largest long in a drain.
        dead_letters: whether refused rows are set aside instead of ending the batch.
        side_outputs: the side outputs that somebody reads, by the id of their tag; None takes any tag.
    """

    def __init__(
        self,
        function: VectorizedKeyedFunction,
        *,
        info: TaskInfo,
        context: KeyContext,
        columns: StructType,
        stored: StoredColumns,
        end_ms: int = MIN_TIMESTAMP,
        dead_letters: bool = False,
        side_outputs: Mapping[str, OutputTag] | None = None,
        changing: bool = False,
        resumption: Resumption = FIRST_RUN,
    ) -> None:
        check_stream(function, operator=info.task_name, keyed=True)
        self.function, self._name = function, f"operator '{info.task_name}'"
        self._context, self._stored, self._end_ms = context, stored, end_ms
        self._columns, self._side, self._changing = columns, side_outputs, changing
        self._dead_letters = dead_letters
        # registers what open asks for; what is stored comes as columns
        self._store = KeyedStateStore(info.task_name, KeyContext(), lambda _: {})
        self._life = OperatorLifecycle(
            function,
            info=info,
            resumption=resumption,
            clock_ms=context.clock_ms,
            keyed_store=self._store,
        )

    @property
    def descriptors(self) -> list[StateDescriptor]:
        """The states that the function declared; that of timers last."""
        declared = [table.descriptor for table in self._store.tables.values()]
        return [*declared, TimersDescriptor()] if self.function.uses_timers else declared

    @property
    def _values(self) -> list[StateDescriptor]:
        return [d for d in self.descriptors if d.shape == "value"]

    @property
    def _maps(self) -> list[MapStateDescriptor]:
        declared = (table.descriptor for table in self._store.tables.values())
        return [d for d in declared if isinstance(d, MapStateDescriptor)]

    def open(self) -> None:
        """Open the function. Raises ConfigurationError where it declares a state that columns cannot hold."""
        self._guard(self._life.initialize)
        self._guard(self._life.open)
        for descriptor in self.descriptors:
            check_state(descriptor, where=self._name)

    def process(self, batch: VectorizedRows) -> VectorizedOutputs:
        """Hand the rows to the function; what it made of them, checked.

        Raises:
            ElementRefused: it raised, or refused a row that is not set aside.
        """
        self._check(lambda: self._refuse_names(batch))
        loaded = {d.name: self._stored.load(d) for d in self._values}
        entries = {d.name: self._stored.entries(d) for d in self._maps}
        timers = None
        if self.function.uses_timers:
            timers = Timers(self._stored.entries(TimersDescriptor()), self._end_ms)
            first_ms = timers.first_of_clock
            self._check(lambda: self._refuse_timer_of_clock(first_ms))
        expired = {d.name: self._expired(d, loaded[d.name]) for d in self._values}
        columns = {
            KEY: pa.array(np.arange(batch.keys.num_rows)),
            **dict(zip(batch.keys.column_names, batch.keys.columns, strict=True)),
        }
        columns |= {d.name: self._shown(d, loaded[d.name], expired[d.name]) for d in self._values}
        rows = _numbered(batch.rows, np.arange(batch.rows.num_rows), batch.key_of)
        ctx = VectorizedKeyedFunction.Context(
            self._context.clock_ms,
            batch.timestamps,
            batch.watermarks,
            None if batch.kinds is None else pa.array(KINDS).take(batch.kinds),
            self._end_ms,
            {name: _table_of(of_state) for name, of_state in entries.items()},
            None if timers is None else timers.due,
            tuple(_numbered(of_input, places, batch.key_of[places]) for places, of_input in batch.inputs),
        )
        return self._checked(
            self._called(rows, pa.table(columns), ctx), batch, loaded, expired, entries, timers
        )

    # -- what goes in ----------------------------------------------------------------------------------------------

    @property
    def _method(self) -> str:
        return f"{self._name}: process_batch of {type(self.function).__name__}"

    def _check(self, refuse: Callable[[], None]) -> None:
        try:
            refuse()
        except ConfigurationError:
            if isinstance(self.function, StandsForElements):
                raise PerElement from None
            raise

    def _refuse_names(self, batch: VectorizedRows) -> None:
        of_inputs = (name for _, of_input in batch.inputs for name in of_input.column_names)
        names = {*batch.rows.column_names, *batch.keys.column_names, *of_inputs}
        for name in (ROW, KEY):
            if name in names:
                raise ConfigurationError(
                    f"{self._name}: the stream has a column '{name}', which is what {type(self.function).__name__} "
                    "gets beside its columns: rename it in a transform or map before"
                )
        for d in self._values:
            if d.name == KEY or d.name in batch.keys.column_names:
                raise ConfigurationError(
                    f"{self._name}: state '{d.name}' has the name of a column of the key, and both would be "
                    "columns of one table: rename the state, with renamed_from if it is stored already"
                )

    def _refuse_timer_of_clock(self, first_ms: int | None) -> None:
        if first_ms is not None and first_ms <= self._context.clock_ms:
            raise ConfigurationError(
                f"{self._name}: a timer of processing time is due, at {first_ms} ms, which set before, and "
                f"{type(self.function).__name__} gets timers of event time only: use a KeyedProcessFunction"
            )

    def _expired(self, descriptor: StateDescriptor, stored: StateColumn) -> pa.Array | None:
        if descriptor.ttl is None or stored.at_ms is None:
            return None
        until = horizon(self._context.clock_ms, descriptor.ttl.lifetime.ttl_ms)
        if until is None:
            return pa.array(np.zeros(len(stored.values), bool))
        gone = pc.fill_null(pc.less_equal(stored.at_ms, until), False)
        return pc.and_(gone, stored.values.is_valid())

    @staticmethod
    def _shown(descriptor: StateDescriptor, stored: StateColumn, expired: pa.Array | None) -> pa.Array:
        values = stored.values
        if expired is not None and descriptor.ttl is not None and descriptor.ttl.lifetime.hides_expired:
            values = _without(values, expired)
        default = getattr(descriptor, "default", None)
        if default is None or not values.null_count:
            return values
        fill = descriptor.value_type.to_arrow([default], storage=False)
        with_default = pa.concat_arrays([values, fill])
        at = np.where(values.is_null().to_numpy(zero_copy_only=False), len(values), np.arange(len(values)))
        return with_default.take(pa.array(at))

    # -- what comes out --------------------------------------------------------------------------------------------

    def _called(self, rows: pa.Table, state: pa.Table, ctx: Any) -> VectorizedResult:
        result = self._guard(lambda: self.function.process_batch(rows, state, ctx))
        if result is None or isinstance(result, VectorizedResult):
            return result or VectorizedResult()
        return VectorizedResult(outputs=result)

    def _checked(
        self,
        result: VectorizedResult,
        batch: VectorizedRows,
        loaded: dict[str, StateColumn],
        expired: dict[str, pa.Array | None],
        entries: dict[str, MapEntries],
        timers: Timers | None,
    ) -> VectorizedOutputs:
        results = ColumnResults(
            self._method,
            rows=batch.rows.num_rows,
            keys=batch.keys,
            hashes=batch.hashes,
            watermarks=batch.watermarks,
            start_ms=MIN_TIMESTAMP if self._context.watermark_ms is None else self._context.watermark_ms,
            end_ms=self._end_ms,
            timed=self._context.has_event_time,
            changing=self._changing,
        )
        made = VectorizedOutputs(results.outputs(result.outputs, self._columns, "outputs"))
        made.side = results.side_outputs(result.side, self._side)
        made.refused = self._refusals(results, result.refused, batch)
        refused = np.array([r.index for r in made.refused], np.int64)
        if any(np.isin(of.origins.rows, refused).any() for of in (made.outputs, *made.side.values())):
            raise ConfigurationError(
                f"{self._method} refused a row and gave an output of it: leave the output out"
            )
        changed = results.state(result.state, [d.name for d in self._values])
        for d in self._values:
            made.changes.append(self._changed(d, results, changed, loaded[d.name], expired[d.name]))
        given = results.map_entries(result.maps, self._maps)
        for of_map in self._maps:
            if of_map.name in given:
                twice = (
                    f"{self._method} gave two rows of one entry of map '{of_map.name}': give each '{MAP_KEY}' of a "
                    f"'{KEY}' once, with its last '{VALUE}'"
                )
                stored = entries[of_map.name]
                made.changes.append(changed_entries(of_map, stored, given[of_map.name], twice=twice))
        asked = results.timers(result.timers, uses=timers is not None)
        if timers is not None:
            both = f"{self._method} sets and deletes one timer: give it once"
            changes, made.first_timers_ms = timers.changed(*asked, both=both)
            made.changes.append(changes)
        return made

    def _refusals(self, results: ColumnResults, given: Any, batch: VectorizedRows) -> list[Refusal]:
        table = results.table(given, "refused")
        if table is None or not table.num_rows:
            return []
        if not {ROW, ERROR} <= set(table.column_names):
            raise ConfigurationError(
                f"{self._method} gave refused rows with the columns {table.column_names}: give '{ROW}', their numbers, "
                f"and '{ERROR}', why they are refused"
            )
        numbers = results.numbers(table[ROW], ROW, batch.rows.num_rows, "refused")
        errors = dict(zip(numbers.tolist(), table[ERROR].to_pylist(), strict=True))
        refused = []
        for row, error in sorted(errors.items()):
            key = key_at(batch.keys, int(batch.key_of[row]))
            refused.append(Refusal(row, key, str(error or "refused without a reason"), ""))
        if not self._dead_letters:
            raise ElementRefused(refused[0])
        return refused

    def _changed(
        self,
        descriptor: StateDescriptor,
        results: ColumnResults,
        table: pa.Table | None,
        stored: StateColumn,
        expired: pa.Array | None,
    ) -> ChangedColumn:
        """The changes of a state: what was returned, and what expired or lives on because it was looked at."""
        number, name = len(stored.values), descriptor.name
        keys, values = np.zeros(0, np.int64), stored.values.slice(0, 0)
        if table is not None and name in table.column_names:
            keys = results.numbers(table[KEY], KEY, number, "state")
            if len(keys) and np.bincount(keys).max() > 1:
                raise ConfigurationError(
                    f"{self._method} gave two rows of one key as state: give each '{KEY}' once, with its last value"
                )
            values = results.as_declared(table[name], descriptor.value_type, f"state '{name}'")
        was = stored.values.is_valid().to_numpy(zero_copy_only=False)
        if expired is not None:
            keys, values = self._looked_at(descriptor, keys, values, stored, expired)
        now = values.is_valid().to_numpy(zero_copy_only=False)
        matters = now | was[keys]  # what is not there need not be cleared
        if not matters.all():
            keys, values, now = keys[matters], values.filter(pa.array(matters)), now[matters]
        at_ms = None if descriptor.ttl is None else self._context.clock_ms
        return ChangedColumn(descriptor, keys, values, at_ms, int(now.sum() - was[keys].sum()))

    @staticmethod
    def _looked_at(
        descriptor: StateDescriptor, keys: Numbers, values: pa.Array, stored: StateColumn, expired: pa.Array
    ) -> tuple[Numbers, pa.Array]:
        """With the keys that were only read: what has expired goes, and reading renews the rest where it does."""
        assert descriptor.ttl is not None
        others = expired.to_numpy(zero_copy_only=False)
        if descriptor.ttl.get_update_type() is TtlUpdateType.OnReadAndWrite:
            others = others | stored.values.is_valid().to_numpy(zero_copy_only=False)
        others = others.copy()
        others[keys] = False
        read = np.flatnonzero(others)
        if not len(read):
            return keys, values
        kept = _without(stored.values, expired).take(pa.array(read))
        return np.concatenate([keys, read]), pa.concat_arrays([values, kept])


def _numbered(rows: pa.Table, places: Numbers, keys: Numbers) -> pa.Table:
    return rows.append_column(ROW, pa.array(places)).append_column(KEY, pa.array(keys))


def _table_of(entries: MapEntries) -> pa.Table:
    columns = [pa.array(entries.keys), entries.map_keys, entries.values]
    return pa.table(columns, names=[KEY, MAP_KEY, VALUE])


def _without(values: pa.Array, gone: pa.Array) -> pa.Array:
    """Values with null in some places; records, too, which ``if_else`` does not take."""
    at = np.arange(len(values))
    return values.take(pa.array(at, mask=gone.to_numpy(zero_copy_only=False)))
