"""Which checkpoints can be restored, as far as the names and sizes of files show: no file is opened.

A table is listed once, however many of its files are needed. What is inside the files is for ``job_audit``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.state_files import keyed_state_files, operator_state_files, position_files
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores.files import join, open_location


def needed_files(layout: JobLayout, path: Sequence[CheckpointRow]) -> Iterator[tuple[str, DataFile]]:
    """Directory and file of all that restoring the end of a path takes: keyed state, operator state, positions."""
    if not path:
        return
    for operator in path[-1].operators:
        files = keyed_state_files(path, operator.uid)
        yield from ((layout.base(operator.uid), held.file) for held in files.base)
        yield from ((layout.changelog(operator.uid), held.file) for held in files.changelog)
    yield from ((layout.operator_state, file) for file in position_files(path))
    for ref in path[-1].operator_state:
        yield from ((layout.operator_state, file) for file in operator_state_files(path, ref))


class PresentFiles:
    """The files of a job's tables that are there, with their sizes; each table is listed when it is first asked for."""

    def __init__(self, layout: JobLayout) -> None:
        self._layout = layout
        self._sizes: dict[str, dict[str, int]] = {}

    def missing(self, path: Sequence[CheckpointRow]) -> list[str]:
        """Files that restoring the end of a path takes and that are gone, or of another size than recorded."""
        return sorted(
            {
                join(table, file.path)
                for table, file in needed_files(self._layout, path)
                if self._in(table).get(file.path) != file.bytes
            }
        )

    def newest_restorable(self, history: History) -> int | None:
        """The newest checkpoint on the path of the head all of whose files are there; None for none."""
        for row in reversed(history.main_path):
            expired = row.checkpoint_id in history.expired
            if not expired and not self.missing(history.path(row.checkpoint_id)):
                return row.checkpoint_id
        return None

    def _in(self, table: str) -> dict[str, int]:
        if table not in self._sizes:
            self._sizes[table] = {name: info.size for name, info in open_location(table).files().items()}
        return self._sizes[table]
