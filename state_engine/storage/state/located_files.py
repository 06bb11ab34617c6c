"""Where the files lie that hold the keyed state of an operator as of a checkpoint.

Which these are is ``core.checkpoints.state_files``; here their places are added, for readers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.state_files import KeyedStateFile, keyed_state_files
from state_engine.core.errors import MissingFilesError
from state_engine.core.keys.key_arrays import key_groups_in
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.listed_files import Hashes, KeyGroups, ListedFile
from state_engine.storage.stores.files import join


@dataclass(frozen=True)
class StateFile:
    """A file of keyed state that the path lists.

    Attributes:
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
    """Files of an operator's state at the end of a path: those of bases, then changes, oldest first."""
    files = keyed_state_files(path, uid)
    if files.missing_bases:
        raise MissingFilesError(
            f"operator '{uid}': its state rests on the base {files.missing_bases[0]}, and no checkpoint on the "
            "path wrote it: the table of checkpoints is damaged. Restore a savepoint"
        )
    last = path[-1].operator(uid) if path else None
    max_parallelism = last.max_parallelism if last else 0
    base, changelog = layout.base(uid), layout.changelog(uid)
    return [
        *(_located(base, file, uid, max_parallelism) for file in files.base),
        *(_located(changelog, file, uid, max_parallelism) for file in files.changelog),
    ]


def files_holding(files: Sequence[StateFile], hashes: Hashes, max_parallelism: int) -> list[ListedFile]:
    """The files that may hold keys with these hashes: there is a base file a key group, and most hold none."""
    groups = key_groups_in(hashes, max_parallelism)
    return [f.listed for f in files if not f.is_base or f.key_group_min in groups]


def _located(directory: str, held: KeyedStateFile, uid: str, max_parallelism: int) -> StateFile:
    counts = None if held.counts is None else KeyGroups(max_parallelism, held.counts)
    of = f"checkpoint {held.checkpoint_id}, operator '{uid}'"
    listed = ListedFile.recorded(
        join(directory, held.file.path), held.file, of=of, counts=counts, max_parallelism=held.max_parallelism
    )
    return StateFile(listed, held.groups.start, held.groups.end, held.order)
