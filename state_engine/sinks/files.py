"""``FileSink``: outputs as Parquet or CSV files, one directory a checkpoint, exactly once.

Subtasks write into ``_staged-<write_id>``, which readers skip; publishing brings the files that the checkpoint lists
together in a directory that readers skip as well, and renames that one to ``checkpoint_id=<id>``: one atomic step on
local file systems and HDFS, see ``file_moves``. Readers that know partitions see ``checkpoint_id`` as a column: the
checkpoint that published the rows. A consumer may move published directories away. Outputs of a path that the head
leaves are renamed back. Runners keep out of each other's way as ``file_owner`` says. Object stores cannot rename a
directory atomically and are refused. Mirrors Flink's ``FileSink``. Decision 0004.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import DataFile, StagedSink
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.checkpoints.write_ids import owner_mark
from state_engine.core.errors import ConfigurationError, SinkIdentityError
from state_engine.core.types.ddl import ddl_text
from state_engine.core.types.spark_types import spark_schema
from state_engine.sinks.base import (
    DROP_ROWS,
    MAKE_AGAIN,
    Publisher,
    Sink,
    SinkRequest,
    SinkTarget,
    check_shown,
    verify_files,
    write_ids,
)
from state_engine.sinks.file_moves import (
    CHECKPOINT_ID,
    PUBLISHED,
    STAGED_PREFIX,
    Mover,
    attempt_of,
    base_name,
    check_published_files,
    is_waiting,
    moves_of,
    names_in,
    newest_published,
    noted,
)
from state_engine.sinks.file_owner import Look, WriteNew, as_owner, looking
from state_engine.sinks.row_rules import DecodedByPython, NotNull, RowRule
from state_engine.sinks.spark_writer import note_of
from state_engine.sinks.staging import Staging
from state_engine.storage.stores.durability import Durability
from state_engine.storage.stores.files import is_local, join, normal_uri, open_location
from state_engine.storage.stores.locks import table_lock

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
                f"FileSink needs an atomic rename, which {scheme}:// does not have: use a DeltaSink for {self.path}"
            )

    def check_columns(self, columns: pa.Schema, *, name: str) -> None:
        hidden = [column for column in columns.names if column.lower() == CHECKPOINT_ID]
        if hidden:
            raise ConfigurationError(
                f"sink '{name}': readers take the column '{CHECKPOINT_ID}' from the names of the directories of a "
                f"FileSink, so that nobody would see the output's own {hidden}: rename it in a map or transform before"
            )
        without_text = [f"'{one.name}' ({ddl_text(one.type)})" for one in columns if not _has_text(one.type)]
        if self.format == "csv" and without_text:
            raise ConfigurationError(
                f"sink '{name}': CSV has no text for values of {', '.join(without_text)}: use format='parquet', or "
                "convert them in a map or transform before, binary by base64 and nested ones by to_json"
            )

    def place(self, app: str, staging: Staging) -> str:
        return self.path

    def prepare(self, request: SinkRequest) -> SinkTarget:
        return SinkTarget(
            name=request.name,
            kind=self.kind,
            uri=self.path,
            identity=_identity(self.path, request),
            schema=request.schema,
            schema_text=json.dumps(spark_schema(request.schema)),
            directory=join(self.path, f"{STAGED_PREFIX}{request.write_id}"),
            owner=owner_mark(request.app),
            format=self.format,
            rules=_csv_rules(request.schema) if self.format == "csv" else (),
        )


class PrivateFileSink(FileSink):
    """A directory whose files only the engine itself reads, one by one."""

    def check_columns(self, columns: pa.Schema, *, name: str) -> None:
        """Any will do."""


@dataclass(frozen=True)
class NotAlone(NotNull):
    """A line of CSV with nothing in it is no record."""

    says = "readers of CSV pass over a blank line: add a column, or use format='parquet'"


def _csv_rules(schema: pa.Schema) -> tuple[RowRule, ...]:
    """What lines of CSV cannot say."""
    alone = [NotAlone(schema.names[0])] if len(schema) == 1 else []
    return (DecodedByPython(), *alone)


def _has_text(kind: pa.DataType) -> bool:
    """Whether CSV holds every value of a type, so that a ``FileSource`` reads it back."""
    p = pa.types
    flat = (
        p.is_string,
        p.is_boolean,
        p.is_integer,
        p.is_floating,
        p.is_decimal,
        p.is_date,
        p.is_timestamp,
        p.is_null,
    )
    return any(is_of(kind) for is_of in flat)


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
        write_new: creates the first owner of a sink, elsewhere than on a local disk.
    """

    def __init__(self, durability: Durability = "sync", write_new: WriteNew | None = None) -> None:
        self._durability: Durability = durability
        self._write_new = write_new

    def seen(self, uri: str, app: str) -> int:
        return looking(open_location(uri), newest_published)

    def _publish(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        def publish(look: Look) -> None:
            _same_directory(staged)
            mover = self._mover(look, staged, checkpoint_id)
            if staged.withdrawn or len({_home(f) for f in staged.files}) > 1:
                _move_once(look, staged, checkpoint_id, mover)
            elif not _is_published(look, staged, checkpoint_id):
                mover.publish(newest_published(look))

        _same_directory(staged)
        as_owner(staged.path, publish, self._write_new)

    def check_seen(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        _same_directory(staged)
        # outputs that somebody deleted since are no matter: only others in their place are
        if not self._looks_well(staged, checkpoint_id):
            as_owner(staged.path, lambda look: _is_published(look, staged, checkpoint_id), self._write_new)
        final = published_directory(checkpoint_id)
        sizes = {join(final, base_name(file)): file.bytes for file in staged.files}
        check_shown(staged, sizes, checkpoint_id=checkpoint_id)

    def _looks_well(self, staged: StagedSink, checkpoint_id: int) -> bool:
        """Whether a look at the sink, which leaves its owner in peace, shows nothing to refuse."""
        at = open_location(staged.path)
        if at.local:
            return False
        try:
            return looking(at, lambda look: _is_published(look, staged, checkpoint_id))
        except SinkIdentityError:  # the owner may be in the middle of something
            return False

    def _mover(self, look: Look, staged: StagedSink, checkpoint_id: int) -> Mover:
        final = published_directory(checkpoint_id)
        return Mover(look, staged, checkpoint_id=checkpoint_id, final=final, durability=self._durability)

    def check_identity(self, staged: StagedSink) -> None:
        with table_lock(staged.path):
            _same_directory(staged)

    def check_withdrawable(self, staged: StagedSink) -> None:
        _same_directory(staged)
        verify_files(staged.path, staged.files, what=f"sink '{staged.name}'")
        check_published_files(open_location(staged.path), staged)


def _home(file: DataFile) -> str:
    return file.path.split("/", 1)[0]


def _shown(look: Look, checkpoint_id: int) -> list[str]:
    final = published_directory(checkpoint_id)
    return names_in(look.at, final) if final in look.names else []


def _is_published(look: Look, staged: StagedSink, checkpoint_id: int) -> bool:
    """Whether a row was published, be it that a later one withdrew it, or a consumer has moved it away."""
    final, inside = published_directory(checkpoint_id), _shown(look, checkpoint_id)
    later = [m for m in moves_of(look) if m.checkpoint_id > checkpoint_id]
    known = {*inside, *(name for m in later for name in m.withdrawn)}
    note = noted(look, checkpoint_id)
    if {base_name(f) for f in staged.files} <= known:
        return True
    if note is not None and note.files == note_of(staged):
        return True
    if note is not None or any(attempt_of(name) not in (None, *write_ids(staged.files)) for name in inside):
        conflict = f"{final} holds other files than"
    elif final not in look.names and newest_published(look) <= checkpoint_id:
        return False
    elif is_waiting(look.at, staged) or later:
        conflict = "was moved on by a later one before what"
    else:
        return True
    raise SinkIdentityError(
        f"sink '{staged.name}': {staged.path}/{conflict} checkpoint {checkpoint_id} staged: another root writes "
        "here. Give each its own directory"
    )


def _move_once(look: Look, staged: StagedSink, checkpoint_id: int, mover: Mover) -> None:
    begun = mover.begun(moves_of(look))
    if begun is None:
        if newest_published(look) >= checkpoint_id:
            raise SinkIdentityError(
                f"sink '{staged.name}': {staged.path} already holds rows of checkpoint {checkpoint_id} or a later one: "
                "another root writes here. Give each its own directory"
            )
        verify_files(staged.path, staged.files, what=f"sink '{staged.name}', checkpoint {checkpoint_id}")
        check_published_files(look.at, staged)
        mover.begin()
    if begun is None or not begun.done:
        mover.finish()


def _same_directory(staged: StagedSink) -> None:
    identity = _read_identity(staged.path)
    if identity is None or identity["id"] != staged.identity:
        raise SinkIdentityError(
            f"sink '{staged.name}': {staged.path} was deleted or re-created since rows were staged for it. "
            f"Put the old directory back; {MAKE_AGAIN}; or {DROP_ROWS}"
        )


def _identity(uri: str, request: SinkRequest) -> str:
    """The id of the directory, which is the application's from now on if it is nobody's."""
    identity, app = _read_identity(uri), request.app
    if identity is None or identity["app"] != app:
        write_new = None if is_local(uri) else request.kernel.write_new
        identity = as_owner(uri, lambda look: _begun(look, uri, request, write_new), write_new)
    if identity["app"] != app:
        raise SinkIdentityError(
            f"{uri} is the sink of '{identity['app']}', not of '{app}': give each its own directory. If the other one "
            "is gone for good, empty this one"
        )
    return identity["id"]


def _begun(look: Look, uri: str, request: SinkRequest, write_new: WriteNew | None) -> dict[str, str]:
    """The identity of a directory; a new one, if it has none, or one of an application that never got anywhere."""
    identity = _read_identity(uri)
    if identity is not None and not _is_abandoned(look, identity, request.app, request.staging.root):
        return identity
    own = {"id": uuid4().hex, "app": request.app, "root": request.staging.root}
    if write_new is None:
        look.at.inside(_IDENTITY).write_whole(json.dumps(own).encode())
        return own
    if identity is not None:
        former = look.at.inside(look.path(f"{_IDENTITY}.{uuid4().hex}"))
        look.at.inside(_IDENTITY).move(former.path)
        former.delete()
    write_new(join(uri, _IDENTITY), json.dumps(own))
    return _read_identity(uri) or own


def _is_abandoned(look: Look, identity: dict[str, str], app: str, root: str) -> bool:
    """Whether the first batch of the application that began here failed, and left nothing that it may still publish.

    Files that it has staged may be of a checkpoint that waits to be published; those of a root that another one took
    the place of are not: nobody can publish them any more.
    """
    if (
        identity["app"] == app or "root" not in identity
    ):  # of a version that did not note what it has published
        return False
    # a crash may have left one of ours half written, under a longer name
    names = [name for name in look.aside if not name.startswith((_IDENTITY, "."))]
    if any(not name.startswith(STAGED_PREFIX) for name in names):
        return False
    replaced = identity["root"] == root and identity["app"].partition("/")[0] != app.partition("/")[0]
    return replaced or not any(names_in(look.at, name) for name in names)


def _read_identity(uri: str) -> dict[str, str] | None:
    at = open_location(join(uri, _IDENTITY))
    if not at.is_file():
        return None
    identity: dict[str, str] = at.read_json(id=str, app=str)
    return identity
