"""``ReceivedRows``: the rows of one subtask, in total order, without those that no function can be given."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.errors import StatelakeError
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.operator.outputs import ElementRefused, Refusal
from state_engine.core.types.beyond_python import undecodable
from state_engine.core.types.invalid_text import invalid_text
from state_engine.core.types.row import RowKind
from state_engine.microbatch.routing.routed import HASH, KEY_REFUSAL, SUBTASK
from state_engine.microbatch.routing.total_order import in_total_order
from state_engine.microbatch.subtask.refusals import row_text
from state_engine.microbatch.subtask.subtask_input import (
    Flags,
    among_broadcast,
    broadcast_rows,
    count_sources,
    counted_rows,
    late_tags,
    with_watermarks,
)
from state_engine.microbatch.subtask.subtask_work import SubtaskWork
from state_engine.sinks.row_rules import refused_rows
from state_engine.sources.frames import TIME_REFUSAL
from state_engine.sources.stream_columns import ROW_KIND, kinds_of

_TAKES_AWAY = (RowKind.DELETE, RowKind.UPDATE_BEFORE)


class ReceivedRows:
    """What a subtask was sent.

    Args:
        work: counts the rows, and keeps those that are refused.

    Attributes:
        events: rows by key, or of a stream without keys.
        broadcast: rows that all subtasks have, where they come before all others.
        late: rows that pass by the function, by their number, with the side output that they go to.
        of_broadcast: which of ``events`` all subtasks have, where these are among the others; None where none are.
    """

    def __init__(self, work: SubtaskWork) -> None:
        self._work, self._spec = work, work.spec
        self.events = self.broadcast = pa.table({})
        self.late: dict[int, OutputTag | None] = {}
        self.of_broadcast: Flags | None = None

    def receive(self, table: pa.Table) -> None:
        """Take the rows in total order; checks that they belong here."""
        work, report, routed = self._work, self._work.report, self._spec.routed
        if pc.any(pc.not_equal(table[SUBTASK], work.index)).as_py():
            raise StatelakeError(f"rows of another subtask reached subtask {work.index}")
        if routed.refused:
            for source, rows in work.refused.add_unparsable(table).items():
                report.rows_in += rows
                report.rows_by_source[source] = report.rows_by_source.get(source, 0) + rows
        rows = table.filter(pc.is_valid(table[HASH])) if table[HASH].null_count else table
        work.lap("receive")
        rows = with_watermarks(in_total_order(rows, routed.whole_order), self._spec)
        self.events, self.broadcast = broadcast_rows(rows, routed)
        work.lap("sort")
        counted = counted_rows(self.events, routed, work.index)
        report.rows_in += counted.num_rows
        count_sources(counted, self._spec, report)
        if not work.index:  # all subtasks have the same
            report.rows_in += self.broadcast.num_rows
            count_sources(self.broadcast, self._spec, report)
        of_broadcast = np.ones(self.broadcast.num_rows, bool)
        self.broadcast = self._without_bad_rows(self.broadcast, of_broadcast)
        self.events = self._without_bad_rows(self.events, among_broadcast(self.events, routed))
        if routed.keys:
            self.events = self._without_bad_keys(self.events)
        self.late = late_tags(self.events, self._spec)
        self.of_broadcast = among_broadcast(self.events, routed)

    def pass_through(self, table: pa.Table) -> None:
        """Take rows for a sink as they come, without those that hold bad text."""
        (one,) = self._spec.routed.inputs
        self.events = table
        bad = invalid_text({name: table[name] for name in one.names})
        what = "holds text that is not UTF-8"
        errors = {row: f"SourceError: the column '{column}' {what}" for row, column in bad.items()}
        self.events = self._without(errors, table, None)

    def _without_bad_rows(self, events: pa.Table, of_broadcast: Flags | None) -> pa.Table:
        """Without the rows that Python could not decode, and those that a strategy could give no event time."""
        columns = {
            c: n for one in self._spec.routed.inputs for c, n in zip(one.columns, one.names, strict=True)
        }
        bad = undecodable({c: events[c] for c in columns if c in events.column_names})
        errors = {i: f"SourceError: the column '{columns[c]}' holds {what}" for i, (c, what) in bad.items()}
        if TIME_REFUSAL in events.column_names:
            why = events[TIME_REFUSAL].to_pylist()
            errors = {i: text for i, text in enumerate(why) if text is not None} | errors
        return self._without(self._refused_by_table(events, columns) | errors, events, of_broadcast)

    def _without(self, errors: dict[int, str], events: pa.Table, of_broadcast: Flags | None) -> pa.Table:
        if not errors:
            return events
        for index, error in sorted(errors.items()):
            broadcast = of_broadcast is not None and bool(of_broadcast[index])
            refusal = Refusal(index, None, error, "", broadcast=broadcast)
            if not self._spec.dead_letters:
                raise ElementRefused(refusal)
            # all subtasks have the same broadcast rows, and all readers of a source the same bad ones
            if self._spec.first_reader and not (broadcast and self._work.index):
                self._work.refused.add(refusal, events)
        good = np.ones(events.num_rows, bool)
        good[list(errors)] = False
        return events.filter(pa.array(good)).combine_chunks()

    def _refused_by_table(self, events: pa.Table, columns: dict[str, str]) -> dict[int, str]:
        """Rows that the table of a keyed sink does not take; those that only delete need not fit."""
        rules, where = self._spec.table_rules, self._spec.table_name
        if not rules or not events.num_rows:
            return {}
        rows = events.select(list(columns)).rename_columns(list(columns.values()))
        refused = refused_rows(rules, rows)
        if refused and ROW_KIND in events.column_names:
            kinds = kinds_of(events)
            refused = {row: why for row, why in refused.items() if kinds[row] not in _TAKES_AWAY}
        if refused and not self._spec.dead_letters:  # a letter holds the row
            first = next(iter(refused))
            refused[first] += f" (row {row_text(rows, first)})"
        return {row: f"SinkError: {where}: {why}" for row, why in refused.items()}

    def _without_bad_keys(self, events: pa.Table) -> pa.Table:
        spec, routed = self._spec, self._spec.routed
        if routed.key_refusals:
            why = events[KEY_REFUSAL]
        elif len(routed.keys) == 1 and events[routed.keys[0]].null_count:
            text = f"the key '{spec.known_key_schema.names[0]}' is null"
            missing = pc.is_null(events[routed.keys[0]])
            of_broadcast = among_broadcast(events, routed)
            if of_broadcast is not None:  # they have no key
                missing = pc.and_(missing, pa.array(~of_broadcast))
            why = pc.if_else(missing, text, pa.scalar(None, pa.string()))
        else:
            return events
        bad = pc.is_valid(why)
        for index in np.flatnonzero(bad.to_numpy(zero_copy_only=False)).tolist():
            refusal = Refusal(index, None, f"InvalidKeyError: {why[index].as_py()}", "")
            if not spec.dead_letters:
                raise ElementRefused(refusal)
            self._work.refused.add(refusal, events)
        return events.filter(pc.invert(bad)).combine_chunks()

    @property
    def without_key(self) -> set[int]:
        """The rows whose keys, if they have any, are not touched: late ones, and broadcast ones among the others."""
        broadcast = [] if self.of_broadcast is None else np.flatnonzero(self.of_broadcast).tolist()
        return {*self.late, *broadcast}

    def that_hold(self, refusal: Refusal) -> pa.Table:
        apart = refusal.broadcast and self._spec.routed.ordered_broadcast is None
        return self.broadcast if apart else self.events

    def number_of_broadcast(self, index: int) -> int:
        """Which of the broadcast elements one is: the same on all subtasks."""
        return index if self.of_broadcast is None else int(np.count_nonzero(self.of_broadcast[:index]))
