"""Moves of a ``FileSink``: a checkpoint that leaves a path takes its outputs out of sight and brings others.

Withdrawn files go back to where they were staged, so that a later checkpoint can bring them again: nothing is copied,
nothing is lost. Each directory that is withdrawn whole vanishes in one step; all that is added appears in one step, in
the directory of the checkpoint that moved; between the two steps a reader sees neither. Of a directory that only some
files leave, as when a restore keeps a part of a promotion, these files leave one by one.

``_moving-<id>.json`` is written before the first step and renamed to ``_moved-<id>.json`` after the last. Every step
looks where a file is before it moves it, so that a crash anywhere is mended by moving again; and what was left behind
cannot be published any more, however late its runner wakes up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow.fs as pafs

from state_engine.backends.files import Location, join
from state_engine.core.checkpoint import DataFile, StagedSink
from state_engine.core.errors import MissingFilesError, SinkError, SinkIdentityError

PUBLISHED = "checkpoint_id="
_MOVING, _MOVED = "_moving-", "_moved-"
_WITHDRAWN, _JOINING = "_withdrawn-", "_joining-"


@dataclass(frozen=True)
class Move:
    """A move that was begun.

    Attributes:
        checkpoint_id: of the row that moves.
        done: whether its last step was made.
        files, withdrawn: names, sorted.
    """

    checkpoint_id: int
    done: bool
    files: list[str]
    withdrawn: list[str]


def base_name(file: DataFile) -> str:
    """Name of a file without the directory that it was staged in."""
    return file.path.rsplit("/", 1)[-1]


def moves_of(at: Location) -> list[Move]:
    """All moves of a sink, oldest first."""
    found = []
    for info in at.fs.get_file_info(pafs.FileSelector(at.path)):
        if info.base_name.startswith((_MOVING, _MOVED)) and info.base_name.endswith(".json"):
            with at.fs.open_input_stream(info.path) as stream:
                told = json.loads(stream.read())
            number = int(info.base_name.removesuffix(".json").split("-")[1])
            found.append(Move(number, info.base_name.startswith(_MOVED), told["files"], told["withdrawn"]))
    return sorted(found, key=lambda m: m.checkpoint_id)


def published_files(at: Location) -> dict[str, str]:
    """Directory of every published file, by its name."""
    return _located(at, PUBLISHED)


def check_published_files(at: Location, staged: StagedSink) -> None:
    """Refuse where files to withdraw are not published: their rows may be anywhere."""
    inside = published_files(at)
    gone = sorted(name for name in map(base_name, staged.withdrawn) if name not in inside)
    if gone:
        raise SinkError(
            f"sink '{staged.name}': outputs cannot be withdrawn from {staged.path}, because {len(gone)} of their files "
            f'are not there any more: {", ".join(gone[:5])}. Put them back, or keep the outputs with outputs="keep"'
        )


class Mover:
    """Makes the move of one checkpoint; the caller holds the lock of the sink.

    Args:
        at: the sink's directory.
        staged: files to withdraw and to add.
        checkpoint_id: of the row.
        final: name of the directory in which the added files appear.
    """

    def __init__(self, at: Location, staged: StagedSink, *, checkpoint_id: int, final: str) -> None:
        self._at, self._staged, self._id, self._final = at, staged, checkpoint_id, final
        self._files = sorted(map(base_name, staged.files))
        self._withdrawn = sorted(map(base_name, staged.withdrawn))

    def begun(self, moves: Sequence[Move]) -> Move | None:
        """This move, if it was begun before.

        Raises:
            SinkIdentityError: another row has its number.
        """
        known = next((m for m in moves if m.checkpoint_id == self._id), None)
        if known and (known.files, known.withdrawn) != (self._files, self._withdrawn):
            raise SinkIdentityError(
                f"sink '{self._staged.name}': {self._staged.path} was moved otherwise by checkpoint {self._id}: "
                "another root writes here. Give each its own directory"
            )
        return known

    def begin(self) -> None:
        """Note what is about to happen; from here on, what is left behind stays behind."""
        name = f"{self._id:012d}.json"
        with self._at.fs.open_output_stream(self._inside(f"_writing-{name}")) as stream:
            stream.write(json.dumps({"files": self._files, "withdrawn": self._withdrawn}).encode())
        self._rename(f"_writing-{name}", f"{_MOVING}{name}")

    def finish(self) -> None:
        """All steps that are left to make."""
        self.withdraw()
        self.add()
        self._rename(f"{_MOVING}{self._id:012d}.json", f"{_MOVED}{self._id:012d}.json")

    def withdraw(self) -> None:
        """Withdrawn files go back to where they were staged."""
        homes = {base_name(f): f.path for f in self._staged.withdrawn}
        inside = published_files(self._at)
        for directory in sorted({d for name, d in inside.items() if name in homes}):
            if all(name in homes for name, d in inside.items() if d == directory):
                self._rename(directory, f"{_WITHDRAWN}{directory}")
        for source in (_WITHDRAWN, PUBLISHED):
            for name, directory in _located(self._at, source).items():
                if name in homes:
                    self._make(homes[name].rsplit("/", 1)[0])
                    self._rename(f"{directory}/{name}", homes[name])
        for directory in self._directories(_WITHDRAWN):
            self._at.fs.delete_dir(self._inside(directory))

    def add(self) -> None:
        """All added files appear at once."""
        if not self._staged.files or self._is_directory(self._final):
            return
        joining = f"{_JOINING}{self._id:012d}"
        self._make(joining)
        for file in self._staged.files:
            target = f"{joining}/{base_name(file)}"
            if self._is_file(file.path):
                self._rename(file.path, target)
            elif not self._is_file(target):
                raise MissingFilesError(
                    f"sink '{self._staged.name}': {join(self._staged.path, file.path)} is gone. Put it back from a "
                    "copy, or restore the checkpoint's parent"
                )
        for home in {f.path.rsplit("/", 1)[0] for f in self._staged.files}:
            with suppress(FileNotFoundError):
                if not self._at.fs.get_file_info(pafs.FileSelector(self._inside(home))):
                    self._at.fs.delete_dir(self._inside(home))
        self._rename(joining, self._final)

    def _inside(self, name: str) -> str:
        return join(self._at.path, name)

    def _rename(self, source: str, target: str) -> None:
        self._at.fs.move(self._inside(source), self._inside(target))

    def _make(self, name: str) -> None:
        self._at.fs.create_dir(self._inside(name))

    def _is_file(self, name: str) -> bool:
        return bool(self._at.fs.get_file_info(self._inside(name)).type == pafs.FileType.File)

    def _is_directory(self, name: str) -> bool:
        return bool(self._at.fs.get_file_info(self._inside(name)).type == pafs.FileType.Directory)

    def _directories(self, prefix: str) -> list[str]:
        infos = self._at.fs.get_file_info(pafs.FileSelector(self._at.path))
        return [i.base_name for i in infos if i.base_name.startswith(prefix)]


def _located(at: Location, prefix: str) -> dict[str, str]:
    """Directory of every file that readers count, by its name, in directories of one kind."""
    found = {}
    for directory in at.fs.get_file_info(pafs.FileSelector(at.path)):
        if directory.base_name.startswith(prefix) and directory.type == pafs.FileType.Directory:
            for info in at.fs.get_file_info(pafs.FileSelector(directory.path)):
                if not info.base_name.startswith(("_", ".")):
                    found[info.base_name] = directory.base_name
    return found
