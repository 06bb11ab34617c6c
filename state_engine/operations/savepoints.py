"""``Savepoints``: self-contained copies of checkpoints, which can be moved and restored into another root or job.

    <directory>/operators/<uid>/base_id=…/key_group=…/*.parquet   keyed state, folded, one sorted file a key group
    <directory>/operator_state/write_id=…/*.parquet               operator state and source positions
    <directory>/savepoint.json                                    manifest with the checkpoint's row and checksums

The checkpoint is pinned by a committed row before it is copied, so retention cannot take it away meanwhile, and micro-
batches go on. The manifest is written last: a directory without one is no savepoint. Mirrors Flink's savepoints in
canonical format and ``state.savepoints.dir``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256

from pyspark.sql import SparkSession

from state_engine.core.checkpoints.checkpoint import (
    BaseRange,
    CheckpointRow,
    DataFile,
    OperatorCheckpoint,
    OperatorStateRef,
)
from state_engine.core.checkpoints.dead_letters import without_letters
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.savepoint_manifest import SavepointFile, SavepointManifest, parse_manifest
from state_engine.core.checkpoints.state_files import operator_state_files
from state_engine.core.checkpoints.table_names import operator_directory
from state_engine.core.errors import ConfigurationError, MissingFilesError, StatelakeError
from state_engine.job.job_tables import JobTables
from state_engine.operations.compaction import write_base
from state_engine.operations.maintenance import Maintenance
from state_engine.publishing.publication import Publication
from state_engine.publishing.sink_places import Declared
from state_engine.sources.source_positions import SourcePositions
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.state.operator_state_files import copy_state
from state_engine.storage.stores.files import is_local, join, local_path, normal_uri, open_location, sync_uris
from state_engine.storage.stores.in_threads import in_threads

MANIFEST = "savepoint.json"


@dataclass(frozen=True)
class SavepointReport:
    """Description of a stored savepoint.

    Attributes:
        name: of the savepoint.
        path: its directory.
        checkpoint_id: what it is a copy of.
        files, bytes: how much it holds.
    """

    name: str
    path: str
    checkpoint_id: int
    files: int
    bytes: int


class Savepoints:
    """Savepoints of one job.

    Args:
        publication: publishes the head before it is copied, so that its outputs are not left to the old root.
    """

    def __init__(
        self,
        *,
        kernel: DeltaKernel,
        tables: JobTables,
        positions: SourcePositions,
        spark: SparkSession,
        maintenance: Maintenance,
        publication: Publication,
        declared: Declared = None,
    ) -> None:
        self._tables, self._spark, self._declared, self._kernel = tables, spark, declared, kernel
        self._maintenance, self._publication, self._positions = maintenance, publication, positions

    def create(self, name: str, path: str, *, checkpoint_id: int | None = None) -> SavepointReport:
        """Pin a checkpoint, copy it, and write the manifest; see ``JobSavepoints.create``."""
        if not is_empty(path):
            raise ConfigurationError(
                f"{path} is not empty: choose another directory for the savepoint '{name}'"
            )
        self._publication.publish_pending(self._tables.log.load().main_path, self._declared)
        row = self._maintenance.pin(name, path=path, checkpoint_id=checkpoint_id)
        copy_id = self._tables.clock.attempt().write_id
        try:
            manifest = self._copy(name, path, row, copy_id)
            sync_uris([join(path, file.path) for file in manifest.files], below=path)
            write_text(self._kernel, join(path, MANIFEST), manifest.to_text())
        except BaseException:
            _delete_copy(path, copy_id)
            self._maintenance.unpin(name)
            raise
        return described(path, manifest)

    def delete(self, name: str, *, keep_files: bool = False, dry_run: bool = False) -> list[str]:
        """Delete the files of a savepoint, if it is still where it was made, and let its checkpoint go; those files."""
        history = self._tables.log.load()
        known = history.pins
        if name not in known:
            raise ConfigurationError(f"there is no savepoint '{name}'; there are {sorted(known)}")
        path = known[name].path
        files: list[str] = []
        if not keep_files and (manifest := self._manifest_to_delete(name, path, history)) is not None:
            files = [*(f.path for f in manifest.files), MANIFEST]
        if not dry_run:
            _delete_files(path, files)
            self._maintenance.unpin(name)
        return [join(path, file) for file in files]

    def _manifest_to_delete(self, name: str, path: str, history: History) -> SavepointManifest | None:
        if is_empty(path):
            return None
        what = f"nothing was deleted: {path} is where savepoint '{name}' was made, and now"
        way_out = (
            "Look at it; then let the checkpoint go without touching files (keep_files=True, --keep-files)"
        )
        try:
            manifest = read_manifest(path)
            manifest.check_form()
        except StatelakeError as error:
            raise ConfigurationError(
                f"{what} it holds no savepoint that can be read ({error}). {way_out}"
            ) from error
        own = history[history.pins[name].checkpoint_id]
        if manifest.name != name or manifest.checkpoint.write_id != own.write_id:
            raise ConfigurationError(
                f"{what} it holds savepoint '{manifest.name}' of job '{manifest.job}', checkpoint "
                f"{manifest.checkpoint.checkpoint_id}. {way_out}"
            )
        return manifest

    # -- copying ---------------------------------------------------------------------------------------------------

    def _copy(self, name: str, path: str, row: CheckpointRow, copy_id: str) -> SavepointManifest:
        on_path = self._tables.log.history.path(row.checkpoint_id)
        row = without_letters(row)
        operators = [self._copy_keyed(o, on_path, path, copy_id) for o in row.operators]
        refs, files = self._copy_operator_state(row, on_path, join(path, "operator_state"), copy_id)
        copied = replace(
            row,
            operators=operators,
            operator_state=refs,
            operator_state_files=files,
            sinks=[],
            dead_letters=[],
        )
        listed = [join(operator_directory(o.uid), f.path) for o in operators for f in o.base_files]
        listed += [join("operator_state", f.path) for f in files]
        return SavepointManifest(name, row.job, datetime.now(UTC), copied, list(checksums(path, listed)))

    def _copy_keyed(
        self, operator: OperatorCheckpoint, on_path: list[CheckpointRow], path: str, copy_id: str
    ) -> OperatorCheckpoint:
        written = write_base(
            self._spark,
            self._tables.layout,
            on_path,
            operator.uid,
            base_id=copy_id,
            savepoint=join(path, operator_directory(operator.uid)),
        )
        whole = BaseRange(0, operator.max_parallelism - 1, copy_id, on_path[-1].checkpoint_id)
        return replace(operator.unwritten(), bases=[whole], base_files=written.files)

    def _copy_operator_state(
        self, row: CheckpointRow, on_path: list[CheckpointRow], into: str, copy_id: str
    ) -> tuple[list[OperatorStateRef], list[DataFile]]:
        refs, files, positions = [], list[DataFile](), {}
        for ref in row.operator_state:
            if ref.operator in {s.name for s in row.sources}:
                positions[ref.operator] = self._positions.elements(on_path, ref.operator)
                refs.append(OperatorStateRef(ref.operator, copy_id, len(positions[ref.operator])))
                continue
            uri = self._tables.layout.operator_state
            copied, written = copy_state(
                ref, operator_state_files(on_path, ref), uri=uri, into=into, write_id=copy_id
            )
            refs.append(copied)
            files += written
        if any(positions.values()):
            files.append(SourcePositions(into).write(copy_id, positions))
        return refs, files


def savepoint_of(tables: JobTables | None, wanted: str | os.PathLike[str]) -> int | SavepointManifest:
    """What a savepoint is to a job: one of its own checkpoints, or else a copy to import, verified.

    Args:
        tables: of the job; None where it never ran.
    """
    history = tables.log.load() if tables else History()
    known = history.pins
    if str(wanted) in known:
        return known[str(wanted)].checkpoint_id
    path = normal_uri(wanted)
    manifest = verified(path)
    own = known.get(manifest.name)
    if own is not None and history[own.checkpoint_id].write_id == manifest.checkpoint.write_id:
        return own.checkpoint_id
    if history:
        raise ConfigurationError(
            f"{path} is a savepoint of job '{manifest.job}' elsewhere, and this job has checkpoints already: restore "
            "it under another job name, or into another root"
        )
    return manifest


def described(path: str, manifest: SavepointManifest) -> SavepointReport:
    size = sum(f.bytes for f in manifest.files)
    return SavepointReport(manifest.name, path, manifest.checkpoint.checkpoint_id, len(manifest.files), size)


def verified(path: str) -> SavepointManifest:
    """The manifest of the savepoint in a directory, all of whose files are what was written."""
    manifest = read_manifest(path)
    manifest.check_form()
    _refuse_links(path, [MANIFEST, *(f.path for f in manifest.files)])
    manifest.verify(checksums(path, [f.path for f in manifest.files]))
    return manifest


def read_manifest(path: str) -> SavepointManifest:
    """The manifest of the savepoint in a directory; for errors see ``verified``."""
    where = join(path, MANIFEST)
    at = open_location(where)
    try:
        text = at.read().decode()
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFilesError(
            f"{path} holds no savepoint: there is no {MANIFEST}. Either it is another directory, or the savepoint was "
            "not finished; take another one"
        ) from None
    return parse_manifest(text, where=where)


def _delete_copy(path: str, copy_id: str) -> None:
    """Delete what one attempt has copied to a directory, the manifest first, and nothing that another one has."""
    manifest = open_location(join(path, MANIFEST))
    with suppress(FileNotFoundError, NotADirectoryError):
        if copy_id.encode() in manifest.read():
            manifest.delete()
    _delete_files(path, [file for file in open_location(path).files() if copy_id in file])


def _delete_files(path: str, files: Iterable[str]) -> None:
    """Delete files below a directory, one after the other, and then the directories that are empty."""
    at, folders = open_location(path), set[str]()
    for file in files:
        with suppress(FileNotFoundError):
            at.inside(file).delete()
        parts = file.split("/")[:-1]
        folders |= {"/".join(parts[:n]) for n in range(len(parts) + 1)}
    for folder in sorted(folders, key=len, reverse=True):
        with suppress(OSError):  # a store without directories
            inside = at.inside(folder) if folder else at
            if not inside.listing(missing_ok=True):
                inside.delete_directory()


def is_empty(path: str) -> bool:
    """Whether no file is in a directory, or there is none; an attempt that failed may have left directories."""
    return not open_location(path).files()


def _refuse_links(path: str, files: Iterable[str]) -> None:
    """Raise MissingFilesError where a file, or a directory on the way to it, is a link to somewhere else."""
    if not is_local(path):
        return
    top = local_path(path)
    places = {
        top.joinpath(*parts[:n]) for f in files if (parts := f.split("/")) for n in range(1, len(parts) + 1)
    }
    links = sorted(str(place) for place in places if place.is_symlink())
    if links:
        raise MissingFilesError(
            f"{path} is not a savepoint as it was written: {', '.join(links[:3])} is a link. Nothing was restored. "
            "Copy the savepoint with the files themselves"
        )


def checksums(path: str, files: Iterable[str]) -> Iterator[SavepointFile]:
    """Size and SHA-256 of files below a directory; those that are missing are left out."""

    def one(file: str) -> SavepointFile | None:
        at, digest, size = open_location(join(path, file)), sha256(), 0
        try:
            with at.reading() as stream:
                while chunk := stream.read(1 << 20):
                    digest.update(chunk)
                    size += len(chunk)
        except FileNotFoundError:
            return None
        return SavepointFile(file, size, digest.hexdigest())

    yield from (f for f in in_threads(one, files) if f is not None)


def write_text(kernel: DeltaKernel, uri: str, text: str) -> None:
    """Write a small file, whole or not at all, unless there is one."""
    open_location(uri).above().make_directory()
    if not kernel.write_new(uri, text):
        raise ConfigurationError(f"{uri} was made by somebody else meanwhile: choose another directory")
