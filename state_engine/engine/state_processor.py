"""``StateProcessor``: state that no micro-batch made: begin a job with given state, transform it, erase keys.

Each call looks the job up, and leaves the work to the module of its name.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame

from state_engine.core.errors import ConfigurationError
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.types.type_information import TypeLike
from state_engine.engine.arguments import Clock, clock_of, code_of, job_name, requester
from state_engine.engine.context import EngineContext
from state_engine.engine.guard import guarded
from state_engine.job.job import StatefulJob
from state_engine.microbatch.planning import check_clock
from state_engine.operations.file_collector import ORPHAN_AGE
from state_engine.state_processor.bootstrap import Bootstrap, BootstrapReport, Given, States
from state_engine.state_processor.bootstrap_operator_state import Elements
from state_engine.state_processor.bootstrap_timers import Timers
from state_engine.state_processor.erase import EraseReport, Erasure, Purge
from state_engine.state_processor.erase_tables import KeysOfTables
from state_engine.state_processor.key_change import KeyTypeChange, KeyTypeReport, known_key
from state_engine.state_processor.key_conversion import Convert
from state_engine.state_processor.key_traces import Key, KeyTraces
from state_engine.state_processor.operator_drop import OperatorDropReport, drop_operators
from state_engine.state_processor.spark_state_reader import SparkQuery, SparkState
from state_engine.state_processor.state_transform import Keys, Map, StateTransform, TransformReport
from state_engine.storage.layout import JobLayout


@guarded
class StateProcessor:
    """Changes what a job remembers without a micro-batch; from ``StateEngine.state_processor``.

    Mirrors Flink's State Processor API.
    """

    def __init__(self, context: EngineContext, job: StatefulJob | str) -> None:
        job_name(job)  # refuses what is neither a job nor a name
        self.context, self._job = context, job

    def bootstrap(
        self,
        states: Mapping[str, States],
        *,
        timers: Mapping[str, Timers] | None = None,
        operator_state: Mapping[str, Elements] | None = None,
        positions: Mapping[str, object] | None = None,
        clock: Clock = None,
        accept_clock: bool = False,
        dry_run: bool = False,
        requested_by: str | None = None,
    ) -> BootstrapReport:
        """Begin a job that never ran with keyed state and timers from DataFrames, and with operator state.

        A DataFrame has the key columns, ``map_key`` for a map, and ``value`` or the fields of a record as columns of
        their own; of a list it has one row an element, in the order of ``position`` if there is one, or whole lists.
        With a time to live, ``updated_at`` (milliseconds or a timestamp) says when an entry was last accessed.

        Args:
            states: by operator, DataFrames by state: ``{"planes": {"last_flight": df}}``. Where a function declares a
                state only as it runs, give its descriptor instead of its name.
            timers: by operator, DataFrames of ``event`` and ``processing`` timers: the columns of the key, and the time
                in milliseconds or as a timestamp.
            operator_state: by operator, elements by state: a sequence of a list, a dict of a broadcast state, whose
                ``MapStateDescriptor`` is given instead of its name; ``list_checkpointed`` is that of a
                ``ListCheckpointed``. They are handed out as after a restore.
            positions: by source, what the state holds of it already: of a ``FileSource`` ``"all"`` files that are there
                now, or paths and patterns; of a ``DeltaSource`` ``"all"`` or the last version; of a collection how many
                elements. A source that is not named is read from its beginning.
            clock: processing time of the first row, in milliseconds.
            accept_clock: the clock is right, even if it is further ahead of this machine's than ``max_clock_jump``.
            dry_run: check everything, and report what would be written.

        Raises:
            ConfigurationError: the job ran already; or there is no such operator, state or source; or a column or a
                type is not the declared one; or a key has two values.
            InvalidKeyError, ValueTypeError: a key or a value cannot be one; names an example.
            SetupError: the clock jumps, see ``accept_clock``.

        Example::

            processor = engine.state_processor(job)
            processor.bootstrap({"planes": {"last_flight": df}}, positions={"flights": "all"}, dry_run=True)
        """
        job = code_of(self._job, "bootstrap")
        job.check()
        if self._has_rows(job.name):
            raise ConfigurationError(
                f"job '{job.name}' already has checkpoints in {self.context.root}: give a job state before its "
                "first run. Use another job name, or transform_state to change the existing state"
            )
        layout, clock_ms = JobLayout(self.context.root, job.name), clock_of(clock)()
        if not accept_clock:
            check_clock(job, clock_ms, None)
        bootstrap = Bootstrap(self.context.spark, layout, job, clock_ms, requested_by or requester())
        given = Given(states, timers or {}, operator_state or {}, positions or {})
        if dry_run:
            return bootstrap.planned(given)
        tables = self.context.tables(job.name)
        return bootstrap.run(given, tables=tables, positions=self.context.positions(job.name))

    def bootstrap_from_spark(
        self,
        operator: str,
        checkpoint_location: str | os.PathLike[str],
        states: Mapping[str, SparkState] | Mapping[StateDescriptor, SparkState],
        *,
        positions: Mapping[str, object] | None = None,
        clock: Clock = None,
        accept_clock: bool = False,
        dry_run: bool = False,
        requested_by: str | None = None,
    ) -> BootstrapReport:
        """Begin a job with the state and the source positions of a Structured Streaming query, which must be stopped.

        State is that of the query's last committed batch. Files and Delta versions that it had consumed by then are put
        down as consumed; sources are matched in the order in which job and query have them.

        Args:
            operator: whose state it becomes.
            checkpoint_location: of the query.
            states: by name or descriptor, which state of the query, and by which columns.
            positions: of sources whose offsets are of another kind, in the terms of ``bootstrap``.
            clock, accept_clock, dry_run: as for ``bootstrap``.

        Raises:
            ConfigurationError: there is no such state, or an offset says nothing to the job's source; and as for
                ``bootstrap``.

        Example::

            processor = engine.state_processor(job)
            processor.bootstrap_from_spark("planes", "/queries/planes", {"count": SparkState("count")})
        """
        job = code_of(self._job, "bootstrap_from_spark")
        query = SparkQuery.at(self.context.spark, os.fspath(checkpoint_location))
        if operator not in job.operators:
            raise ConfigurationError(
                f"job '{job.name}' has no operator '{operator}'; it has {sorted(job.operators)}"
            )
        names = job.operators[operator].key_columns
        frames: dict[Any, DataFrame] = {
            state: query.state(
                wanted, names, what=f"job '{job.name}', operator '{operator}', state {state!r}"
            )
            for state, wanted in states.items()
        }
        consumed = query.positions({n: node.source for n, node in job.sources.items()}, positions or {})
        return self.bootstrap(
            {operator: frames}, positions=consumed, clock=clock, accept_clock=accept_clock, dry_run=dry_run,
            requested_by=requested_by,
        )  # fmt: skip

    def transform_state(
        self,
        operator: str,
        state: str | None = None,
        *,
        map: Map | None = None,
        filter: Column | str | None = None,
        delete_keys: Keys | None = None,
        dry_run: bool = False,
        requested_by: str | None = None,
    ) -> TransformReport:
        """Change keyed state without any input, as a checkpoint after the head; sources and sinks stay where they are.

        The DataFrame of a state has the key columns as they are stored, ``map_key`` for a map, ``value``, and with a
        time to live ``updated_at``; what has expired is in it, too. Timers of keys without any state left go with them.
        Replays do not reach back over it; restoring its parent undoes it.

        Args:
            state: name; None with ``delete_keys`` for all states and timers.
            map: gives a DataFrame with the same columns from the state's: other values, other keys, more or fewer rows.
            filter: column or SQL text: which entries stay.
            delete_keys: a DataFrame with the key columns, or keys: as functions see them, or dicts by column.
            dry_run: only report what would change.

        Raises:
            ConfigurationError: not exactly one of the three; no such operator or state; columns are not the same.
            InvalidKeyError, ValueTypeError: a key or a value cannot be one.
            StaleParentError: the job went on meanwhile; nothing was done.

        Example::

            processor = engine.state_processor(job)
            processor.transform_state("planes", "seen", filter="tailnum NOT LIKE 'TEST%'", dry_run=True)
        """
        given = {"map": map, "filter": filter, "delete_keys": delete_keys}
        chosen = [name for name, one in given.items() if one is not None]
        if len(chosen) != 1:
            raise ConfigurationError(
                f"transform_state takes one of map, filter and delete_keys, not {chosen or 'none'}"
            )
        transform = self._transform(dry_run, requested_by)
        if delete_keys is not None:
            return transform.without_keys({operator: delete_keys}, state)
        if state is None:
            raise ConfigurationError(f"transform_state needs the name of a state for {chosen[0]}")
        return transform.one_state(operator, state, map=map, filter=filter)

    def change_key_type(
        self,
        operator: str,
        *,
        code: StatefulJob | None = None,
        convert: Convert | None = None,
        key_type: TypeLike | None = None,
        dry_run: bool = False,
        requested_by: str | None = None,
    ) -> KeyTypeReport:
        """Give the keyed state and the timers of an operator the key that the job's code of today declares.

        All of it is rewritten, as a checkpoint after the head: new hashes, new key groups; values and times stay what
        they are. Code of the old key goes on from the checkpoint before, once that is restored; replays do not reach
        back over it. Keys that only became wider (``int`` to ``bigint``) are stored as before, and nothing is done.

        Args:
            code: the job of today's code; by default the job that this processor is of.
            convert: makes the new key, as today's code declares it, of an old one, as it is stored: scalars, or tuples
                of several columns. By default they are cast, as far as nothing can be lost: numbers to wider ones, and
                numbers, dates and booleans to text.
            key_type: of today's key, such as ``"day string"``, where sources have no input that shows it.
            dry_run: check everything, and report how much would be written.

        Raises:
            ConfigurationError: two keys would become one, with examples; a cast could lose something; no such operator.
            InvalidKeyError: a key cannot be one of the new type, or ``convert`` failed; names it.
            StaleParentError: the job went on meanwhile; nothing was done.

        Example::

            processor = engine.state_processor(job)
            processor.change_key_type("planes", convert=lambda tailnum: tailnum.upper(), dry_run=True)
        """
        code = code_of(self._job if code is None else code, "change_key_type")
        name = job_name(self._job)
        if operator not in code.operators:
            raise ConfigurationError(
                f"job '{name}' has no operator '{operator}'; it has {sorted(code.operators)}"
            )
        operations, tables = self.context.operations(self._job, requested_by), self.context.ran(name)
        declared = known_key(self.context.spark, code, code.operators[operator], key_type)
        change = KeyTypeChange(name, tables, self.context.kernel, operations, self.context.spark, dry_run)
        return change.run(operator, declared, convert)

    def drop_operators(
        self, *operators: str, dry_run: bool = False, requested_by: str | None = None
    ) -> OperatorDropReport:
        """Let operators leave the job, with their keyed state, timers and operator state.

        A run refuses a checkpoint with state of an operator that the job does not have. Take the operator out of the
        code, and drop it here: one row on top of the head, which no longer knows it. Restoring the head before brings
        it back; replays do not reach back over the row. Tables that show its states stay as they are.

        Args:
            operators: uids.
            dry_run: only report what would leave.

        Raises:
            ConfigurationError: the head holds no such operator, or the job's code still has it.
            StaleParentError: the job went on meanwhile; nothing was done.

        Example::

            engine.state_processor(job).drop_operators("old_totals", dry_run=True)
        """
        in_code = [] if isinstance(self._job, str) else list(self._job.operators)
        operations = self.context.operations(self._job, requested_by)
        self.context.ran(job_name(self._job))
        return drop_operators(operators, job_name(self._job), operations, in_code=in_code, dry_run=dry_run)

    def erase_keys(
        self,
        keys: Key | Sequence[Key],
        *,
        operator: str | None = None,
        dry_run: bool = False,
        purge: bool = False,
        drop_branches: Collection[str] = (),
        sinks: bool = False,
        clock: Clock = None,
        requested_by: str | None = None,
    ) -> EraseReport:
        """Erase keys from all states and timers of all operators that are keyed by these columns.

        Tables that show states of these operators lose their rows, and the files of their newest version that held
        any, also one that a deletion vector hides, are rewritten without. Where this breaks off, call it again. Local
        copies of the job's state on this machine are deleted; other machines do so at their next micro-batch of the job
        after a compaction.

        The report names what else still holds them: older checkpoints, branches, savepoints, dead letters, sinks, and
        older versions of the tables, with the time until which these keep them.

        Args:
            keys: values by column of the key: ``{"tailnum": "N123"}``; or several.
            operator: only this one.
            dry_run: only report.
            purge: go on: compact, expire the checkpoints that would bring the keys back, delete dead letters, vacuum.
                Files go from the disk two days later at the earliest; purge or vacuum again by then.
            drop_branches: with ``purge``, replays to drop.
            sinks: with ``purge``, delete rows from Delta sinks that have all these columns, too. A restore to before
                the deletion can then withdraw outputs only from sinks with lineage.
            clock: gives the time for the vacuum, in milliseconds since 1970; None for the storage's own.

        Raises:
            ConfigurationError: no operator is keyed so, or there is no such branch.
            InvalidKeyError: a key cannot be one.
            StaleParentError: the job went on meanwhile; nothing was done.
        """
        if dry_run and purge:
            raise ConfigurationError(
                "erase_keys takes either dry_run or purge: a dry run reports what a purge would do"
            )
        if not purge and (drop_branches or sinks):
            raise ConfigurationError("erase_keys drops branches and deletes from sinks only with purge=True")
        name = job_name(self._job)
        tables, layout = self.context.ran(name), JobLayout(self.context.root, name)
        collector = self.context.collector(self._job, requested_by)
        erasure = Erasure(
            traces=lambda rows: KeyTraces(name, layout, rows, self.context.spark, self.context.kernel),
            transform=self._transform(dry_run, requested_by),
            tables=KeysOfTables(
                self.context.publication(tables).tables, self.context.declared(tables, self._job)
            ),
            operations=self.context.operations(self._job, requested_by),
            compact=self.context.maintenance(self._job, requested_by).compact,
            vacuum=lambda now_ms: collector.collect(orphan_age=ORPHAN_AGE, now_ms=now_ms),
            load=tables.log.load,
        )
        now_ms = tables.clock.now_ms() if purge and clock is None else clock_of(clock)()
        wanted = Purge(tuple(drop_branches), sinks, now_ms) if purge else None
        try:
            return erasure.erase(
                [keys] if isinstance(keys, dict) else list(keys), operator=operator, purge=wanted
            )
        finally:
            if not dry_run:
                self.context.local_copies.drop(layout)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _transform(self, dry_run: bool, requested_by: str | None) -> StateTransform:
        name = job_name(self._job)
        operations = self.context.operations(self._job, requested_by)
        return StateTransform(name, self.context.ran(name), operations, self.context.spark, dry_run)

    def _has_rows(self, name: str) -> bool:
        tables = self.context.existing(name)
        return tables is not None and bool(tables.log.load())
