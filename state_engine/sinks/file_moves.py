"""How a ``FileSink`` publishes the files of a checkpoint, and takes them out of sight where the head leaves its path.

**Only listed files are ever shown.** Beside them, in the directory that an attempt writes to, may lie what another
attempt of a task has left: one that was run again, or twice at once, or that still writes. So that directory is never
shown: the listed files are moved, by name, into a hidden one that no task knows, and that one is renamed.

    join      the listed files, one by one, into ``_joining-<id>``
    note      ``_published-<id>.json``: from now on, nothing left to join means that it is published
    reveal    ``_joining-<id>`` becomes ``checkpoint_id=<id>``: all of it appears in one step

Withdrawn files go back to where they were staged, so that a later checkpoint can bring them again: nothing is copied,
nothing is lost. Each directory that is withdrawn whole vanishes in one step; all that is added appears in one step, in
the directory of the checkpoint that moved; between the two steps a reader sees neither. Of a directory that only some
files leave, as when a restore keeps a part of a promotion, these files leave one by one.

``_moving-<id>.json`` is written before the first step of a move and renamed to ``_moved-<id>.json`` after the last.
Every step looks where a file is before it moves it, so that a crash anywhere is mended by moving again; and what was
left behind cannot be published any more, however late its runner wakes up.

What is kept out of sight lies in the directory of the sink's owner, see ``file_owner``; on a local disk that is the
sink's own. No step needs more than HDFS and Azure give: nothing is renamed to a name that is there, and each rename has
the owner's directory at one end, as each deletion has.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.fs as pafs

from state_engine.core.checkpoints.checkpoint import DataFile, StagedSink
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import MissingFilesError, SinkError, SinkIdentityError
from state_engine.sinks.base import verify_files, write_ids
from state_engine.sinks.file_owner import KEPT_ASIDE, WRITING, Look
from state_engine.sinks.spark_writer import note_of
from state_engine.storage.stores.durability import Durability, fsync_path, sync_directories
from state_engine.storage.stores.files import Location, join

CHECKPOINT_ID = "checkpoint_id"
"""The column that readers take from the names of directories."""
PUBLISHED = f"{CHECKPOINT_ID}="
STAGED_PREFIX = "_staged-"
"""Of the directory that an attempt writes to; its ``write_id`` follows."""
_MOVING, _MOVED, _NOTE, _JOINING, _WITHDRAWN = KEPT_ASIDE


@dataclass(frozen=True)
class Move:
    """A move that was begun."""

    checkpoint_id: int
    done: bool
    files: list[str]
    withdrawn: list[str]


def base_name(file: DataFile) -> str:
    """Name of a file without the directory that it was staged in."""
    return file.path.rsplit("/", 1)[-1]


def names_in(at: Location, *inside: str) -> list[str]:
    """Names in the sink's directory, or in one of those inside of it; none where that is not there."""
    return at.inside(*inside).names(missing_ok=True)


def moves_of(look: Look) -> list[Move]:
    """All moves of a sink, oldest first."""
    moves = []
    for name, path in look.aside.items():
        if name.startswith((_MOVING, _MOVED)) and name.endswith(".json"):
            note = look.at.inside(path).read_json(files=list, withdrawn=list)
            moves.append(Move(_number(name), name.startswith(_MOVED), note["files"], note["withdrawn"]))
    return sorted(moves, key=lambda m: m.checkpoint_id)


@dataclass(frozen=True)
class Note:
    """The newest publish that moved nothing else.

    Attributes:
        before: the highest checkpoint that was published before it.
    """

    checkpoint_id: int
    before: int
    files: str


def newest_published(look: Look) -> int:
    """The highest checkpoint that was ever published; 0 where none was. Directories may have been taken away since.

    One whose move is not done does not count, although its files may be in sight: its steps would be made again later.
    """
    moving = {_number(name) for name in look.aside if name.startswith(_MOVING)}
    names = [name for name in {*look.names, *look.aside} if name.startswith((PUBLISHED, _MOVED))]
    ids = [number for name in names if (number := _number(name)) not in moving]
    note = read_note(look)
    if note is not None:
        ids.append(note.before if are_on_their_way(look, note.checkpoint_id) else note.checkpoint_id)
    return max(ids, default=0)


