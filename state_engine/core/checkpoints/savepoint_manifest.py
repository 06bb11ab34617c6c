"""``SavepointManifest``: what a savepoint's directory holds, as one JSON text that can be checked.

    {"format": 2, "checkpoint_format": 6, "digest": "<SHA-256 of all the rest>", "name": …, "job": …,
     "created_at": …, "checkpoint": {…}, "files": [{"path": …, "bytes": …, "sha256": …}, …]}

The checkpoint is a row as roots of the format ``checkpoint_format`` have them; an older one is brought to this
version's form when it is read. The savepoint itself is not changed.

Paths are relative to the directory, so it can be moved. Whatever was changed, cut off or left out is noticed before any
of it is restored: the manifest by its digest, the files by size and SHA-256. Digests reveal damage, not intent: whoever
writes a savepoint can compute them. So a manifest is also held to the form that savepoints have: its row names files of
the manifest and no others, each where such a file belongs. Mirrors Flink's ``_metadata`` file and
``StateAssignmentOperation``'s check of operators.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pyarrow as pa

from state_engine.core.checkpoints import format_versions
from state_engine.core.checkpoints.checkpoint import ROW_TYPE, CheckpointRow, DataFile
from state_engine.core.checkpoints.table_names import OPERATOR_STATE, operator_directory
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError, MissingFilesError, RootError, StateMigrationError
from state_engine.core.json_text import parsed_json
from state_engine.core.state.ttl import Lifetime
from state_engine.core.types.json_values import from_json, to_json

FORMAT_VERSION = 2
"""Of the manifest and of the files that it lists. Another one is refused."""
_SHOWN = 5
_ID = re.compile(r"[0-9a-f]{32}")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.parquet")


@dataclass(frozen=True)
class SavepointFile:
    """One file of a savepoint.

    Attributes:
        sha256: of the content, as lower-case hexadecimal text.
    """

    path: str
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        if "" in parts or "." in parts or ".." in parts or ":" in self.path or "\\" in self.path:
            raise ConfigurationError(
                f"{self.path!r} is not a path inside a savepoint: it must be relative, without '..'"
            )


@dataclass(frozen=True)
class SavepointManifest:
    """Description of a stored savepoint.

    Attributes:
        files: all files of the directory, but for the manifest itself.
    """

    name: str
    job: str
    created_at: datetime
    checkpoint: CheckpointRow
    files: list[SavepointFile]

    def to_text(self) -> str:
        """The manifest as JSON; the same savepoint has the same text."""
        content = {
            "format": FORMAT_VERSION,
            "checkpoint_format": format_versions.FORMAT_VERSION,
            "name": self.name,
            "job": self.job,
            "created_at": self.created_at.astimezone(UTC).isoformat(),
            "checkpoint": json.loads(to_json(ROW_TYPE, [self.checkpoint])[0]),
            "files": [asdict(f) for f in sorted(self.files, key=lambda f: f.path)],
        }
        return json.dumps({"digest": _digest(content), **content}, indent=1, ensure_ascii=False)

    def check_form(self) -> None:
        """Refuse a row that names anything but the manifest's own files, each at its place."""
        sizes = {f.path: f.bytes for f in self.files}
        for operator in self.checkpoint.operators:
            ids = [base.base_id for base in operator.bases]
            if len(ids) != 1 or not _ID.fullmatch(ids[0]) or operator.changelog:
                raise self._unlike(f"the state of operator {operator.uid!r} is not one base")
            for base_file in operator.base_files:
                place = f"base_id={ids[0]}/key_group={base_file.key_group_min}"
                self._check_file(operator_directory(operator.uid), place, base_file, sizes)
        for file in self.checkpoint.operator_state_files:
            place = file.path.rpartition("/")[0]
            if not _ID.fullmatch(place.removeprefix("write_id=")) or not place.startswith("write_id="):
                raise self._unlike(f"{file.path!r} is not a file of operator state")
            self._check_file(OPERATOR_STATE, place, file, sizes)

    def _check_file(self, directory: str, place: str, file: DataFile, sizes: Mapping[str, int]) -> None:
        folder, _, name = file.path.rpartition("/")
        if folder != place or not _FILE_NAME.fullmatch(name):
            raise self._unlike(f"{file.path!r} is not below {place!r}")
        if sizes.get(f"{directory}/{file.path}") != file.bytes:
            raise self._unlike(f"{file.path!r}, of {counted(file.bytes, 'byte')}, does not belong to it")

    def _unlike(self, why: str) -> MissingFilesError:
        return MissingFilesError(
            f"savepoint '{self.name}' of job '{self.job}' was not written by Statelake, or was altered: {why}. Nothing "
            "was restored. Copy it again from where it was made, or take another savepoint"
        )

    def verify(self, actual: Iterable[SavepointFile]) -> None:
        """Compare the files that are there with those that were written; others beside them are no matter."""
        there = {f.path: f for f in actual}
        wrong = [
            f"{f.path} is missing"
            if f.path not in there
            else f"{f.path} has {counted(there[f.path].bytes, 'byte')}, {f.bytes:,} were written"
            if there[f.path].bytes != f.bytes
            else f"{f.path} has other content than was written"
            for f in self.files
            if there.get(f.path) != f
        ]
        if wrong:
            more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
            raise MissingFilesError(
                f"savepoint '{self.name}' of job '{self.job}' is damaged: {'; '.join(wrong[:_SHOWN])}{more}. "
                "Copy it again, or take another savepoint"
            )


