"""What one row of ``checkpoints`` stages for sinks, and what of it is published.

    staged_sinks(row)    the sinks that it lists, and its dead letters, which are published like a sink
    publications(row)    what it changes in sinks once it is committed: nothing on a branch

Dead letters are a sink of that name and kind. Their table moves with the root, so rows leave its path empty.
Decision 0030.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow, DataFile, StagedSink
from state_engine.core.checkpoints.sink_kind import SinkKind

DEAD_LETTERS = SinkKind.DEAD_LETTERS.value
"""Name and kind of the sink of refused rows, and name of its table; no other sink has it."""

SinkKey = tuple[str, str]
"""Name and path: where a job gave its sink another path, each table keeps what is its own."""


def dead_letters_sink(files: Sequence[DataFile] = ()) -> StagedSink:
    """Dead letters as the sink that they are published like."""
    return StagedSink(DEAD_LETTERS, DEAD_LETTERS, "", "", "", list(files))


def staged_sinks(row: CheckpointRow) -> list[StagedSink]:
    """All that a row stages, on whatever branch it is."""
    return [*row.sinks, dead_letters_sink(row.dead_letters)] if row.dead_letters else row.sinks


def publications(row: CheckpointRow) -> list[StagedSink]:
    """What a row changes in sinks once it is committed; nothing on the branch of a replay."""
    staged = staged_sinks(row) if row.branch == MAIN else []
    return [sink for sink in staged if sink.changes_sink]


def sink_key(staged: StagedSink) -> SinkKey:
    """Which sink of a row it is, wherever the root was when it was staged."""
    return staged.name, "" if staged.name == DEAD_LETTERS else staged.path


def without_sink(row: CheckpointRow, name: str) -> CheckpointRow:
    """A row as if it had staged nothing for a sink."""
    letters = [] if name == DEAD_LETTERS else row.dead_letters
    return replace(row, sinks=[sink for sink in row.sinks if sink.name != name], dead_letters=letters)


def withdrawing(row: CheckpointRow, stale: Sequence[StagedSink]) -> CheckpointRow:
    """A row that takes files out of sinks besides; dead letters come and go in one commit."""
    if not stale:
        return row
    sinks, letters = row.sinks, row.dead_letters
    if any(sink.name == DEAD_LETTERS for sink in stale):
        sinks, letters = staged_sinks(row), []
    return replace(row, sinks=with_withdrawn(sinks, stale), dead_letters=letters)


def with_withdrawn(sinks: Sequence[StagedSink], stale: Sequence[StagedSink]) -> list[StagedSink]:
    """What is staged for sinks, and what leaves them besides."""
    by_key = {sink_key(sink): sink for sink in sinks}
    for sink in stale:
        known = by_key.get(sink_key(sink), replace(sink, files=[], withdrawn=[]))
        by_key[sink_key(sink)] = replace(known, withdrawn=[*known.withdrawn, *sink.withdrawn])
    return list(by_key.values())