def read_note(look: Look) -> Note | None:
    """What ``Mover.publish`` noted last; None where it never did."""
    paths = [path for name, path in look.aside.items() if name.startswith(_NOTE) and name.endswith(".json")]
    read = (look.at.inside(path).read_json(checkpoint_id=int, before=int, files=str) for path in paths)
    notes = (Note(one["checkpoint_id"], one["before"], one["files"]) for one in read)
    return max(notes, key=lambda note: note.checkpoint_id, default=None)


def noted(look: Look, checkpoint_id: int) -> Note | None:
    """The note of a checkpoint that is published; None where another one is the newest, or it is not done yet."""
    note = read_note(look)
    if note is None or note.checkpoint_id != checkpoint_id or are_on_their_way(look, checkpoint_id):
        return None
    return note


def is_waiting(at: Location, staged: StagedSink) -> bool:
    return any(at.inside(f.path).is_file() for f in staged.files)


def attempt_of(name: str) -> str | None:
    """The attempt to write that the name of a file holds; None for a file of somebody else.

    Example:
        >>> attempt_of("part-00000-0199aa-1a2b3c4d-0.parquet"), attempt_of("notes.parquet")
        ('0199aa', None)
    """
    parts = name.split("-")
    return parts[2] if len(parts) > 3 and parts[0] == "part" else None


def published_files(at: Location) -> dict[str, str]:
    """Directory of every published file that readers count, by its name."""
    published = {}
    for directory in at.listing():
        if directory.base_name.startswith(PUBLISHED) and directory.type == pafs.FileType.Directory:
            for name in names_in(at, directory.base_name):  # a restore may take it away meanwhile
                if not name.startswith(("_", ".")):
                    published[name] = directory.base_name
    return published


def check_published_files(at: Location, staged: StagedSink) -> None:
    """Refuse where files to withdraw are not published: their rows may be anywhere."""
    inside = published_files(at)
    gone = sorted(name for name in map(base_name, staged.withdrawn) if name not in inside)
    if gone:
        raise SinkError(
            f"sink '{staged.name}': outputs cannot be withdrawn from {staged.path}, because "
            f"{counted(len(gone), 'file is', 'files are')} gone: {', '.join(gone[:5])}. Put them back, or keep "
            'the outputs with outputs="keep" (--outputs keep)'
        )


