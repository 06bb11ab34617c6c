"""Where sinks are now: those of committed rows, wherever the root was when they were staged, and those of a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.checkpoints.sink_moves import DEAD_LETTERS, SinkKey
from state_engine.job.graph import SinkNode
from state_engine.sinks.staging import Staging
from state_engine.storage.layout import JobLayout


def located(staged: StagedSink, layout: JobLayout) -> StagedSink:
    """A sink of a row with the path that it has now: dead letters and staged outputs move with the root."""
    if staged.kind == DEAD_LETTERS:
        return replace(staged, path=layout.dead_letters)
    if SinkKind(staged.kind).is_staged_in_root:
        return replace(staged, path=Staging(layout.root).here(staged.path))
    return staged


def declared_sinks(sinks: Iterable[SinkNode], layout: JobLayout, app: str) -> frozenset[SinkKey]:
    """Name and path of the sinks of a job's code, and its dead letters.

    Args:
        app: application id of the job, ``<root id>/<job>``.
    """
    staging = Staging(layout.root)
    declared = {(node.name, node.sink.place(f"{app}/{node.name}", staging)) for node in sinks}
    return frozenset({*declared, (DEAD_LETTERS, layout.dead_letters)})