def parse_manifest(text: str, *, where: str) -> SavepointManifest:
    try:
        content = parsed_json(text)
    except ValueError as error:
        raise _damaged(where, f"it is not JSON ({error})") from None
    if not isinstance(content, dict) or type(content.get("format")) is not int:
        raise _damaged(where, "it names no format")
    if content["format"] > FORMAT_VERSION:
        raise RootError(
            f"{where} has format {content['format']}, this version reads up to {FORMAT_VERSION}: upgrade Statelake"
        )
    if content["format"] < FORMAT_VERSION:
        raise RootError(
            f"{where} is of a Statelake before 0.2.0, which this version cannot read: restore it with 0.2.0 into a "
            "root, and take a new savepoint there"
        )
    if content.pop("digest", None) != _digest(content):
        raise _damaged(where, "its digest does not fit its content")
    try:
        steps = format_versions.steps_from(content["checkpoint_format"], where=where)
        row_text = json.dumps(format_versions.upgraded_row(content["checkpoint"], steps))
        (row,) = from_json(ROW_TYPE, [row_text])
        _check_nulls(row)
        for state in (state for operator in row.operators for state in operator.states):
            Lifetime.recorded(state.ttl)
        return SavepointManifest(
            name=str(content["name"]),
            job=str(content["job"]),
            created_at=datetime.fromisoformat(content["created_at"]),
            checkpoint=row,
            files=[SavepointFile(**f) for f in content["files"]],
        )
    except ConfigurationError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, pa.ArrowException) as error:
        raise _damaged(where, f"it lacks what a manifest holds ({type(error).__name__}: {error})") from None


def _check_nulls(value: Any) -> None:
    """Refuse null where a part of a row has a value: columns may be null, whatever the row declares."""
    if is_dataclass(value):
        for part in fields(value):
            if getattr(value, part.name) is None and "None" not in str(part.type):
                raise ValueError(f"'{part.name}' is null")
            _check_nulls(getattr(value, part.name))
    elif isinstance(value, list | tuple):
        if None in value:
            raise ValueError("a list has a null")
        for one in value:
            _check_nulls(one)


@dataclass(frozen=True)
class MatchedState:
    """What becomes of a savepoint's state in a job, by uid of operators and name of sources.

    Attributes:
        new: only the job has them; they start without state.
    """

    restored: tuple[str, ...]
    dropped: tuple[str, ...]
    new: tuple[str, ...]


def matched(
    manifest: SavepointManifest, operators: Collection[str], *, allow_non_restored_state: bool = False
) -> MatchedState:
    """Find the job's operators in a savepoint.

    Args:
        operators: uids of the job's operators and names of its sources.
        allow_non_restored_state: whether state that the job has no operator for may be left behind.
    """
    held, own = _held(manifest.checkpoint), set(operators)
    states = MatchedState(tuple(sorted(held & own)), tuple(sorted(held - own)), tuple(sorted(own - held)))
    if states.dropped and not allow_non_restored_state:
        raise StateMigrationError(
            f"savepoint '{manifest.name}' of job '{manifest.job}' holds state of {list(states.dropped)}, which the job "
            f"does not have; without state in it are {list(states.new)}. Give operators the uid, and sources the name, "
            "that they had, or pass allow_non_restored_state=True to leave that state behind"
        )
    return states


def _held(row: CheckpointRow) -> set[str]:
    """Who has state in a checkpoint. An operator that only wants to know when it last ran has none; a source has."""
    keyed = {o.uid for o in row.operators if o.states}
    return keyed | {r.operator for r in row.operator_state if r.write_ids() or not r.last_run}


def _digest(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _damaged(where: str, why: str) -> MissingFilesError:
    return MissingFilesError(
        f"{where} is not the manifest that was written: {why}. Copy the savepoint again, or take another one"
    )