class Mover:
    """Makes the publish or the move of one checkpoint; the caller owns the sink.

    Args:
        final: name of the directory in which the added files appear.
        durability: whether each step waits for the disk before the one that rests on it.
    """

    def __init__(
        self,
        look: Look,
        staged: StagedSink,
        *,
        checkpoint_id: int,
        final: str,
        durability: Durability = "sync",
    ) -> None:
        self._waits = durability == "sync" and look.at.local
        self._at, self._staged, self._id, self._final = look.at, staged, checkpoint_id, final
        self._look = look
        self._files = sorted(map(base_name, staged.files))
        self._withdrawn = sorted(map(base_name, staged.withdrawn))

    # -- a publish that moves nothing else -------------------------------------------------------------------------

    def publish(self, before: int) -> None:
        self.check_waiting()
        self.join()
        note = {"checkpoint_id": self._id, "before": before, "files": note_of(self._staged)}
        name = f"{_NOTE}-{self._id:012d}.json"
        if name in self._look.aside:  # of this checkpoint, or of one that had its number before
            self._at.inside(self._aside(name)).delete()
        self._write(name, note)  # from here on, what is not on its way counts as published
        self._rename(self._joining, self._final)
        self._outlast()
        for other in self._look.aside:
            if other.startswith(_NOTE) and other != name:
                self._at.inside(self._aside(other)).delete()

    def check_waiting(self) -> None:
        """Refuse where a listed file is neither where it was staged nor on its way; raises MissingFilesError."""
        inside = set(self._inside_of(self._joining))
        files = [
            replace(f, path=f"{self._joining}/{name}") if (name := base_name(f)) in inside else f
            for f in self._staged.files
        ]
        verify_files(self._staged.path, files, what=f"sink '{self._staged.name}', checkpoint {self._id}")

    # -- a move ----------------------------------------------------------------------------------------------------

    def begun(self, moves: Sequence[Move]) -> Move | None:
        """This move, if it was begun before."""
        known = next((m for m in moves if m.checkpoint_id == self._id), None)
        if known and (known.files, known.withdrawn) != (self._files, self._withdrawn):
            raise SinkIdentityError(
                f"sink '{self._staged.name}': {self._staged.path} was moved otherwise by checkpoint {self._id}: "
                "another root writes here. Give each its own directory"
            )
        return known

    def begin(self) -> None:
        """Note what is about to happen; from here on, what is left behind stays behind."""
        lists = {"files": self._files, "withdrawn": self._withdrawn}
        self._write(f"{_MOVING}{self._id:012d}.json", lists)

    def finish(self) -> None:
        """All steps that are left to make."""
        self.withdraw()
        self.add()
        self._outlast()  # before the note that says so
        moving, moved = (self._aside(f"{begins}{self._id:012d}.json") for begins in (_MOVING, _MOVED))
        self._rename(moving, moved)
        self._outlast()

    def withdraw(self) -> None:
        """Withdrawn files go back to where they were staged, and with them what their attempts left beside them."""
        homes = {base_name(f): f.path for f in self._staged.withdrawn}
        attempts = set(write_ids(self._staged.withdrawn))
        inside = published_files(self._at)
        beside = {n: a for n in inside if n not in homes and (a := attempt_of(n)) in attempts}
        homes |= {name: f"{STAGED_PREFIX}{attempt}/{name}" for name, attempt in beside.items()}
        for directory in sorted({d for name, d in inside.items() if name in homes}):
            self._out_of_sight(directory, [name for name, d in inside.items() if d == directory], homes)
        self._send_home(homes, self._directories(_WITHDRAWN))

    def _out_of_sight(self, directory: str, inside: Sequence[str], leaving: Collection[str]) -> None:
        """Files leave a published directory; all of them at once, where it has no others."""
        hidden = f"{_WITHDRAWN}{directory}"
        if all(name in leaving for name in inside) and not self._is_directory(self._aside(hidden)):
            self._rename(directory, self._aside(hidden))
            return
        self._make_aside(hidden)
        for name in inside:
            if name in leaving:
                self._rename(f"{directory}/{name}", self._aside(f"{hidden}/{name}"))

    def _send_home(self, homes: Mapping[str, str], hidden: Sequence[str]) -> None:
        """What lies in directories out of sight goes to where it was staged, and these directories go."""
        for directory in hidden:
            for name in self._inside_of(directory):
                if name in homes:
                    self._make(homes[name].rsplit("/", 1)[0])
                    self._rename(f"{directory}/{name}", homes[name])
        self._outlast()
        for directory in hidden:
            self._at.inside(directory).delete_directory()

    def add(self) -> None:
        """All added files appear at once."""
        if not self._staged.files or self._is_directory(self._final):
            return
        self.join()
        self._rename(self._joining, self._final)

    def join(self) -> None:
        """Bring the listed files together, out of sight, and nothing else."""
        self._make_aside(f"{_JOINING}{self._id:012d}")
        for file in self._staged.files:
            target = f"{self._joining}/{base_name(file)}"
            if self._is_file(file.path):
                self._rename(file.path, target)
            elif not self._is_file(target):
                raise MissingFilesError(
                    f"sink '{self._staged.name}': {join(self._staged.path, file.path)} is gone. Put it back from a "
                    "copy, or restore the checkpoint's parent"
                )
        others = (path for name, path in self._look.aside.items() if name.startswith(_JOINING))
        self._send_back(sorted({self._joining, *others}))
        self._outlast()  # before what knows the old names goes, and anything is noted
        for home in {f.path.rsplit("/", 1)[0] for f in self._staged.files}:
            self._drop_empty(home)

    def _drop_empty(self, home: str) -> None:
        """An empty directory goes; it goes through the owner's, since others may bring files back to it any time."""
        with suppress(FileNotFoundError):
            if self._at.inside(home).listing():
                return
            if self._look.owner:
                empty = self._aside(f"{WRITING}{self._look.token}{home}")
                self._rename(home, empty)
                home = empty
            self._at.inside(home).delete_directory()

    def _send_back(self, directories: Sequence[str]) -> None:
        """What was on its way for rows that were abandoned since goes back to where it was staged."""
        for directory in directories:
            if _number(directory) > self._id:
                continue
            mine = set(self._files) if directory == self._joining else set()
            for name in self._inside_of(directory):
                if name not in mine:
                    home = f"{STAGED_PREFIX}{attempt_of(name) or 'of_nobody'}"
                    self._make(home)
                    self._rename(f"{directory}/{name}", f"{home}/{name}")
            if not mine:
                self._outlast()
                self._at.inside(directory).delete_directory()

    # -- pieces ----------------------------------------------------------------------------------------------------

    @property
    def _joining(self) -> str:
        return self._aside(f"{_JOINING}{self._id:012d}")

    def _aside(self, name: str) -> str:
        return self._look.path(name)

    def _make_aside(self, name: str) -> None:
        if not self._look.owner:
            self._make(name)
        elif not self._is_directory(self._aside(name)):
            made = f"{WRITING}{self._look.token}{name.removeprefix('_')}"
            self._make(made)
            self._rename(made, self._aside(name))

    def _write(self, name: str, content: dict[str, Any]) -> None:
        written = f"{WRITING}{self._look.token}{name.removeprefix('_')}"
        self._at.inside(written).write(json.dumps(content).encode())
        if self._waits:
            fsync_path(self._at.inside(written).path)
        self._rename(written, self._aside(name))
        self._outlast()

    def _outlast(self) -> None:
        """Sync the names in the sink's directory and in those in it that a publish or a move changes."""
        if self._waits:
            ours = (PUBLISHED, STAGED_PREFIX, _JOINING, _WITHDRAWN)
            inside = [self._at.inside(name).path for name in names_in(self._at) if name.startswith(ours)]
            # another runner that publishes the same may take away an empty one, whose names it has synced
            sync_directories([self._at.path, *inside], below=self._at.path, missing_ok=True)

    def _inside_of(self, directory: str) -> list[str]:
        """Names in one of our directories; none where it is not there."""
        return names_in(self._at, directory)

    def _rename(self, source: str, target: str) -> None:
        self._at.inside(source).move(join(self._at.path, target))

    def _make(self, name: str) -> None:
        self._at.inside(name).make_directory()

    def _is_file(self, name: str) -> bool:
        return self._at.inside(name).is_file()

    def _is_directory(self, name: str) -> bool:
        return self._at.inside(name).is_directory()

    def _directories(self, prefix: str) -> list[str]:
        owned = names_in(self._at, self._look.owner) if self._look.owner else names_in(self._at)
        return sorted(self._aside(name) for name in owned if name.startswith(prefix))


def _number(name: str) -> int:
    """The checkpoint in a name of ours.

    Example:
        >>> _number("checkpoint_id=000000000007"), _number("_moved-000000000012.json")
        (7, 12)
    """
    digits = name.removesuffix(".json").rpartition("=" if name.startswith(PUBLISHED) else "-")[2]
    return int(digits)


def are_on_their_way(look: Look, checkpoint_id: int) -> bool:
    """Whether files of a checkpoint are on their way and not in sight yet."""
    path = look.aside.get(f"{_JOINING}{checkpoint_id:012d}")
    return path is not None and bool(names_in(look.at, path))
