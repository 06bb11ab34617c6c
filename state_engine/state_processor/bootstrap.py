"""``Bootstrap``: begins a job with state from DataFrames, and with sources that stand after what that state holds.

    rows      each state's DataFrame becomes rows of keyed state: checked, canonical keys, hashes (``state_rows``)
    write     they are all entries of their operator: a base (``entry_writer``)
    positions what the state holds already is put down as consumed, in each source's own terms
    others    timers are entries of a map state; operator state is written as the lists of one subtask
    commit    one row of kind ``bootstrap``, the first of the job (``bootstrap_row``)

A crash before the row leaves files that nobody lists. Mirrors ``SavepointWriter`` of Flink's State Processor API, which
knows nothing of sources. Decision 0014.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from state_engine.core.checkpoints.checkpoint import OperatorCheckpoint
from state_engine.core.checkpoints.updates import AddCheckpoint, NewestIs
from state_engine.core.errors import ConfigurationError
from state_engine.core.keys.entry_codes import entry_codes
from state_engine.core.state.descriptors import TIMERS, StateDescriptor
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.types.columns import one_chunk
from state_engine.job.declared_states import declared_states
from state_engine.job.graph import OperatorNode, declared_key
from state_engine.job.job import StatefulJob
from state_engine.job.job_tables import JobTables
from state_engine.queries.state_changes import ADDED
from state_engine.queries.state_rows import KEY, STATE, WHOLE, StateForm, key_schema_of, state_rows
from state_engine.queries.stored_columns import times_stored
from state_engine.sources.base import Element
from state_engine.sources.source_positions import SourcePositions
from state_engine.spark.engine_session import taken_in
from state_engine.state_processor.bootstrap_operator_state import (
    Elements,
    GivenOperatorState,
    first_row,
    given_operator_state,
)
from state_engine.state_processor.bootstrap_timers import SCHEMA as TIMERS_SCHEMA
from state_engine.state_processor.bootstrap_timers import Timers, timer_entries
from state_engine.state_processor.entry_writer import (
    Counts,
    EntryWriter,
    OperatorEntries,
    WrittenEntries,
    check_given,
)
from state_engine.storage.layout import JobLayout

States = Mapping[Any, DataFrame]
"""DataFrames by name of the state, or by its descriptor where only a run would show what is declared."""


@dataclass(frozen=True)
class BootstrapReport:
    """What a bootstrap did, or in a dry run would do.

    Attributes:
        job: name.
        entries: values, map entries or lists with anything in them, by operator and state; timers as ``_timers``.
        bytes: size of the files; 0 in a dry run.
        positions: where sources start, by name: what their state holds already.
        from_the_beginning: sources that were not named and start with all that they have.
        committed_id: the row that begins the job; None in a dry run.
        operator_state: elements by operator and state.
    """

    job: str
    entries: dict[str, dict[str, int]]
    bytes: int
    positions: dict[str, str]
    from_the_beginning: list[str]
    committed_id: int | None = None
    operator_state: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Given:
    """What a job is to begin with, by operator, and by source what that holds already."""

    states: Mapping[str, States] = field(default_factory=dict)
    timers: Mapping[str, Timers] = field(default_factory=dict)
    operator_state: Mapping[str, Elements] = field(default_factory=dict)
    positions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bootstrap:
    """One bootstrap of one job.

    Attributes:
        clock_ms: of its first row; entries without a time of their own were accessed then.
    """

    spark: SparkSession
    layout: JobLayout
    job: StatefulJob
    clock_ms: int
    requested_by: str = ""

    def planned(self, given: Given) -> BootstrapReport:
        """Read and check everything, and write nothing."""
        elements, lists = self._read(given)
        written = self._write(EntryWriter(self.spark, self.layout, dry_run=True), given)
        return self._report(written, elements, lists)

    def run(self, given: Given, *, tables: JobTables, positions: SourcePositions) -> BootstrapReport:
        """Write state and positions, and commit the row; see ``StateProcessor.bootstrap``."""
        elements, lists = self._read(given)
        writer = EntryWriter(self.spark, self.layout)
        written = self._write(writer, given)
        row = first_row(
            self.job,
            writer.attempt,
            clock_ms=self.clock_ms,
            operator_state=lists,
            consumed=elements,
            tables=tables,
            positions=positions,
            requested_by=self.requested_by,
        )
        row = replace(row, operators=[writer.listed(one, tables=tables, path=[row]) for one in written])
        tables.log.commit([AddCheckpoint(row)], NewestIs(0))
        return self._report(written, elements, lists, committed_id=row.checkpoint_id)

    def _read(self, given: Given) -> tuple[dict[str, list[Element]], list[GivenOperatorState]]:
        return self._positions(given.positions), given_operator_state(self.job, given.operator_state)

    # -- state -----------------------------------------------------------------------------------------------------

    def _operators(self, given: Given) -> list[OperatorEntries]:
        uids = dict.fromkeys([*given.states, *given.timers])
        unknown = sorted(set(uids) - set(self.job.operators))
        if unknown or not (uids or given.operator_state):
            raise ConfigurationError(
                f"job '{self.job.name}': state is given for operators {unknown or 'none at all'}; the job has "
                f"{sorted(self.job.operators)}"
            )
        return [
            self._operator(self.job.operators[u], given.states.get(u, {}), given.timers.get(u, {}))
            for u in uids
        ]

    def _operator(self, node: OperatorNode, states: States, timers: Timers) -> OperatorEntries:
        where = f"job '{self.job.name}', operator '{node.uid}'"
        if not node.keyed:
            raise ConfigurationError(f"{where}: its stream has no key, so it has no keyed state: use key_by")
        if not states and not timers:
            raise ConfigurationError(f"{where}: no state is given; name at least one")
        declared = declared_states(self.job, node, states)
        stated, parts, frames = declared_key(node), list[DataFrame](), dict(states)
        key = None if stated is None else stated.schema
        if timers:
            declared[TIMERS] = TIMERS_SCHEMA
            frames[TIMERS] = timer_entries(timers, node.key_columns, what=where)
        for given, frame in frames.items():
            name = given.name if isinstance(given, StateDescriptor) else given
            what = f"{where}, state '{name}'"
            if not isinstance(frame, DataFrame):
                raise ConfigurationError(f"{what}: give a Spark DataFrame, not {type(frame).__name__}")
            frame = times_stored(taken_in(frame, self.spark), key.times if key else (), what=what)
            of_frame = key_schema_of(frame, node.key_columns, what=what)
            key = key or of_frame
            if of_frame.storage != key.storage:
                raise ConfigurationError(
                    f"{what}: its key is {of_frame}, that of the operator is {key}: cast it"
                )
            form = StateForm.of(declared[name])
            parts.append(state_rows(frame, form, node.key_columns, clock_ms=self.clock_ms, what=what))
        assert key is not None
        rows = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)
        operator = OperatorCheckpoint(
            uid=node.uid,
            parallelism=self.job.parallelism_of(node),
            max_parallelism=self.job.max_parallelism,
            key_schema=str(key),
            states=list(declared.values()),
            changelog=[],
            bases=[],
            changed_entries=0,
            key_type=key.declared_text,
            shape=node.function.shape or "",
            asked_late=list(declared),  # until a micro-batch shows which are asked for in open
        )
        check = partial(_counted, tuple(operator.states))
        return OperatorEntries(operator, rows, check, is_base=True, expired_at_ms=self.clock_ms)

    def _write(self, writer: EntryWriter, given: Given) -> list[WrittenEntries]:
        return [
            writer.write(
                one,
                what=f"job '{self.job.name}', operator '{one.operator.uid}'",
                doing="state from DataFrames",
            )
            for one in self._operators(given)
        ]

    # -- sources ---------------------------------------------------------------------------------------------------

    def _positions(self, positions: Mapping[str, Any]) -> dict[str, list[Element]]:
        unknown = sorted(set(positions) - set(self.job.sources))
        if unknown:
            raise ConfigurationError(
                f"job '{self.job.name}' has no sources {unknown}; it has {sorted(self.job.sources)}"
            )
        by_name = {}
        for name, given in positions.items():
            try:
                by_name[name] = self.job.sources[name].source.consumed(self.spark, given)
            except ConfigurationError as error:
                raise type(error)(f"job '{self.job.name}', source '{name}': {error}") from None
        return by_name

    def _report(
        self,
        written: Sequence[WrittenEntries],
        elements: Mapping[str, list[Element]],
        lists: Sequence[GivenOperatorState],
        committed_id: int | None = None,
    ) -> BootstrapReport:
        sources = self.job.sources
        return BootstrapReport(
            job=self.job.name,
            entries={
                one.entries.operator.uid: {
                    s.name: one.counts.get(s.name, Counter()).total() for s in one.entries.states
                }
                for one in written
            },
            bytes=sum(f.bytes for one in written for f in one.base_files),
            positions={n: sources[n].source.position_text(e) for n, e in elements.items()},
            from_the_beginning=sorted(set(sources) - set(elements)),
            committed_id=committed_id,
            operator_state={one.uid: one.counts for one in lists},
        )


# -- in tasks ----------------------------------------------------------------------------------------------------------


def _counted(states: Sequence[StateSchema], table: pa.Table) -> Counts:
    """Number of entries of whole key groups; refuses rows that cannot be entries, and two of one place."""
    check_given(states, table)
    counts: Counts = Counter()
    for form in map(StateForm.of, states):
        if form.column_name in table.schema.names:
            mine = table.filter(pc.equal(table[STATE], form.name))
            counts[form.name, ADDED] = _entries_of(form, mine) if mine.num_rows else 0
    return counts


def _entries_of(form: StateForm, rows: pa.Table) -> int:
    name, column = form.schema.name, one_chunk(rows[form.column_name])
    parts: list[pa.Array] = [one_chunk(rows[KEY])]
    if form.shape == "map":
        parts.append(column.field("key"))
    codes = entry_codes(parts)
    _, first, counts = np.unique(codes, return_index=True, return_counts=True)
    if rows[WHOLE][0].as_py() and len(counts) < rows.num_rows:
        twice = int(first[counts > 1][0])
        map_key = f", map key {column.field('key')[twice]}" if form.shape == "map" else ""
        raise ConfigurationError(
            f"state '{name}': {int(counts.max())} rows have the key {rows[KEY][twice].as_py()}{map_key}: a "
            f"{form.shape} has one; aggregate the DataFrame first"
        )
    if form.shape != "list":
        return int(rows.num_rows)
    filled = pc.greater(column.value_lengths(), 0).to_numpy(zero_copy_only=False)
    return len(np.unique(codes[filled]))
