"""``JobHistory``: what a job committed, published and has before it, read from its tables without Spark or Java.

For those who only look, often, and must not start a session for it: ``statelake status``, sensors, checks. Nothing is
kept between two looks, and nothing is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from state_engine.core.checkpoints.checkpoint import CheckpointRow, StagedSink
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.pending import PathChanges, in_order, last_of_sinks
from state_engine.core.checkpoints.row_outputs import SinkKey
from state_engine.core.errors import SourceError
from state_engine.job.job import StatefulJob
from state_engine.microbatch.dead_letters import DeadLetter, letters_of
from state_engine.monitoring.shown_tables import TableStatus, statuses
from state_engine.monitoring.source_lag import SourceLag, source_lag
from state_engine.publishing.publishers import seen_without_java
from state_engine.publishing.sink_places import SinkPlaces
from state_engine.sinks.delta import DeltaSink
from state_engine.sources.base import Element, Source
from state_engine.sources.changes.decoded_source import DecodedSource
from state_engine.sources.collection import CollectionSource
from state_engine.sources.delta import DeltaSource
from state_engine.sources.delta_position import location_in, positions_in
from state_engine.sources.file import FileSource
from state_engine.sources.source_positions import SourcePositions
from state_engine.spark.catalog import at_path, unknown_place
from state_engine.spark.no_spark import NO_SPARK
from state_engine.state_tables.delta import DeltaStateTable
from state_engine.state_tables.states import PublishedState, published_in, published_states
from state_engine.storage.committed_rows import committed_rows
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.layout import JobLayout


@dataclass(frozen=True)
class JobHistory:
    """The rows of one job as of one moment.

    Attributes:
        repeated: ids that more than one row bears, which must not be, and how many do.
    """

    layout: JobLayout
    root_id: str
    checkpoints: History
    repeated: Mapping[int, int] = field(default_factory=dict)

    @property
    def head(self) -> CheckpointRow | None:
        """The newest row of ``main``."""
        return self.checkpoints.head

    @property
    def path(self) -> list[CheckpointRow]:
        """From the first row to the head."""
        return self.checkpoints.main_path

    def unpublished(self, job: StatefulJob | None = None) -> list[tuple[CheckpointRow, StagedSink]]:
        """Outputs committed on the main path but not published, in order; of a job's sinks, if these are known."""
        shown = self._changes(job).shown(seen_without_java(self._places))
        return [(change.row, change.staged) for change in in_order(shown)]

    def left_alone(self, job: StatefulJob) -> dict[str, str]:
        """Sinks and published tables that the code of a job does not have any more, by name, and where they are."""
        there = self._at_known_places(job)
        left = self._places.left_alone(self.path, self._places.declared(there))
        tables = [one.key for row in last_of_sinks(self.path) for one in published_in(row)]
        shown = tables_of(there)
        return {one.name: one.path for one in left} | {k[0]: k[1] for k in tables if k not in shown}

    def tables(self, job: StatefulJob | None = None) -> list[TableStatus]:
        """What published tables show: those of a job's code, where that is known, or of the newest micro-batch."""
        code = tables_of(self._at_known_places(job)) if job is not None else {}
        states = published_states(self.checkpoints, code.keys() if job is not None else None)
        return statuses(self.checkpoints, [code.get(one.key, one) for one in states], self._places)

    def new_data(self, job: StatefulJob) -> dict[str, bool | None]:
        """Whether each source has data that no checkpoint consumed; None where only running it would show that."""
        positions = SourcePositions(self.layout.operator_state)
        return {
            name: has_new_data(node.source, positions.elements(self.path, name, node.source))
            for name, node in job.sources.items()
        }

    def behind(
        self, job: StatefulJob, new_data: Mapping[str, bool | None], *, now_ms: int
    ) -> dict[str, SourceLag]:
        """How much the sources have that no checkpoint read, of those that have new data."""
        positions = SourcePositions(self.layout.operator_state)
        sources = {name: job.sources[name].source for name, new in new_data.items() if new}
        return {
            name: source_lag(source, positions.elements(self.path, name, source), now_ms=now_ms)
            for name, source in sources.items()
        }

    def dead_letters(self, job: StatefulJob) -> list[DeadLetter]:
        """The dead letters on the head's path, oldest first, and whether the job's code could take them."""
        uri = self.layout.dead_letters
        table = DeltaLog(uri).newest() if any(row.dead_letters for row in self.path) else None
        if table is None:
            return []
        positions = SourcePositions(self.layout.operator_state)
        return letters_of(self.path, job, positions, uri=uri, active=table.files)

    def waiting(self, job: StatefulJob) -> list[str]:
        """Files before the sources that no batch reads yet, each with the source and the reason."""
        positions = SourcePositions(self.layout.operator_state)
        return positions.waiting(self.path, {n: node.source for n, node in job.sources.items()})

    @property
    def _places(self) -> SinkPlaces:
        return SinkPlaces(self.layout, f"{self.root_id}/{self.layout.job}")

    def _changes(self, job: StatefulJob | None) -> PathChanges:
        declared = self._places.declared(self._at_known_places(job)) if job is not None else None
        return self._places.changes(self.path, declared)

    def _at_known_places(self, job: StatefulJob) -> StatefulJob:
        """A job whose named sinks and tables are where the newest row has them: no catalog is asked."""
        known = {staged.name: staged.path for row in self.path for staged in row.sinks}

        def located(name: str, end: Any) -> Any:
            named = isinstance(end, DeltaSink | DeltaStateTable) and end.table
            return at_path(end, known.get(name, unknown_place(end.table))) if named else end

        there = copy(job)
        there.sinks = {n: replace(node, sink=located(n, node.sink)) for n, node in job.sinks.items()}
        there.published = {
            n: replace(node, table=located(n, node.table)) for n, node in job.published.items()
        }
        return there


def tables_of(job: StatefulJob) -> dict[SinkKey, PublishedState]:
    """The published tables of a job's code, by name and place."""
    return {node.recorded.key: node.recorded for node in job.published.values()}


def read_history(root: str, job: str) -> JobHistory | None:
    """The history of a job; None where it never ran there."""
    committed = committed_rows(root, job)
    if committed is None:
        return None
    often = Counter(row.checkpoint_id for row in committed.rows)
    repeated = {i: n for i, n in often.items() if n > 1}
    return JobHistory(committed.layout, committed.root_id, History(committed.rows), repeated)


def has_new_data(source: Source, elements: list[Element]) -> bool | None:
    """Whether a source has new data after a position; None where only running it would show that."""
    if isinstance(source, FileSource | CollectionSource):
        return source.plan(NO_SPARK, elements) is not None  # both look at what there is, without a session
    if isinstance(source, DecodedSource):
        return has_new_data(source.source, elements)
    if isinstance(source, DeltaSource):
        return _table_has_new_data(source, elements)
    return None


def _table_has_new_data(source: DeltaSource, elements: list[Element]) -> bool | None:
    at = source.path or (location_in(elements) if elements else "")
    log = DeltaLog(at) if at else None
    newest = log.newest() if log else None
    if log is None or newest is None:
        if source.table:
            return None  # only a session knows where the table is
        raise SourceError(f"{source.path} is not a Delta table: check the path, or create the table first")
    known = positions_in(elements)
    if not known:
        return True
    last = known[-1]
    if last.table != newest.table_id or last.files is not None:
        return True
    try:
        return any(log.commit(v).changes_data for v in range(last.version + 1, newest.version + 1))
    except FileNotFoundError:
        return True  # the source says what to do about it
