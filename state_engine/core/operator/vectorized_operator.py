"""``VectorizedOperator``: runs a function over columns once for the rows of one subtask during one micro-batch.

What ``StreamOperator`` is for functions per element, in the harness and on Spark alike. Knows nothing of files: the
state of the touched keys comes as columns, and what changed goes as columns. Decision 0075.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.functions.function_calls import check_stream
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.functions.vectorized_functions import (
    ERROR,
    KEY,
    ROW,
    PerElement,
    StandsForElements,
    VectorizedKeyedFunction,
    VectorizedResult,
)
from state_engine.core.operator.guarded_operator import GuardedOperator
from state_engine.core.operator.operator_lifecycle import FIRST_RUN, OperatorLifecycle, Resumption
from state_engine.core.operator.outputs import ElementRefused, Refusal
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.keyed_state import KeyedStateStore
from state_engine.core.state.state_table import KeyContext
from state_engine.core.state.ttl import TtlUpdateType, horizon
from state_engine.core.types.column_forms import in_form
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.every_type import PickledType, StructType, TypeInformation

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True)
class StateColumn:
    """What is stored of one state for the keys of a batch, one after the other.

    Attributes:
        values: of the declared type; null where nothing is stored.
        at_ms: when each was accessed last; None where the state has no time to live.
    """

    values: pa.Array
    at_ms: pa.Array | None = None


@dataclass(frozen=True)
class ChangedColumn:
    """What changed in one state.

    Attributes:
        values: of the declared type; null where it is cleared.
        at_ms: when they were written; None where the state has no time to live.
        added: how many entries there are more than before.
    """

    descriptor: StateDescriptor
    keys: Numbers
    values: pa.Array
    at_ms: int | None = None
    added: int = 0


@dataclass
class VectorizedOutputs:
    """What a subtask produced: ``outputs`` row by row from ``origins``, which are numbers of rows."""

    outputs: pa.Table
    origins: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    changes: list[ChangedColumn] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


@dataclass(frozen=True)
class VectorizedRows:
    """The rows of one subtask, in total order.

    Attributes:
        timestamps, watermarks: in milliseconds, where the stream has event time.
    """

    rows: pa.Table
    key_of: Numbers
    keys: pa.Table
    timestamps: pa.Array | None = None
    watermarks: pa.Array | None = None


Load = Callable[[StateDescriptor], StateColumn]
"""Gives what is stored of a state for the keys of the batch."""


class VectorizedOperator(GuardedOperator):
    """One subtask during one micro-batch: ``open``, ``process``, ``snapshot``, ``close``.

    Args:
        dead_letters: whether refused rows are set aside instead of ending the batch.
        resumption: where it continues.
    """

    def __init__(
        self,
        function: VectorizedKeyedFunction,
        *,
        info: TaskInfo,
        context: KeyContext,
        columns: StructType,
        load: Load,
        dead_letters: bool = False,
        resumption: Resumption = FIRST_RUN,
    ) -> None:
        check_stream(function, operator=info.task_name, keyed=True)
        self.function, self._name = function, f"operator '{info.task_name}'"
        self._context, self._columns, self._load = context, columns, load
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
        """The states that the function declared."""
        return [table.descriptor for table in self._store.tables.values()]

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
        self._check_names(batch)
        loaded = {d.name: self._load(d) for d in self.descriptors}
        numbers = np.arange(batch.keys.num_rows)
        columns = {
            KEY: pa.array(numbers),
            **dict(zip(batch.keys.column_names, batch.keys.columns, strict=True)),
        }
        expired = {d.name: self._expired(d, loaded[d.name]) for d in self.descriptors}
        for d in self.descriptors:
            columns[d.name] = self._shown(d, loaded[d.name], expired[d.name])
        rows = batch.rows.append_column(ROW, pa.array(np.arange(batch.rows.num_rows)))
        rows = rows.append_column(KEY, pa.array(batch.key_of))
        ctx = VectorizedKeyedFunction.Context(self._context.clock_ms, batch.timestamps, batch.watermarks)
        result = self._called(rows, pa.table(columns), ctx)
        made = self._outputs(result.outputs, batch)
        made.refused = self._refusals(result.refused, batch)
        refused = np.array([r.index for r in made.refused], np.int64)
        if np.isin(made.origins, refused).any():
            raise ConfigurationError(
                f"{self._method} refused a row and gave an output of it: leave the output out"
            )
        changed = self._table(result.state, "state")
        for d in self.descriptors:
            made.changes.append(self._changed(d, changed, loaded[d.name], expired[d.name]))
        return made

    # -- what goes in ----------------------------------------------------------------------------------------------

    @property
    def _method(self) -> str:
        return f"{self._name}: process_batch of {type(self.function).__name__}"

    def _check_names(self, batch: VectorizedRows) -> None:
        try:
            self._refuse_names(batch)
        except ConfigurationError:
            if isinstance(self.function, StandsForElements):
                raise PerElement from None
            raise

    def _refuse_names(self, batch: VectorizedRows) -> None:
        for name in (ROW, KEY):
            if name in (*batch.rows.column_names, *batch.keys.column_names):
                raise ConfigurationError(
                    f"{self._name}: the stream has a column '{name}', which is what {type(self.function).__name__} "
                    "gets beside its columns: rename it in a transform or map before"
                )
        for d in self.descriptors:
            if d.name == KEY or d.name in batch.keys.column_names:
                raise ConfigurationError(
                    f"{self._name}: state '{d.name}' has the name of a column of the key, and both would be "
                    "columns of one table: rename the state, with renamed_from if it is stored already"
                )

    def _expired(self, descriptor: StateDescriptor, stored: StateColumn) -> pa.Array | None:
        """Which values have expired; None where none can."""
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

    def _table(self, given: Any, part: str) -> pa.Table | None:
        if given is None or isinstance(given, pa.Table):
            return given
        if isinstance(given, pa.RecordBatch) or hasattr(given, "__arrow_c_stream__"):
            return pa.table(given)
        raise ConfigurationError(
            f"{self._method} gave {type(given).__name__} as {part}: return a pyarrow.Table, or what Arrow can read as "
            "one, such as a DataFrame of polars or pandas"
        )

    def _outputs(self, given: Any, batch: VectorizedRows) -> VectorizedOutputs:
        table, kind = self._table(given, "outputs"), self._columns
        if table is None:
            return VectorizedOutputs(pa.schema(list(kind.arrow)).empty_table())
        names = [name for name in table.column_names if name != ROW]
        if set(names) != set(kind.names) or len(names) != len(kind.names):
            raise ConfigurationError(
                f"{self._method} gave outputs with the columns {names}; output_type declares {list(kind.names)}. "
                f"Select these, and '{ROW}' where outputs belong to rows"
            )
        columns = [
            self._as_declared(table[name], of, f"output column '{name}'")
            for name, of in zip(kind.names, kind.types, strict=True)
        ]
        last = batch.rows.num_rows - 1
        origins = np.full(table.num_rows, last)
        if ROW in table.column_names:
            origins = self._numbers(table[ROW], ROW, batch.rows.num_rows, "outputs")
        outputs = pa.Table.from_arrays(columns, schema=pa.schema(list(kind.arrow)))
        if len(origins) and (np.diff(origins) < 0).any():
            order = np.argsort(origins, kind="stable")
            outputs, origins = outputs.take(pa.array(order)), origins[order]
        return VectorizedOutputs(outputs, origins)

    def _refusals(self, given: Any, batch: VectorizedRows) -> list[Refusal]:
        table = self._table(given, "refused")
        if table is None or not table.num_rows:
            return []
        if not {ROW, ERROR} <= set(table.column_names):
            raise ConfigurationError(
                f"{self._method} gave refused rows with the columns {table.column_names}: give '{ROW}', their numbers, "
                f"and '{ERROR}', why they are refused"
            )
        numbers = self._numbers(table[ROW], ROW, batch.rows.num_rows, "refused")
        errors = dict(zip(numbers.tolist(), table[ERROR].to_pylist(), strict=True))
        refused = []
        for row, error in sorted(errors.items()):
            of_key = batch.keys.slice(int(batch.key_of[row]), 1).to_pylist()[0]
            key = tuple(of_key.values()) if len(of_key) > 1 else next(iter(of_key.values()))
            refused.append(Refusal(row, key, str(error or "refused without a reason"), ""))
        if not self._dead_letters:
            raise ElementRefused(refused[0])
        return refused

    def _changed(
        self,
        descriptor: StateDescriptor,
        table: pa.Table | None,
        stored: StateColumn,
        expired: pa.Array | None,
    ) -> ChangedColumn:
        """The changes of a state: what was returned, and what expired or lives on because it was looked at."""
        number, name = len(stored.values), descriptor.name
        keys, values = np.zeros(0, np.int64), stored.values.slice(0, 0)
        if table is not None:
            known = [KEY, *(d.name for d in self.descriptors)]
            wrong = [column for column in table.column_names if column not in known]
            if KEY not in table.column_names or wrong:
                raise ConfigurationError(
                    f"{self._method} gave state with the columns {table.column_names}: give '{KEY}', the numbers of "
                    f"the keys, and any of {known[1:]}"
                )
        if table is not None and name in table.column_names:
            keys = self._numbers(table[KEY], KEY, number, "state")
            if len(keys) and np.bincount(keys).max() > 1:
                raise ConfigurationError(
                    f"{self._method} gave two rows of one key as state: give each '{KEY}' once, with its last value"
                )
            values = self._as_declared(table[name], descriptor.value_type, f"state '{name}'")
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

    def _as_declared(self, column: pa.ChunkedArray, kind: TypeInformation, what: str) -> pa.Array:
        try:
            return in_form(one_chunk(column), kind)
        except ValueTypeError as error:
            raise ValueTypeError(f"{self._method}: {what}: {error}") from None

    def _numbers(self, column: pa.ChunkedArray, name: str, end: int, part: str) -> Numbers:
        whole = pa.types.is_integer(column.type) and not column.null_count
        numbers: Numbers = column.to_numpy().astype(np.int64) if whole else np.full(1, -1)
        if not whole or (len(numbers) and not (numbers.min() >= 0 and numbers.max() < end)):
            raise ConfigurationError(
                f"{self._method}: column '{name}' of {part} must hold numbers from 0 to {end - 1}, as it was given"
            )
        return numbers


def check_state(descriptor: StateDescriptor, *, where: str) -> None:
    """Refuse a state that a function over columns cannot have. Raises ConfigurationError."""
    what = f"{where}: state '{descriptor.name}'"
    if descriptor.shape != "value":
        raise ConfigurationError(
            f"{what} is a {descriptor.kind.replace('_', ' ')} state, and a VectorizedKeyedFunction has one value for "
            "each key: use a ValueStateDescriptor, or a KeyedProcessFunction for this state"
        )
    if str(PickledType(allow_pickle=True)) in str(descriptor.value_type):  # also as a part of it
        raise ConfigurationError(
            f"{what} holds pickled objects, which have no columns: declare a type with columns, or use a "
            "KeyedProcessFunction"
        )
    if descriptor.ttl is not None and descriptor.ttl.lifetime.by_event_time:
        raise ConfigurationError(
            f"{what} expires by event time, which goes on from row to row, and a VectorizedKeyedFunction sees all rows "
            "at once: let it expire by processing time, or use a KeyedProcessFunction"
        )


def _without(values: pa.Array, gone: pa.Array) -> pa.Array:
    """Values with null in some places; records, too, which ``if_else`` does not take."""
    at = np.arange(len(values))
    return values.take(pa.array(at, mask=gone.to_numpy(zero_copy_only=False)))
