"""Which key groups a compaction has to write again, so that its cost follows what changed and not what is there.

A key group is written where a change lies on its base, where it has no base yet, where entries of its base have
expired, or where the states were others when its base was written. The bases of the others go on to stand for the
compacted checkpoint as they are. Decided by the hashes in the files of changes, and by the statistics in the footers
of base files; no value is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint
from state_engine.core.keys.key_arrays import key_groups_in
from state_engine.core.keys.key_groups import KeyGroupRange, remaining
from state_engine.core.state.ttl import cleaned_until_us
from state_engine.storage.state.listed_files import open_state_file
from state_engine.storage.state.located_files import StateFile
from state_engine.storage.stores.in_threads import in_threads

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = "updated_at"
_MOST_RANGES = 256
"""More pieces of bases than these are not worth their place in the rows of checkpoints."""


def groups_to_write(
    path: Sequence[CheckpointRow], operator: OperatorCheckpoint, files: Sequence[StateFile]
) -> list[KeyGroupRange]:
    """The key groups of a new base, as ranges in order; empty where nothing is to be done."""
    everything = KeyGroupRange(0, operator.max_parallelism - 1)
    bases = [(KeyGroupRange(b.key_group_start, b.key_group_end), b.base_id) for b in operator.bases]
    wanted = {g for r in remaining(everything, [own for own, _ in bases]) for g in r}
    for own, base_id in bases:
        wrote = next((row.operator(operator.uid) for row in path if row.write_id == base_id), None)
        if wrote is None or wrote.states != operator.states:
            wanted |= set(own)
    changes = [f for f in files if not f.is_base]
    for changed in in_threads(partial(_changed, max_parallelism=operator.max_parallelism), changes):
        wanted |= changed
    if (until_us := _cleaned_until_us(path[-1], operator)) is not None:
        kept = [f for f in files if f.is_base and f.key_group_min not in wanted]
        for file, oldest_us in zip(kept, in_threads(_oldest_us, kept), strict=True):
            if oldest_us is not None and oldest_us <= until_us:
                wanted.add(file.key_group_min)
    ranges = as_ranges(sorted(wanted))
    return ranges if len(ranges) <= _MOST_RANGES else [everything]


def as_ranges(groups: Sequence[int]) -> list[KeyGroupRange]:
    """Key groups in ascending order as ranges.

    Example:
        >>> [(r.start, r.end) for r in as_ranges([1, 2, 3, 7])]
        [(1, 3), (7, 7)]
    """
    if not groups:
        return []
    last = [g for g, after in pairwise([*groups, groups[-1] + 2]) if after != g + 1]
    first = [g for before, g in pairwise([groups[0] - 2, *groups]) if g != before + 1]
    return list(map(KeyGroupRange, first, last))


def _cleaned_until_us(row: CheckpointRow, operator: OperatorCheckpoint) -> int | None:
    """Of all states the latest: where several live differently long, a key group is written once too often."""
    limits = (
        cleaned_until_us(state.ttl, clock_ms=row.clock_ms, watermark_ms=row.watermark_of(operator.uid))
        for state in operator.states
    )
    return max((us for us in limits if us is not None), default=None)


def _changed(file: StateFile, max_parallelism: int) -> set[int]:
    """The key groups that a file of changes holds something of that is in no base."""
    hashes = open_state_file(file.listed).read(columns=["key_hash"])["key_hash"].to_numpy()
    if file.listed.counts is not None:
        hashes = hashes[file.listed.counts.hold(hashes)]
    return key_groups_in(hashes, max_parallelism)


def _oldest_us(file: StateFile) -> int | None:
    """The oldest time of an entry or element in a file of a base, in microseconds; None where there are no times."""
    metadata = open_state_file(file.listed).metadata
    oldest: list[int] = []
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            if column.path_in_schema.rsplit(".", 1)[-1] != _TIME:
                continue
            statistics = column.statistics
            if statistics is not None and statistics.has_min_max:
                oldest.append((statistics.min - _EPOCH) // timedelta(microseconds=1))
            elif statistics is None or statistics.null_count < column.num_values:
                oldest.append(-(2**63))  # nobody knows: as if there were something old
    return min(oldest, default=None)
