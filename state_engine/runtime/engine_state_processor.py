"""``EngineStateProcessor``: state that no micro-batch made: begin a job with given state, transform it, forget keys.

Each call looks the job up, and leaves the work to the module of its name. Mirrors Flink's State Processor API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column

from state_engine.backends.delta.layout import JobLayout
from state_engine.core.errors import ConfigurationError
from state_engine.runtime.bootstrap import Bootstrap, BootstrapReport, States
from state_engine.runtime.engine_base import Clock, EngineBase, clock_of, job_name, requester
from state_engine.runtime.job import StatefulJob
from state_engine.runtime.operations import Operations
from state_engine.runtime.state_transform import Keys, Map, StateTransform, TransformReport


class EngineStateProcessor(EngineBase):
    """See ``StateEngine``."""

    def bootstrap(
        self,
        job: StatefulJob,
        states: Mapping[str, States],
        *,
        positions: Mapping[str, Any] | None = None,
        clock: Clock = None,
        dry_run: bool = False,
        requested_by: str | None = None,
    ) -> BootstrapReport:
        """Begin a job that never ran with keyed state from DataFrames.

        A DataFrame has the key columns, ``map_key`` for a map, and ``value`` or the fields of a record as columns of
        their own; of a list it has one row an element, in the order of ``position`` if there is one, or whole lists.
        With a time to live, ``updated_at`` (milliseconds or a timestamp) says when an entry was last accessed.

        Args:
            states: by operator, DataFrames by state: ``{"planes": {"last_flight": df}}``. Where a function declares a
                state only as it runs, its descriptor stands in place of its name.
            positions: by source, what the state holds of it already: of a ``FileSource`` ``"all"`` files that are there
                now, or paths and patterns; of a ``DeltaSource`` ``"all"`` or the last version; of a collection how many
                elements. A source that is not named is read from its beginning.
            clock: processing time of the first row, in milliseconds.
            dry_run: check everything, and tell what would be written.

        Raises:
            ConfigurationError: the job ran already; or there is no such operator, state or source; or a column or a
                type is not the declared one; or a key has two values.
            InvalidKeyError, ValueTypeError: a key or a value cannot be one; names an example.

        Example::

            engine.bootstrap(job, {"planes": {"last_flight": df}}, positions={"flights": "all"}, dry_run=True)
        """
        job.check()
        if self._has_rows(job.name):
            raise ConfigurationError(
                f"job '{job.name}' has checkpoints in {self.root} already: state is given to a job before its first "
                "run. Use another job name, or transform_state to change what is there"
            )
        layout = JobLayout(self.root, job.name)
        found = Bootstrap(self.spark, layout, job, clock_of(clock)(), requested_by or requester())
        if dry_run:
            return found.planned(states, positions or {})
        return found.run(states, positions or {}, tables=self._open(job.name), kernel=self.kernel)

    def transform_state(
        self,
        job: StatefulJob | str,
        operator: str,
        state: str | None = None,
        *,
        map: Map | None = None,
        filter: Column | str | None = None,
        delete_keys: Keys | None = None,
        dry_run: bool = False,
        requested_by: str | None = None,
    ) -> TransformReport:
        """Change keyed state without any input, as a checkpoint upon the head; sources and sinks stay where they are.

        The DataFrame of a state has the key columns as they are stored, ``map_key`` for a map, ``value``, and with a
        time to live ``updated_at``; what has expired is in it, too. Timers of keys without any state left go with them.
        Replays do not reach back over it; restoring its parent undoes it.

        Args:
            state: name; None with ``delete_keys`` for all states and timers.
            map: gives a DataFrame with the same columns from the state's: other values, other keys, more or fewer rows.
            filter: column or SQL text: which entries stay.
            delete_keys: a DataFrame with the key columns, or keys: bare values, tuples, or dicts by column.
            dry_run: only tell what would change.

        Raises:
            ConfigurationError: not exactly one of the three; no such operator or state; columns are not the same.
            InvalidKeyError, ValueTypeError: a key or a value cannot be one.
            StaleParentError: the job went on meanwhile; nothing was done.

        Example::

            engine.transform_state(job, "planes", "seen", filter="tailnum NOT LIKE 'TEST%'", dry_run=True)
        """
        given = {"map": map, "filter": filter, "delete_keys": delete_keys}
        chosen = [name for name, one in given.items() if one is not None]
        if len(chosen) != 1:
            raise ConfigurationError(
                f"transform_state takes one of map, filter and delete_keys, not {chosen or 'none'}"
            )
        found = self._transform(job, dry_run, requested_by)
        if delete_keys is not None:
            return found.without_keys({operator: delete_keys}, state)
        if state is None:
            raise ConfigurationError(f"transform_state needs the name of a state for {chosen[0]}")
        return found.one_state(operator, state, map=map, filter=filter)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _transform(self, job: StatefulJob | str, dry_run: bool, requested_by: str | None) -> StateTransform:
        name = job_name(job)
        tables = self._ran(name)
        operations = Operations(
            name,
            tables=tables,
            publication=self._publication(tables),
            requested_by=requested_by or requester(),
        )
        return StateTransform(name, tables, self.kernel, operations, self.spark, dry_run)

    def _has_rows(self, name: str) -> bool:
        """Whether a job has any checkpoint."""
        tables = self._existing(name)
        return tables is not None and bool(tables.store.load())
