"""Which changelog files hold the state of an operator as of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from state_engine.backends.delta.changelog import ListedFile
from state_engine.backends.delta.layout import JobLayout
from state_engine.backends.files import join
from state_engine.core.checkpoint import CheckpointRow
from state_engine.runtime.subtask_spec import StateFile


def state_files(layout: JobLayout, path: Sequence[CheckpointRow], uid: str) -> list[StateFile]:
    """Changelog files of an operator along a path, oldest first."""
    found = []
    for row in path:
        operator = row.operator(uid)
        for file in operator.changelog if operator else []:
            assert file.key_group_min is not None
            assert file.key_group_max is not None
            listed = ListedFile(join(layout.changelog(uid), file.path), file.rows)
            found.append(StateFile(listed, file.key_group_min, file.key_group_max))
    return found
