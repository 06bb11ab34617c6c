"""``ColumnResults``: what a function over columns gave, table by table, checked and of the declared types.

A table that does not fit is refused with what it has and what it must have. Nothing here reads state: which entries a
change adds or removes is ``column_states``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.vectorized_functions import (
    DELETED,
    EVENT_TIME,
    KEY,
    KIND,
    MAP_KEY,
    ROW,
    TIME,
    TIMER,
    VALUE,
)
from state_engine.core.operator.column_outputs import KINDS, ColumnOrigins, ColumnOutputs
from state_engine.core.operator.column_states import MapEntries
from state_engine.core.state.descriptors import MapStateDescriptor
from state_engine.core.types.column_forms import in_form
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.every_type import StructType, TypeInformation
from state_engine.core.types.row import RowKind

Numbers = np.ndarray[Any, Any]


class ColumnResults:
    """See the module docstring.

    Args:
        method: the method that gave the tables, for messages.
        watermarks: the one before each row, where the stream has event time.

    Raises, from all methods:
        ConfigurationError: a table does not fit.
        ValueTypeError: a value does not fit into its declared type.
    """

    def __init__(
        self,
        method: str,
        *,
        rows: int,
        keys: pa.Table,
        hashes: Numbers | None,
        watermarks: pa.Array | None,
        start_ms: int,
        end_ms: int,
        timed: bool,
        changing: bool,
    ) -> None:
        self._method, self._rows, self._keys, self._hashes = method, rows, keys, hashes
        self._watermarks, self._start_ms, self._end_ms = watermarks, start_ms, end_ms
        self._timed, self._changing = timed, changing

    def table(self, given: Any, part: str) -> pa.Table | None:
        if given is None or isinstance(given, pa.Table):
            return given
        if isinstance(given, pa.RecordBatch) or hasattr(given, "__arrow_c_stream__"):
            return pa.table(given)
        raise ConfigurationError(
            f"{self._method} gave {type(given).__name__} as {part}: return a pyarrow.Table, or what Arrow can read as "
            "one, such as a DataFrame of polars or pandas"
        )

    # -- outputs ---------------------------------------------------------------------------------------------------

    def outputs(self, given: Any, kind: StructType, part: str) -> ColumnOutputs:
        table = self.table(given, part)
        if table is None:
            table = pa.schema(list(kind.arrow)).empty_table()
        marks = [ROW, TIMER, EVENT_TIME, KIND, *([KEY] if TIMER in table.column_names else [])]
        names = [name for name in table.column_names if name not in marks]
        if set(names) != set(kind.names) or len(names) != len(kind.names):
            raise ConfigurationError(
                f"{self._method} gave {part} with the columns {names}; output_type declares {list(kind.names)}. "
                f"Select these, and '{ROW}' where outputs belong to rows"
            )
        columns = [
            self.as_declared(table[name], of, f"output column '{name}'")
            for name, of in zip(kind.names, kind.types, strict=True)
        ]
        outputs = pa.Table.from_arrays(columns, schema=pa.schema(list(kind.arrow)))
        times, kinds = self._event_times(table, part), self._kinds(table, part)
        return ColumnOutputs(outputs, self._origins(table, part), times, kinds).in_order(self._watermarks)

    def side_outputs(
        self, given: Mapping[OutputTag, Any], declared: Mapping[str, OutputTag] | None
    ) -> dict[str, ColumnOutputs]:
        """Side outputs by the id of their tag.

        Args:
            declared: tags that somebody reads, by id; None takes any tag.
        """
        made = {}
        for tag, table in given.items():
            if not isinstance(tag, OutputTag):
                raise ConfigurationError(
                    f"{self._method} gave a side output of {tag!r}: give it an OutputTag"
                )
            known = tag if declared is None else declared.get(tag.tag_id)
            if known != tag:
                raise ConfigurationError(
                    f"{self._method} gave a side output '{tag.tag_id}' of {tag.type_info}, and the operator has "
                    f"{[str(one) for one in (declared or {}).values()]}: ask the stream for it, get_side_output(tag), "
                    "with the same OutputTag, or leave it out"
                )
            kind = tag.type_info
            columns = kind if isinstance(kind, StructType) else StructType([VALUE], [kind])
            outputs = self.outputs(table, columns, f"side output '{tag.tag_id}'")
            made[tag.tag_id] = replace(outputs, tag=tag)
        return {tag: of for tag, of in made.items() if len(of.origins)}

    def _origins(self, table: pa.Table, part: str) -> ColumnOrigins:
        number = table.num_rows
        rows, at, key_of = (
            np.full(number, self._rows - 1),
            np.zeros(number, np.int64),
            np.zeros(number, np.int64),
        )
        of_timer = np.zeros(number, bool)
        if TIMER in table.column_names:
            of_timer, at, key_of = self._of_timers(table, part)
            rows[of_timer] = -1
        if ROW in table.column_names:
            own = ~of_timer
            column = table[ROW] if own.all() else table[ROW].filter(pa.array(own))
            rows[own] = self.numbers(column, ROW, self._rows, part)
        elif number and not self._rows and not of_timer.all():
            raise ConfigurationError(
                f"{self._method} gave {part} where there is no row but a due timer: give '{TIMER}', its time, and "
                f"'{KEY}' with them"
            )
        return ColumnOrigins(rows, at, key_of, self._start_ms, self._keys, self._hashes)

    def _of_timers(self, table: pa.Table, part: str) -> tuple[Numbers, Numbers, Numbers]:
        times = one_chunk(table[TIMER])
        of_timer = times.is_valid().to_numpy(zero_copy_only=False)
        if ROW in table.column_names and pc.any(pc.and_(times.is_valid(), table[ROW].is_valid())).as_py():
            raise ConfigurationError(
                f"{self._method} gave {part} with '{ROW}' and '{TIMER}' in one row: an output came from one of them, "
                "and the other one is null"
            )
        if KEY not in table.column_names:
            raise ConfigurationError(
                f"{self._method} gave {part} with '{TIMER}' and without '{KEY}': give the number of the key whose "
                "timer each came from"
            )
        at = self._milliseconds(times, TIMER, part, nulls=True)
        late = of_timer & (at > self._end_ms)
        if late.any():
            raise ConfigurationError(
                f"{self._method} gave {part} of a timer at {at[late][0]} ms, and the watermark reaches {self._end_ms} "
                "ms with this batch: give it in the batch in which the timer is in ctx.due, or by then"
            )
        keys = np.zeros(table.num_rows, np.int64)
        own = table[KEY].filter(pa.array(of_timer))
        keys[of_timer] = self.numbers(own, KEY, self._keys.num_rows, part)
        return of_timer, at, keys

    def _event_times(self, table: pa.Table, part: str) -> pa.Array | None:
        if EVENT_TIME not in table.column_names:
            return None
        if not self._timed:
            raise ConfigurationError(
                f"{self._method} gave {part} with '{EVENT_TIME}', and its stream has no event time: give the source an "
                "event_time, or leave the column out"
            )
        column = one_chunk(table[EVENT_TIME])
        self._milliseconds(column, EVENT_TIME, part, nulls=True)
        return column.cast(pa.int64())

    def _kinds(self, table: pa.Table, part: str) -> pa.Array | None:
        if KIND not in table.column_names:
            inserts = pa.scalar(RowKind.INSERT.value, pa.int8())
            return pa.repeat(inserts, table.num_rows) if self._changing else None
        if not self._changing:
            raise ConfigurationError(
                f"{self._method} gave {part} with '{KIND}': say emits_changes = True on the class, or leave the column "
                "out"
            )
        column = one_chunk(table[KIND])
        places = pc.index_in(column.cast(pa.string()), pa.array(KINDS))
        if places.null_count:
            wrong = column.filter(places.is_null())[0].as_py()
            raise ConfigurationError(f"{self._method} gave {part} of the kind {wrong!r}: kinds are {KINDS}")
        return places.cast(pa.int8())

    # -- state -----------------------------------------------------------------------------------------------------

    def state(self, given: Any, names: Sequence[str]) -> pa.Table | None:
        table = self.table(given, "state")
        if table is None:
            return None
        wrong = [column for column in table.column_names if column not in (KEY, *names)]
        if KEY not in table.column_names or wrong:
            raise ConfigurationError(
                f"{self._method} gave state with the columns {table.column_names}: give '{KEY}', the numbers of "
                f"the keys, and any of {list(names)}"
            )
        return table

    def map_entries(
        self, given: Mapping[str, Any], declared: Sequence[MapStateDescriptor]
    ) -> dict[str, MapEntries]:
        known = {descriptor.name: descriptor for descriptor in declared}
        made = {}
        for name, of_map in given.items():
            part = f"map '{name}'"
            if name not in known:
                raise ConfigurationError(
                    f"{self._method} gave entries of {part}, and open asked for the maps {list(known)}: ask for it in "
                    "open, with a MapStateDescriptor"
                )
            table = self.table(of_map, part)
            if table is None:
                continue
            self._check_columns(table, [KEY, MAP_KEY, VALUE], part, "a null value removes an entry")
            made[name] = MapEntries(
                self.numbers(table[KEY], KEY, self._keys.num_rows, part),
                self.as_declared(table[MAP_KEY], known[name].key_type, f"{part}, '{MAP_KEY}'"),
                self.as_declared(table[VALUE], known[name].value_type, f"{part}, '{VALUE}'"),
            )
        return made

    def timers(self, given: Any, *, uses: bool) -> tuple[Numbers, Numbers, Numbers]:
        table = self.table(given, "timers")
        if table is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, bool)
        if not uses:
            raise ConfigurationError(f"{self._method} gave timers: say uses_timers = True on the class")
        names = [KEY, TIME, *([DELETED] if DELETED in table.column_names else [])]
        self._check_columns(table, names, "timers", f"and '{DELETED}', where some are deleted")
        keys = self.numbers(table[KEY], KEY, self._keys.num_rows, "timers")
        times = self._milliseconds(one_chunk(table[TIME]), TIME, "timers")
        deleted = np.zeros(len(keys), bool)
        if DELETED in table.column_names:
            deleted = (
                pc.fill_null(one_chunk(table[DELETED]), False).to_numpy(zero_copy_only=False).astype(bool)
            )
        due = ~deleted & (times <= self._end_ms)
        if due.any():
            raise ConfigurationError(
                f"{self._method} sets a timer at {times[due][0]} ms, which the watermark reaches with this batch, at "
                f"{self._end_ms} ms: do at once what the timer is for, and give outputs with '{TIMER}'"
            )
        return keys, times, deleted

    # -- columns ---------------------------------------------------------------------------------------------------

    def as_declared(self, column: pa.ChunkedArray, kind: TypeInformation, what: str) -> pa.Array:
        try:
            return in_form(one_chunk(column), kind)
        except ValueTypeError as error:
            raise ValueTypeError(f"{self._method}: {what}: {error}") from None

    def numbers(self, column: pa.ChunkedArray, name: str, end: int, part: str) -> Numbers:
        """A column of numbers of rows or keys."""
        whole = pa.types.is_integer(column.type) and not column.null_count
        numbers: Numbers = column.to_numpy().astype(np.int64, copy=False) if whole else np.full(1, -1)
        if not whole or (len(numbers) and not (numbers.min() >= 0 and numbers.max() < end)):
            raise ConfigurationError(
                f"{self._method}: column '{name}' of {part} must hold numbers from 0 to {end - 1}, as it was given"
            )
        return numbers

    def _milliseconds(self, column: pa.Array, name: str, part: str, *, nulls: bool = False) -> Numbers:
        """Times, with 0 for null."""
        column = column.cast(pa.int64()) if pa.types.is_null(column.type) else column
        if not pa.types.is_signed_integer(column.type) or (column.null_count and not nulls):
            raise ConfigurationError(
                f"{self._method}: column '{name}' of {part} must hold times in whole milliseconds, as bigint without "
                f"null; it is {column.type}"
            )
        times: Numbers = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        return times

    def _check_columns(self, table: pa.Table, names: list[str], part: str, hint: str) -> None:
        if sorted(table.column_names) != sorted(names):
            raise ConfigurationError(
                f"{self._method} gave {part} with the columns {table.column_names}: give {names}; {hint}"
            )
