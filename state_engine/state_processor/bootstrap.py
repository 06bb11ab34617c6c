"""``Bootstrap``: begins a job with state from DataFrames, and with sources that stand after what that state holds.

    rows      each state's DataFrame becomes rows of keyed state: checked, canonical keys, hashes (``state_rows``)
    write     one Spark job per operator groups them by key group and writes one sorted file a key group: a base
    positions what the state holds already is put down as consumed, in each source's own terms
    others    timers are entries of a map state; operator state is written as the lists of one subtask
    commit    one row of kind ``bootstrap``, the first of the job

A crash before the row leaves files that nobody lists. Mirrors ``SavepointWriter`` of Flink's State Processor API, which
knows nothing of sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from state_engine.core.checkpoints.checkpoint import (
    MAIN,
    BaseRange,
    CheckpointRow,
    OperatorCheckpoint,
    OperatorStateRef,
    SourceProgress,
    StateSchema,
)
from state_engine.core.checkpoints.write_ids import WriteAttempt
from state_engine.core.errors import ConfigurationError
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.time.timers import TIMERS
from state_engine.job.declared_states import declared_states
from state_engine.job.graph import OperatorNode, declared_key
from state_engine.job.job import StatefulJob
from state_engine.job.job_tables import JobTables
from state_engine.queries.state_rows import StateForm, key_schema_of, state_rows
from state_engine.sources.base import Element
from state_engine.state_processor.bootstrap_operator_state import (
    Elements,
    GivenOperatorState,
    given_operator_state,
)
from state_engine.state_processor.bootstrap_timers import SCHEMA as TIMERS_SCHEMA
from state_engine.state_processor.bootstrap_timers import Timers, first_timers, timer_entries
from state_engine.state_processor.state_writer import WrittenStates, write_states
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.base import BaseSpec
from state_engine.storage.store_clock import StoreClock

States = Mapping[Any, DataFrame]
"""DataFrames by name of the state, or by its descriptor where only a run would tell what is declared."""


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
    """What a job is to begin with, by operator, and by source what that holds already.

    Attributes:
        states: DataFrames of keyed states.
        timers: DataFrames of timers, by domain.
        operator_state: elements, by state.
        positions: in the terms of each source.
    """

    states: Mapping[str, States] = field(default_factory=dict)
    timers: Mapping[str, Timers] = field(default_factory=dict)
    operator_state: Mapping[str, Elements] = field(default_factory=dict)
    positions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Operator:
    """What is to be written of one operator."""

    node: OperatorNode
    key: KeySchema
    states: list[StateSchema]
    rows: DataFrame
    timers: Timers


@dataclass(frozen=True)
class Bootstrap:
    """One bootstrap of one job.

    Attributes:
        spark: session.
        layout: of the job's tables.
        job: that begins.
        clock_ms: of its first row; entries without a time of their own were accessed then.
        requested_by: recorded with the row.
    """

    spark: SparkSession
    layout: JobLayout
    job: StatefulJob
    clock_ms: int
    requested_by: str = ""

    @cached_property
    def attempt(self) -> WriteAttempt:
        """Names the row and the files; asked for when the first is written."""
        return StoreClock(self.layout.root).attempt()

    def planned(self, given: Given) -> BootstrapReport:
        """Read and check everything, and write nothing."""
        elements, lists = (
            self._positions(given.positions),
            given_operator_state(self.job, given.operator_state),
        )
        written = {one.node.uid: self._write(one, dry_run=True) for one in self._operators(given)}
        return self._report(written, elements, lists)

    def run(self, given: Given, *, tables: JobTables, kernel: DeltaKernel) -> BootstrapReport:
        """Write state and positions, and commit the row; see ``StateEngine.bootstrap``."""
        elements, lists = (
            self._positions(given.positions),
            given_operator_state(self.job, given.operator_state),
        )
        found = self._operators(given)
        written = {one.node.uid: self._write(one, dry_run=False) for one in found}
        made = [self._based(one, written[one.node.uid]) for one in found]
        for operator in made:
            tables.list_base(operator, operator.base_files, self.attempt.write_id)
        refs, files = [], []
        for one in lists:
            ref, own = one.write(uri=tables.layout.operator_state, write_id=self.attempt.write_id)
            refs.append(ref)
            files += own
        if any(elements.values()):
            files.append(tables.positions.write(self.attempt.write_id, elements))
            refs += [OperatorStateRef(n, self.attempt.write_id, len(e)) for n, e in elements.items() if e]
        if files:
            tables.ensure_operator_state()
            kernel.append(tables.layout.operator_state, files, partition={"write_id": self.attempt.write_id})
        row = CheckpointRow(
            checkpoint_id=1,
            parent_id=None,
            branch=MAIN,
            kind="bootstrap",
            write_id=self.attempt.write_id,
            created_at=self.attempt.created_at,
            clock_ms=self.clock_ms,
            watermark_ms=None,
            rows_in=0,
            rows_refused=0,
            operators=made,
            operator_state=refs,
            operator_state_files=files,
            sources=[self._progress(name, elements.get(name, [])) for name in self.job.sources],
            sinks=[],
            dead_letters=[],
            job=self.job.name,
            code_version=self.job.code_version,
            requested_by=self.requested_by,
        )
        tables.check(row, None)
        tables.store.append(row)
        return self._report(written, elements, lists, committed_id=row.checkpoint_id)

    # -- state -----------------------------------------------------------------------------------------------------

    def _operators(self, given: Given) -> list[_Operator]:
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

    def _operator(self, node: OperatorNode, states: States, timers: Timers) -> _Operator:
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
            found = key_schema_of(frame, node.key_columns, what=what)
            key = key or found
            if found.storage != key.storage:
                raise ConfigurationError(
                    f"{what}: its key is {found}, that of the operator is {key}: cast it"
                )
            form = StateForm.of(declared[name])
            parts.append(state_rows(frame, form, node.key_columns, clock_ms=self.clock_ms, what=what))
        assert key is not None
        rows = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)
        return _Operator(node, key, list(declared.values()), rows, timers)

    def _write(self, one: _Operator, *, dry_run: bool) -> WrittenStates:
        spec = BaseSpec(
            uri=self.layout.base(one.node.uid),
            base_id="" if dry_run else self.attempt.write_id,
            key_type=one.key.storage,
            states=tuple(one.states),
            max_parallelism=self.job.max_parallelism,
            clock_ms=self.clock_ms,
            watermark_ms=None,
        )
        where = f"job '{self.job.name}', operator '{one.node.uid}'"
        return write_states(self.spark, one.rows, spec, what=where, dry_run=dry_run)

    def _based(self, one: _Operator, written: WrittenStates) -> OperatorCheckpoint:
        groups = self.job.max_parallelism
        return OperatorCheckpoint(
            uid=one.node.uid,
            parallelism=self.job.parallelism_of(one.node),
            max_parallelism=groups,
            key_schema=str(one.key),
            states=one.states,
            changelog=[],
            bases=[BaseRange(0, groups - 1, self.attempt.write_id, 1)],
            changed_entries=0,
            key_type=one.key.declared_text,
            next_timers_ms=first_timers(one.timers, one.node.key_columns),
            base_files=written.files,
        )

    # -- sources ---------------------------------------------------------------------------------------------------

    def _positions(self, positions: Mapping[str, Any]) -> dict[str, list[Element]]:
        unknown = sorted(set(positions) - set(self.job.sources))
        if unknown:
            raise ConfigurationError(
                f"job '{self.job.name}' has no sources {unknown}; it has {sorted(self.job.sources)}"
            )
        found = {}
        for name, given in positions.items():
            try:
                found[name] = self.job.sources[name].source.consumed(self.spark, given)
            except ConfigurationError as error:
                raise type(error)(f"job '{self.job.name}', source '{name}': {error}") from None
        return found

    def _progress(self, name: str, elements: list[Element]) -> SourceProgress:
        source = self.job.sources[name].source
        return SourceProgress(name, source.empty_position(), source.position_text(elements), 0, None)

    def _report(
        self,
        written: Mapping[str, WrittenStates],
        elements: Mapping[str, list[Element]],
        lists: Sequence[GivenOperatorState],
        committed_id: int | None = None,
    ) -> BootstrapReport:
        sources = self.job.sources
        return BootstrapReport(
            job=self.job.name,
            entries={uid: one.entries for uid, one in written.items()},
            bytes=sum(f.bytes for one in written.values() for f in one.files),
            positions={n: sources[n].source.position_text(e) for n, e in elements.items()},
            from_the_beginning=sorted(set(sources) - set(elements)),
            committed_id=committed_id,
            operator_state={one.uid: one.counts for one in lists},
        )
