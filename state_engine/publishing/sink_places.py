"""``SinkPlaces``: where the sinks of one job are now, by which name it writes to them, and what a path changes in them.

Needs no session: for those who publish, and for those who only look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from state_engine.core.checkpoints.checkpoint import CheckpointRow, StagedSink
from state_engine.core.checkpoints.pending import PathChanges, last_of_sinks, path_changes
from state_engine.core.checkpoints.row_outputs import DEAD_LETTERS, SinkKey
from state_engine.job.job import StatefulJob
from state_engine.sinks.base import Sink
from state_engine.sinks.staging import Staging, located
from state_engine.state_tables.states import without_superseded
from state_engine.storage.layout import JobLayout

Declared = frozenset[SinkKey] | None
"""Name and path of the sinks of a job's code, see ``SinkPlaces.declared``; None where the code is not known."""


@dataclass(frozen=True)
class SinkPlaces:
    """The places of one job's sinks."""

    layout: JobLayout
    app: str

    def app_of(self, sink: str) -> str:
        return f"{self.app}/{sink}"

    def located(self, staged: StagedSink) -> StagedSink:
        return located(staged, self.layout)

    def declared(self, job: StatefulJob) -> frozenset[SinkKey]:
        """Name and path of the sinks and published tables of a job's code, and its dead letters."""
        tables = {(node.name, node.table.place) for node in job.published.values()}
        return frozenset({*self.sinks(job), *tables, (DEAD_LETTERS, self.layout.dead_letters)})

    def sinks(self, job: StatefulJob) -> dict[SinkKey, Sink]:
        """The sinks of a job's code, by name and path."""
        staging = Staging(self.layout.root)
        return {
            (node.name, node.sink.place(self.app_of(node.name), staging)): node.sink
            for node in job.sinks.values()
        }

    def is_declared(self, staged: StagedSink, declared: Declared) -> bool:
        """Whether a sink is one of the code's; every one is where the code is not known."""
        return declared is None or (staged.name, self.located(staged).path) in declared

    def changes(self, path: Sequence[CheckpointRow], declared: Declared) -> PathChanges:
        """What a path of ``main`` changes in sinks, but for those in whose place tables show states now."""
        return path_changes(without_superseded(path), declared=declared, locate=self.located)

    def left_alone(self, path: Sequence[CheckpointRow], declared: Declared) -> list[StagedSink]:
        """Sinks on a path of ``main`` that today's code does not have, each as it was changed last."""
        return [change.staged for change in self.changes(last_of_sinks(path), declared).left_alone()]
