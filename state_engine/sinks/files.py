"""``FileSink``: outputs as Parquet or CSV files, one directory a checkpoint, exactly once.

Subtasks write into ``_staged-<write_id>``, which readers skip; publishing brings the files that the checkpoint lists
together in a directory that readers skip as well, and renames that one to ``checkpoint_id=<id>``: one atomic step on
local file systems and HDFS, see ``file_moves``. Readers that know partitions see ``checkpoint_id`` as a column: the
checkpoint that published the rows. A consumer may move published directories away. Outputs of a path that the head
leaves are renamed back. Object stores cannot rename a directory atomically and are refused. Mirrors Flink's
``FileSink``. Decision 0004.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import DataFile, StagedSink
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.checkpoints.write_ids import owner_mark
from state_engine.core.errors import ConfigurationError, SinkError, SinkIdentityError
from state_engine.core.types.spark_types import spark_schema
from state_engine.sinks.base import (
    Publisher,
    Sink,
    SinkRequest,
    SinkTarget,
    check_shown,
    verify_files,
    write_ids,
)
from state_engine.sinks.file_moves import (
    PUBLISHED,
    STAGED_PREFIX,
    Mover,
    attempt_of,
    base_name,
    check_published_files,
    hide_strays,
    is_waiting,
    moves_of,
    names_in,
    newest_published,
    noted,
)
from state_engine.sinks.spark_writer import note_of
from state_engine.sinks.staging import Staging
from state_engine.storage.delta.locks import table_lock
from state_engine.storage.durability import Durability
from state_engine.storage.files import Location, join, normal_uri, open_location

_IDENTITY = "_statelake_sink.json"
_RENAMES = ("file", "hdfs", "viewfs", "abfs", "abfss")


@dataclass(frozen=True)
class FileSink(Sink):
    """A directory of Parquet or CSV files.

    Args:
        path: local path or URI of the directory.
        format: ``parquet`` or ``csv`` (with a header line).
    """

    path: str
    format: Literal["parquet", "csv"] = "parquet"
    kind = SinkKind.FILES.value

    def __post_init__(self) -> None:
        if self.format not in ("parquet", "csv"):
            raise ConfigurationError(f"FileSink cannot write format '{self.format}'; use parquet or csv")
        object.__setattr__(self, "path", normal_uri(self.path))
        scheme = self.path.split(":")[0]
        if scheme not in _RENAMES:
            raise ConfigurationError(
                f"FileSink needs an atomic rename, which {scheme}:// has not: use a DeltaSink for {self.path}"
            )

    def place(self, app: str, staging: Staging) -> str:
        return self.path

    def prepare(self, request: SinkRequest) -> SinkTarget:
        nested = [f.name for f in request.schema if pa.types.is_nested(f.type)]
        if self.format == "csv" and nested:
            raise SinkError(
                f"sink '{request.name}': CSV cannot hold the nested columns {nested}; use format='parquet'"
            )
        return SinkTarget(
            name=request.name,
            kind=self.kind,
            uri=self.path,
            identity=_identity(self.path, request.app, root=request.staging.root),
            schema=request.schema,
            schema_text=json.dumps(spark_schema(request.schema)),
            directory=join(self.path, f"{STAGED_PREFIX}{request.write_id}"),
            owner=owner_mark(request.app),
            format=self.format,
        )


def published_directory(checkpoint_id: int) -> str:
    """Name of the directory with the outputs of a checkpoint.

    Example:
        >>> published_directory(7)
        'checkpoint_id=000000000007'
    """
    return f"{PUBLISHED}{checkpoint_id:012d}"


class FilePublisher(Publisher):
    """Publishes by renaming a directory with the listed files.

    Args:
        durability: whether each step waits for the disk before the one that rests on it.
    """

    def __init__(self, durability: Durability = "sync") -> None:
        self._durability: Durability = durability

    def seen(self, uri: str, app: str) -> int:
        at = open_location(uri)
        return newest_published(at, names_in(at))

    def _publish(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        _same_directory(staged)
        at, final = open_location(staged.path), published_directory(checkpoint_id)
        mover = Mover(at, staged, checkpoint_id=checkpoint_id, final=final, durability=self._durability)
        with table_lock(staged.path):
            names = names_in(at)
            if staged.withdrawn or len({_home(f) for f in staged.files}) > 1:
                _move_once(at, staged, checkpoint_id, mover, names)
            elif not _is_published(at, staged, checkpoint_id, names):
                mover.publish(newest_published(at, names), names)

    def check_seen(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        _same_directory(staged)
        # outputs that somebody deleted since are no matter: only others in their place are
        at, final = open_location(staged.path), published_directory(checkpoint_id)
        with table_lock(staged.path):
            _is_published(at, staged, checkpoint_id, names_in(at))
        sizes = {join(final, base_name(file)): file.bytes for file in staged.files}
        check_shown(staged, sizes, checkpoint_id=checkpoint_id)

    def check_identity(self, staged: StagedSink) -> None:
        with table_lock(staged.path):
            _same_directory(staged)

    def check_withdrawable(self, staged: StagedSink) -> None:
        _same_directory(staged)
        verify_files(staged.path, staged.files, what=f"sink '{staged.name}'")
        check_published_files(open_location(staged.path), staged)


def _home(file: DataFile) -> str:
    """The directory that a file was staged in."""
    return file.path.split("/", 1)[0]


def _is_published(at: Location, staged: StagedSink, checkpoint_id: int, names: Sequence[str]) -> bool:
    """Whether a row was published, be it that a later one withdrew it, or a consumer has moved it away.

    Raises:
        SinkIdentityError: another row of that number was, or a later one without this.
    """
    final = published_directory(checkpoint_id)
    inside = names_in(at, final) if final in names else []
    later = [m for m in moves_of(at, names) if m.checkpoint_id > checkpoint_id]
    known = {*inside, *(name for m in later for name in m.withdrawn)}
    note = noted(at, checkpoint_id)
    if {base_name(f) for f in staged.files} <= known:
        hide_strays(at, final, staged.files, inside)
        return True
    if note is not None and note.files == note_of(staged):
        return True
    if note is not None or any(attempt_of(name) not in (None, *write_ids(staged.files)) for name in inside):
        conflict = f"{final} holds other files than"
    elif final not in names and newest_published(at, names) <= checkpoint_id:
        return False
    elif is_waiting(at, staged) or later:
        conflict = "was moved on by a later one before what"
    else:
        return True
    raise SinkIdentityError(
        f"sink '{staged.name}': {staged.path}/{conflict} checkpoint {checkpoint_id} staged: another root writes "
        "here. Give each its own directory"
    )


def _move_once(
    at: Location, staged: StagedSink, checkpoint_id: int, mover: Mover, names: Sequence[str]
) -> None:
    begun = mover.begun(moves_of(at, names))
    if begun is None:
        if newest_published(at, names) >= checkpoint_id:
            raise SinkIdentityError(
                f"sink '{staged.name}': {staged.path} already holds rows of checkpoint {checkpoint_id} or a later one: "
                "another root writes here. Give each its own directory"
            )
        verify_files(staged.path, staged.files, what=f"sink '{staged.name}', checkpoint {checkpoint_id}")
        check_published_files(at, staged)
        mover.begin()
    if begun is None or not begun.done:
        mover.finish()


def _same_directory(staged: StagedSink) -> None:
    identity = _read_identity(staged.path)
    if identity is None or identity["id"] != staged.identity:
        raise SinkIdentityError(
            f"sink '{staged.name}': {staged.path} was deleted or re-created since rows were staged for it. "
            "Put the old directory back, or restore the checkpoint's parent"
        )


def _identity(uri: str, app: str, *, root: str) -> str:
    """The id of the directory, which is the application's from now on if it is nobody's.

    Raises:
        SinkIdentityError: it is the sink of another application.
    """
    with table_lock(uri):
        identity = _read_identity(uri)
        if identity is None or (identity["app"] != app and _is_abandoned(uri, identity, app, root)):
            identity = {"id": uuid4().hex, "app": app, "root": root}
            open_location(join(uri, _IDENTITY)).write_whole(json.dumps(identity).encode())
    if identity["app"] != app:
        raise SinkIdentityError(
            f"{uri} is the sink of '{identity['app']}', not of '{app}': give each its own directory. If the other one "
            "is gone for good, empty this one"
        )
    return identity["id"]


def _is_abandoned(uri: str, identity: dict[str, str], app: str, root: str) -> bool:
    """Whether the first batch of the application that began here failed, and left nothing that it may still publish.

    Files that it has staged may be of a checkpoint that waits to be published; those of a root that another one took
    the place of are not: nobody can publish them any more.
    """
    if "root" not in identity:  # of a version that did not note what it has published
        return False
    at = open_location(uri)
    # a crash may have left one of ours half written, under a longer name
    names = [name for name in names_in(at) if not name.startswith((_IDENTITY, "."))]
    if any(not name.startswith(STAGED_PREFIX) for name in names):
        return False
    replaced = identity["root"] == root and identity["app"].partition("/")[0] != app.partition("/")[0]
    return replaced or not any(names_in(at, name) for name in names)


def _read_identity(uri: str) -> dict[str, str] | None:
    at = open_location(join(uri, _IDENTITY))
    if not at.is_file():
        return None
    identity: dict[str, str] = at.read_json()
    return identity
