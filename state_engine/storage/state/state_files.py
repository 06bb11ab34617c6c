"""Which files hold the keyed state of an operator as of a checkpoint, and for which key groups each of them counts.

For each range of key groups: the files of the base that the checkpoint names, then the changelog files of the path
after the checkpoint that the base stands for. Where the ranges have different bases, a changelog file may be in a base
for some of its key groups and not for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile, OperatorCheckpoint
from state_engine.core.errors import MissingFilesError
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.storage.files import join
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.changelog import KeyGroups, ListedFile


@dataclass(frozen=True)
class StateFile:
    """A file of keyed state that the path lists.

    Attributes:
        listed: where it is, and what of it counts.
        key_group_min, key_group_max: key groups inside.
        order: in which files are folded: 0 for a base, else the place of its checkpoint on the path, from 1.
    """

    listed: ListedFile
    key_group_min: int
    key_group_max: int
    order: int

    @property
    def is_base(self) -> bool:
        """Whether it holds the entries of one key group, and not changes."""
        return self.order == 0


def state_files(layout: JobLayout, path: Sequence[CheckpointRow], uid: str) -> list[StateFile]:
    """Files of an operator's state at the end of a path: those of bases, then changes, oldest first.

    Raises:
        MissingFilesError: the path does not hold the row that wrote a base.
    """
    last = path[-1].operator(uid) if path else None
    found = list(_base_files(layout, path, last)) if last else []
    for order, row in enumerate(path, 1):
        operator = row.operator(uid)
        for file in operator.changelog if operator else []:
            assert file.key_group_min is not None
            assert file.key_group_max is not None
            groups = KeyGroupRange(file.key_group_min, file.key_group_max)
            counts = None
            if last and last.bases:
                assert operator is not None
                if operator.max_parallelism != last.max_parallelism:  # its key groups were others
                    groups = KeyGroupRange(0, last.max_parallelism - 1)
                left = _not_in_bases(groups, last, row.checkpoint_id)
                if not left:
                    continue
                if left != (groups,):
                    counts, groups = (
                        KeyGroups(last.max_parallelism, left),
                        KeyGroupRange(left[0].start, left[-1].end),
                    )
            listed = ListedFile.recorded(
                join(layout.changelog(uid), file.path), file, of=_of(row, uid), counts=counts
            )
            found.append(StateFile(listed, groups.start, groups.end, order))
    return found


def remaining(groups: KeyGroupRange, taken: Iterable[KeyGroupRange]) -> tuple[KeyGroupRange, ...]:
    """What is left of a range of key groups without others.

    Example:
        >>> remaining(KeyGroupRange(0, 9), [KeyGroupRange(4, 5), KeyGroupRange(8, 20)])
        (KeyGroupRange(start=0, end=3), KeyGroupRange(start=6, end=7))
    """
    left, start = [], groups.start
    for one in sorted(taken, key=lambda r: r.start):
        if one.end < start or one.start > groups.end:
            continue
        if one.start > start:
            left.append(KeyGroupRange(start, one.start - 1))
        start = one.end + 1
    if start <= groups.end:
        left.append(KeyGroupRange(start, groups.end))
    return tuple(left)


def _base_files(
    layout: JobLayout, path: Sequence[CheckpointRow], last: OperatorCheckpoint
) -> Iterator[StateFile]:
    written: dict[str, tuple[str, list[DataFile]]] = {}
    for base in last.bases:
        if base.base_id not in written:
            row = next((r for r in path if r.write_id == base.base_id), None)
            operator = row.operator(last.uid) if row else None
            if operator is None:
                raise MissingFilesError(
                    f"operator '{last.uid}': its state rests on the base {base.base_id}, and no checkpoint on the "
                    "path wrote it: the table of checkpoints is damaged. Restore a savepoint"
                )
            assert row is not None
            written[base.base_id] = _of(row, last.uid), operator.base_files
        of, files = written[base.base_id]
        for file in files:
            assert file.key_group_min is not None
            if base.key_group_start <= file.key_group_min <= base.key_group_end:
                listed = ListedFile.recorded(join(layout.base(last.uid), file.path), file, of=of)
                yield StateFile(listed, file.key_group_min, file.key_group_min, 0)


def _of(row: CheckpointRow, uid: str) -> str:
    return f"checkpoint {row.checkpoint_id}, operator '{uid}'"


def _not_in_bases(
    groups: KeyGroupRange, operator: OperatorCheckpoint, checkpoint_id: int
) -> tuple[KeyGroupRange, ...]:
    """The key groups whose base, if there is any, stands for an earlier checkpoint. Ids grow along a path."""
    later = [b for b in operator.bases if b.checkpoint_id >= checkpoint_id]
    return remaining(groups, [KeyGroupRange(b.key_group_start, b.key_group_end) for b in later])
