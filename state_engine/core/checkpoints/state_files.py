"""Which files hold the state as of a checkpoint, by the rows of its path alone.

    keyed state       for each range of key groups: the files of the base that the checkpoint names, then the changes
                      on its path after the checkpoint that this base stands for
    operator state    the files of the attempts that the checkpoint points to
    positions         what micro-batches appended, since the last compaction that stated the positions whole

Readers open these files, the collector keeps them, and status, audit and the compaction policy count them. Where the
files lie is added outside, see ``storage.state.located_files``. Plays the part of the state handles in Flink's
``CompletedCheckpoint``. Decision 0002.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from state_engine.core.checkpoints.checkpoint import (
    BaseRange,
    CheckpointRow,
    DataFile,
    OperatorCheckpoint,
    OperatorStateRef,
)
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.keys.key_groups import KeyGroupRange, remaining
from state_engine.core.names import stored_name

# -- keyed state -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyedStateFile:
    """A file of keyed state that counts as of a checkpoint.

    Attributes:
        order: in which files are folded: 0 for a base, else the place of its checkpoint on the path, from 1.
        groups: key groups inside that may count, at the max parallelism of the checkpoint that is read.
        counts: the key groups for which it counts, where the others are in a base already; None for all inside.
        max_parallelism: by which the key groups inside were numbered when it was written; None for a base.
    """

    file: DataFile
    checkpoint_id: int
    order: int
    groups: KeyGroupRange
    counts: tuple[KeyGroupRange, ...] | None = None
    max_parallelism: int | None = None


@dataclass(frozen=True)
class KeyedStateFiles:
    """The files that hold the keyed state of an operator as of a checkpoint.

    Attributes:
        changelog: files of changes, oldest first.
        missing_bases: bases in force that no row of the path wrote: the table of checkpoints is damaged.
    """

    base: tuple[KeyedStateFile, ...] = ()
    changelog: tuple[KeyedStateFile, ...] = ()
    missing_bases: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[KeyedStateFile]:
        yield from self.base
        yield from self.changelog


def keyed_state_files(path: Sequence[CheckpointRow], uid: str) -> KeyedStateFiles:
    """The files that hold the keyed state of an operator at the end of a path; none where it has no state there.

    A checkpoint that does not know an operator holds no state of it. So an operator that left the job and came back
    begins with nothing, in place as from a savepoint of a checkpoint in between.

    Args:
        path: rows from the first checkpoint to the one that is read, oldest first.
    """
    last = path[-1].operator(uid) if path else None
    if last is None:
        return KeyedStateFiles()
    bases: dict[str, list[KeyedStateFile]] = {}
    changelog: list[KeyedStateFile] = []
    all_based_until = _all_based_until(last)
    wanted = {base.base_id for base in last.bases}
    for order in range(len(path), 0, -1):
        row = path[order - 1]
        operator = row.operator(uid)
        # a base that nothing has changed since stands for later checkpoints than the row that wrote it
        in_bases = row.checkpoint_id <= all_based_until
        if operator is None or (in_bases and wanted <= bases.keys()):
            break
        if row.write_id in wanted:
            bases[row.write_id] = [
                KeyedStateFile(file, row.checkpoint_id, 0, _inside(file, last))
                for file in operator.base_files
            ]
        if not in_bases:
            changelog += reversed(list(_counting(row, operator, last, order)))
    return KeyedStateFiles(
        tuple(file for base in last.bases for file in bases.get(base.base_id, []) if _is_in(file, base)),
        tuple(reversed(changelog)),
        tuple(dict.fromkeys(base.base_id for base in last.bases if base.base_id not in bases)),
    )


def _all_based_until(operator: OperatorCheckpoint) -> int:
    """The newest checkpoint whose changes the bases hold in all key groups; 0 for none."""
    if remaining(KeyGroupRange(0, operator.max_parallelism - 1), map(_range, operator.bases)):
        return 0
    return min(base.checkpoint_id for base in operator.bases)


def _is_in(file: KeyedStateFile, base: BaseRange) -> bool:
    """A file of a base holds one key group; of each base only its own range counts."""
    return base.key_group_start <= file.groups.start <= base.key_group_end


def _counting(
    row: CheckpointRow, operator: OperatorCheckpoint, last: OperatorCheckpoint, order: int
) -> Iterator[KeyedStateFile]:
    """The files of changes of one row that are not in bases altogether. Ids grow along a path."""
    later = [_range(base) for base in last.bases if base.checkpoint_id >= row.checkpoint_id]
    for file in operator.changelog:
        groups = _inside(file, last)
        if operator.max_parallelism != last.max_parallelism:  # its key groups were others
            groups = KeyGroupRange(0, last.max_parallelism - 1)
        left = remaining(groups, later)
        if left == (groups,):
            yield KeyedStateFile(file, row.checkpoint_id, order, groups, None, operator.max_parallelism)
        elif left:
            span = KeyGroupRange(left[0].start, left[-1].end)
            yield KeyedStateFile(file, row.checkpoint_id, order, span, left, operator.max_parallelism)


def _inside(file: DataFile, last: OperatorCheckpoint) -> KeyGroupRange:
    """The key groups in a file; all where none are recorded."""
    if file.key_group_min is None or file.key_group_max is None:
        return KeyGroupRange(0, last.max_parallelism - 1)
    return KeyGroupRange(file.key_group_min, file.key_group_max)


def _range(base: BaseRange) -> KeyGroupRange:
    return KeyGroupRange(base.key_group_start, base.key_group_end)


# -- operator state and positions --------------------------------------------------------------------------------------

Pointer = tuple[str, str]
"""Stored name of an operator, and the attempt that wrote lists of its state."""


def pointers(refs: Iterable[OperatorStateRef]) -> set[Pointer]:
    """What the operator state of checkpoints points to."""
    return {(stored_name(ref.operator), write_id) for ref in refs for write_id in ref.write_ids()}


def is_pointed_to(file: DataFile, pointed: set[Pointer]) -> bool:
    """Whether a file of the table of operator state holds lists that any of these points to."""
    return (operator_of(file), write_id_of(file)) in pointed


def operator_state_files(path: Iterable[CheckpointRow], ref: OperatorStateRef) -> list[DataFile]:
    """The files on a path that hold elements of an operator's state, as its ``ref`` points to them, oldest first."""
    pointed = pointers([ref])
    return [file for row in path for file in row.operator_state_files if is_pointed_to(file, pointed)]


def position_files(path: Sequence[CheckpointRow]) -> list[DataFile]:
    """The files that hold the positions of sources at the end of a path, oldest first.

    Micro-batches append to positions; a compaction may state them whole, and what is before it does not count then.
    """
    newest_first: list[DataFile] = []
    for row in reversed(path):
        own = [file for file in row.operator_state_files if operator_of(file) is None]
        newest_first += reversed(own)
        if own and row.kind is CheckpointKind.COMPACTION:
            break
    return newest_first[::-1]


def operator_of(file: DataFile) -> str | None:
    """The operator, as its name is stored, whose state a file of the table of operator state holds.

    None for source positions.

    Example:
        >>> operator_of(DataFile("write_id=w/part-00000-w-0.counter.parquet", 1, 1, 0))
        'counter'
    """
    parts = file.path.rsplit("/", 1)[-1].split(".")
    return parts[1] if len(parts) == 3 else None


def write_id_of(file: DataFile) -> str:
    """The attempt that wrote a file of the table of operator state.

    Example:
        >>> write_id_of(DataFile("write_id=w/part-00000-w-0.counter.parquet", 1, 1, 0))
        'w'
    """
    return file.path.split("/", 1)[0].removeprefix("write_id=")
