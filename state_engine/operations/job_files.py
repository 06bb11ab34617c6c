"""``JobFiles``: finds every file of a job, in its own directories and in those of its sinks, for the collector.

    operators/*/changelog, operators/*/base, operator_state    tables of state
    checkpoints, dead_letters                                  tables in which every row stays
    exchange                                                   no table
    sinks/<sink>/<target>         what is staged for a database or a function
    a Delta sink                  the table's own level, and ``_statelake_staged`` in it
    a directory of a file sink    what is staged in it; published directories are its readers'

Hidden files, logs and the directories of savepoints are never looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow.fs as pafs

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.file_disposal import Place, StoredFile
from state_engine.core.checkpoints.row_outputs import DEAD_LETTERS
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.checkpoints.table_names import OPERATOR_STATE, OPERATORS, keyed_tables
from state_engine.core.checkpoints.write_ids import owner_mark
from state_engine.job.graph import SinkNode
from state_engine.job.job_tables import JobTables
from state_engine.sinks.delta import DeltaSink
from state_engine.sinks.file_moves import STAGED_PREFIX
from state_engine.sinks.files import FileSink
from state_engine.sinks.spark_writer import STAGED
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.stores import store_clock
from state_engine.storage.stores.files import join, open_location

_EXCHANGE, _CHECKPOINTS = "exchange", "checkpoints"


@dataclass(frozen=True)
class SinkPlace:
    """A sink of the job, as some checkpoint or the job itself knows it."""

    name: str
    kind: str
    path: str


def known_sinks(rows: Iterable[CheckpointRow], declared: Iterable[SinkNode] = ()) -> set[SinkPlace]:
    """All sinks that a job has or had, whose files bear an owner's mark.

    Args:
        declared: the job's sinks, which may have got files and no checkpoint yet.
    """
    sinks = {SinkPlace(staged.name, staged.kind, staged.path) for row in rows for staged in row.sinks}
    for node in declared:
        if isinstance(node.sink, DeltaSink | FileSink):
            sink = node.sink
            place = sink.location if isinstance(sink, DeltaSink) else sink.path
            sinks.add(SinkPlace(node.name, sink.kind, place))
    return {sink for sink in sinks if SinkKind(sink.kind).marks_files}


class JobFiles:
    """Looks at the directories of one job.

    Args:
        removed_since_ms: for a place, what left its log later than this may still be read; milliseconds since 1970.
    """

    def __init__(
        self,
        tables: JobTables,
        kernel: DeltaKernel,
        sinks: Iterable[SinkPlace],
        *,
        removed_since_ms: Callable[[str], int],
    ) -> None:
        self._directory, self._app, self._kernel = tables.layout.directory, tables.log.app, kernel
        self._sinks, self._since_ms = set(sinks), removed_since_ms

    def places(self) -> Iterator[Place]:
        for table in [*self.state_tables(), DEAD_LETTERS, _CHECKPOINTS, _EXCHANGE]:
            uri = self.uri(table)
            yield self._place(table, _under(uri), ours=table not in (DEAD_LETTERS, _CHECKPOINTS, _EXCHANGE))
        for path in sorted({sink.path for sink in self._sinks}):
            here = [sink for sink in self._sinks if sink.path == path]
            owners = frozenset(owner_mark(f"{self._app}/{sink.name}") for sink in here)
            if any(sink.kind == SinkKind.FILES for sink in here):
                files = _staged(path)
            else:
                files = _under(path, recursive=False) | _under(path, STAGED)
            yield self._place(path, files, owners=owners)
        for name in self._names("sinks"):
            for target in self._names("sinks", name):
                uri = join(self._directory, "sinks", name, target)
                yield self._place(uri, _under(uri), owners=frozenset([owner_mark(f"{self._app}/{name}")]))

    def uri(self, table: str) -> str:
        return table if "://" in table else join(self._directory, table)

    def state_tables(self) -> list[str]:
        directories = self._names(OPERATORS)
        return [*(t for name in directories for t in keyed_tables(f"{OPERATORS}/{name}")), OPERATOR_STATE]

    def vacuumed(self) -> list[str]:
        """URIs of the tables in which the log lists every file that is needed, so that VACUUM may run."""
        uris = [self.uri(table) for table in [*self.state_tables(), _CHECKPOINTS]]
        return [uri for uri in uris if self._kernel.exists(uri)]

    def _names(self, *inside: str) -> list[str]:
        at = open_location(join(self._directory, *inside))
        infos = at.listing(missing_ok=True)
        return sorted(info.base_name for info in infos if info.type == pafs.FileType.Directory)

    def _place(
        self,
        table: str,
        files: dict[str, StoredFile],
        *,
        owners: frozenset[str] | None = None,
        ours: bool = False,
    ) -> Place:
        uri = self.uri(table)
        # files first: what is listed by then and is not in the log afterwards was never, or is not any more
        active = frozenset(self._kernel.active_files(uri))
        if ours:  # what came since that, and what is gone; a log lists nothing that was not there before
            files |= _looked_up(uri, active - files.keys())
        return Place(table, files, active, DeltaLog(uri).removed_since(self._since_ms(table)), owners, ours)


def _looked_up(uri: str, paths: Iterable[str]) -> dict[str, StoredFile]:
    at, names = open_location(uri), sorted(paths)
    infos = at.fs.get_file_info([join(at.path, name) for name in names])
    both = zip(names, infos, strict=True)
    return {name: _file(info) for name, info in both if info.type == pafs.FileType.File}


def _file(info: pafs.FileInfo) -> StoredFile:
    return StoredFile(info.size, store_clock.written_ms(info))


def _under(uri: str, inside: str = "", *, recursive: bool = True) -> dict[str, StoredFile]:
    """The files under a directory in ``uri``, by path relative to ``uri``; hidden ones are left out."""
    at = open_location(uri)
    start = at.inside(inside) if inside else at
    files = {path: info for path, info in start.files(recursive=recursive).items() if not _hidden(path)}
    return {f"{inside}/{path}" if inside else path: _file(info) for path, info in files.items()}


def _staged(uri: str) -> dict[str, StoredFile]:
    at = open_location(uri)
    names = [name for name in at.names(missing_ok=True) if name.startswith(STAGED_PREFIX)]
    return {path: file for name in names for path, file in _under(uri, name).items()}


def _hidden(path: str) -> bool:
    return any(part.startswith(("_", ".")) for part in path.split("/"))
