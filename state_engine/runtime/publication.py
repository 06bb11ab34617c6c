"""``Publication``: makes the outputs of committed checkpoints visible, in order, each exactly once.

Works from the rows of ``checkpoints`` alone, so that any runner can finish what another one began. Branches other than
``main`` never publish: what they staged becomes visible when a row of ``main`` promotes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from state_engine.backends.delta.kernel import DeltaKernel
from state_engine.core.checkpoint import MAIN, CheckpointRow, StagedSink
from state_engine.core.errors import SinkError
from state_engine.core.sink_moves import DEAD_LETTERS
from state_engine.runtime.dead_letters import DeadLetterPublisher
from state_engine.runtime.job_tables import JobTables
from state_engine.runtime.sinks.base import Publisher
from state_engine.runtime.sinks.delta import DeltaPublisher
from state_engine.runtime.sinks.delta_spark import SparkDeltaPublisher
from state_engine.runtime.sinks.files import FilePublisher
from state_engine.runtime.sinks.foreach_batch import FOREACH_KIND, ForeachBatchPublisher
from state_engine.runtime.sinks.spark_writer import SPARK_KIND
from state_engine.runtime.sinks.sql import SqlPublisher
from state_engine.runtime.sinks.sql_target import SQL_KIND
from state_engine.runtime.sinks.staging import Staging


class Publication:
    """Publishes what a job's checkpoints staged.

    Args:
        kernel: commits.
        tables: the job's tables.
    """

    def __init__(self, kernel: DeltaKernel, tables: JobTables) -> None:
        self._tables = tables
        staging = Staging(tables.layout.root)
        self._publishers: dict[str, Publisher] = {
            "delta": DeltaPublisher(kernel),
            SPARK_KIND: SparkDeltaPublisher(kernel),
            "files": FilePublisher(),
            SQL_KIND: SqlPublisher(staging),
            FOREACH_KIND: ForeachBatchPublisher(kernel, staging),
            DEAD_LETTERS: DeadLetterPublisher(kernel, tables),
        }
        self._published: int | None = None
        self._known: set[str] = set()

    def settle(self, path: Sequence[CheckpointRow]) -> list[int]:
        """Publish what the sinks have not seen of a path of ``main``; ids of the rows that had something.

        Raises:
            SinkIdentityError: what a sink has seen under the id of a row is not that row's.
            SinkError: a sink cannot take the outputs any more.
        """
        if not path or path[-1].checkpoint_id == self._published:
            return []
        changes = list(self._with_seen(path))
        if self._published is None:  # later it is known who published
            # ids alone prove nothing: the newest that a sink has seen must stand for the row's own files
            newest = {(s.name, s.path): (row, s) for row, s, seen in changes if seen}
            for row, staged in newest.values():
                self._publishers[staged.kind].check_seen(staged, self.app(staged.name), row.checkpoint_id)
        settled: set[int] = set()
        for row, staged in ((row, staged) for row, staged, seen in changes if not seen):
            self._publish(staged, row.checkpoint_id)
            settled.add(row.checkpoint_id)
        self._published = path[-1].checkpoint_id
        return sorted(settled)

    def settle_what_can_be(self, path: Sequence[CheckpointRow]) -> list[tuple[CheckpointRow, StagedSink]]:
        """Publish what the sinks take of a path; what they refuse, and what comes after that in the same sink."""
        refused: list[tuple[CheckpointRow, StagedSink]] = []
        for row, staged in self.unpublished(path):
            if any(staged.path == other.path for _, other in refused):
                refused.append((row, staged))
                continue
            try:
                self._publish(staged, row.checkpoint_id)
            except SinkError:
                refused.append((row, staged))
        return refused

    def unpublished(self, path: Sequence[CheckpointRow]) -> Iterator[tuple[CheckpointRow, StagedSink]]:
        """What the sinks have not seen of a path of ``main``, in order, with the row that changes it."""
        yield from ((row, staged) for row, staged, seen in self._with_seen(path) if not seen)

    def _with_seen(self, path: Sequence[CheckpointRow]) -> Iterator[tuple[CheckpointRow, StagedSink, bool]]:
        """What a path changes in sinks, in order, and whether each of them has seen it."""
        highest: dict[tuple[str, str], int] = {}
        for row in path:
            for staged in self.staged(row):
                at = (staged.name, staged.path)
                if at not in highest:
                    highest[at] = self._publishers[staged.kind].seen(staged.path, self.app(staged.name))
                    if highest[at]:
                        self._known.add(staged.name)
                yield row, staged, row.checkpoint_id <= highest[at]

    def publish(self, row: CheckpointRow) -> int:
        """Publish a row whose parent is published; the number of Delta commits. Does nothing on a branch."""
        commits = 0
        for staged in self.staged(row):
            self._publish(staged, row.checkpoint_id)
            commits += staged.kind in ("delta", SPARK_KIND, DEAD_LETTERS)
        if row.branch == MAIN:
            self._published = row.checkpoint_id
        return commits

    def check_withdrawable(self, sinks: Sequence[StagedSink]) -> None:
        """Refuse changes of outputs that could not be published once they are committed; see ``Publisher``."""
        for one in map(self._located, sinks):
            self._publishers[one.kind].check_withdrawable(one)

    def staged(self, row: CheckpointRow) -> Iterator[StagedSink]:
        """Everything that a row changes in sinks; dead letters are published like a sink."""
        if row.branch != MAIN:
            return
        yield from (self._located(one) for one in row.sinks if one.files or one.withdrawn)
        if row.dead_letters:
            uri = self._tables.layout.dead_letters
            yield StagedSink(DEAD_LETTERS, DEAD_LETTERS, uri, row.write_id, "", row.dead_letters)

    def knows(self, sink: str) -> bool:
        """Whether the sink of a name was found to hold something of this job, when its path was settled."""
        return sink in self._known

    def app(self, sink: str) -> str:
        """Application id of the transactions in a sink."""
        return f"{self._tables.store.app}/{sink}"

    def _located(self, staged: StagedSink) -> StagedSink:
        """Dead letters are in the job's own table, wherever the root is now."""
        uri = self._tables.layout.dead_letters
        return replace(staged, path=uri) if staged.kind == DEAD_LETTERS else staged

    def _publish(self, staged: StagedSink, checkpoint_id: int) -> None:
        self._publishers[staged.kind].publish(staged, self.app(staged.name), checkpoint_id)
