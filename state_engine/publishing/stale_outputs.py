"""Outputs of time partitions that a backfill left behind: published, and not on the head's path any more.

They are stale: readers see them until their partition is run again, whose commit takes them out.
"""

from __future__ import annotations

from collections.abc import Collection

from state_engine.core.checkpoints.checkpoint import CheckpointRow, StagedSink
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.row_outputs import withdrawing
from state_engine.core.checkpoints.sink_moves import kept_outputs
from state_engine.publishing.publication import Publication
from state_engine.publishing.sink_places import Declared


def stale_outputs(history: History, head_id: int | None) -> dict[int, list[StagedSink]]:
    """As ``kept_outputs``, for rows of partitions only: by the checkpoint that staged them, ready to be withdrawn."""
    if all(row.replaced_id is None for row in history.values()):
        return {}
    return {i: sinks for i, sinks in kept_outputs(history, head_id).items() if history[i].partition}


def stale_of(history: History, head_id: int | None, partitions: Collection[str]) -> list[StagedSink]:
    outputs = stale_outputs(history, head_id).items()
    return [sink for i, sinks in outputs if history[i].partition in partitions for sink in sinks]


def stale_beside(history: History, head_id: int | None, target_id: int) -> list[StagedSink]:
    """What is stale of the partitions that the path to ``target_id`` ran, for when the head moves there.

    What the path of the head shows is left out: whoever moves the head takes that along anyway.
    """
    old = history.ids_to(head_id)
    ran = {row.partition for row in history.path(target_id)}
    outputs = stale_outputs(history, target_id).items()
    return [sink for i, sinks in outputs if i not in old and history[i].partition in ran for sink in sinks]


def replacing_stale(
    row: CheckpointRow, history: History, publication: Publication, declared: Declared = None
) -> CheckpointRow:
    """The row of a micro-batch that takes the stale outputs of its partition out of the sinks of the job's code.

    In a sink that never lets go of outputs nothing is stale: what is there was kept by the policy of a restore, and a
    backfill that would leave stale outputs there was refused.
    """
    outputs = stale_of(history, row.parent_id, [row.partition])
    declared_ones = (sink for sink in outputs if publication.places.is_declared(sink, declared))
    stale = [sink for sink in declared_ones if publication.withdraws(sink)]
    if stale:
        publication.check_withdrawable(stale)
    return withdrawing(row, stale)
