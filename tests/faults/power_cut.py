"""A power cut: a random part of what was not synced is lost.

A plane over files notes what was synced: the content of a file (while inode, size and time of change stay), and the
names in a directory. At the chosen access everything stops, and the tree is changed to one that a disk may hold then:
content that was not synced is whole, empty or cut; a new name is there or not; a renamed file has its new or its old
name. A seed chooses. Whoever wrote a file makes no difference.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults.file_plane import Kind, Plane, What

Content = tuple[int, int, int]
"""Inode, size and time of change of a file."""

Named = tuple[int, int | None]
"""What a name stands for: an inode, and of a file the time of its change, for inodes are used again."""

DATABASES = (".db", ".db-journal", ".db-wal", ".db-shm")
"""Databases sync for themselves."""


class PowerCut(BaseException):
    """The power is cut: no code of the engine runs after it."""


class Disk(Plane):
    """A plane that notes syncs, and stops everything at an access.

    Args:
        at: the directory; what is in it now is on the disk.
        stop: the number of the access before which the power goes, from 1 on; None for never.
    """

    def __init__(self, at: str, stop: int | None = None) -> None:
        super().__init__(at)
        self._root, self._stop, self._seen = Path(at), stop, 0
        self.is_off = False
        self._content: set[Content] = set()
        # by the inode of the directory, for directories are renamed
        self._names: dict[int, dict[str, Named]] = {}
        for path in [self._root, *self._root.rglob("*")]:
            self.note(str(path))

    def note(self, path: str) -> None:
        """What is at a path is on the disk."""
        if os.path.isdir(path):
            self._names[os.stat(path).st_ino] = {name: _named(Path(path, name)) for name in os.listdir(path)}
        elif os.path.exists(path):
            self._content.add(_content(path))

    def reach(self, kind: Kind, path: str) -> What | None:
        if not path.startswith(self._at):
            return None
        with self._lock:
            self._seen += 1
            self.is_off = self.is_off or self._seen == self._stop
            if self.is_off:
                raise PowerCut
            return None

    @property
    def seen(self) -> int:
        """Accesses so far."""
        return self._seen

    def lose_all_content(self) -> None:
        """Every file whose content was not synced is empty."""
        for path in self._files():
            if not path.name.endswith(DATABASES) and _content(str(path)) not in self._content:
                os.truncate(path, 0)

    def lose(self, dice: random.Random) -> list[str]:
        """Leave a possible content of the disk in the directory; the text names what was lost."""
        lost = []
        for path in sorted(self._files()):
            if path.name.endswith(DATABASES) or _content(str(path)) in self._content:
                continue
            fate = dice.choice(["whole", "empty", "cut"])
            if fate != "whole":
                os.truncate(path, 0 if fate == "empty" else path.stat().st_size // 2)
                lost.append(f"{fate} {path.relative_to(self._root)}")
        # the deepest names first: a directory that goes takes with it what is in it
        for path in sorted(self._root.rglob("*"), key=lambda p: (-len(p.parts), str(p))):
            if path.name.endswith(DATABASES) or not path.exists():
                continue
            known = self._names.get(path.parent.stat().st_ino, {}).get(path.name)
            if (known and known[0] == path.stat().st_ino) or dice.random() < 0.5:
                continue
            lost.append(f"name {path.relative_to(self._root)}")
            self._lose_name(path)
        return lost

    def _lose_name(self, path: Path) -> None:
        """A new name was never on the disk: a rename is undone as a whole."""
        if self._has_old_name(path):
            return
        if path.is_dir():
            for file in [p for p in path.rglob("*") if p.is_file()]:
                self._has_old_name(file)
            shutil.rmtree(path)
        else:
            path.unlink()

    def _has_old_name(self, path: Path) -> bool:
        """Give a file or directory the name back that is on the disk; False where it has none."""
        mine = _named(path)
        for parent, names in self._names.items():
            for name in (name for name, known in names.items() if known == mine):
                at = self._directory(parent)
                if at is not None and not (at / name).exists():
                    path.rename(at / name)
                    return True
        return False

    def _directory(self, inode: int) -> Path | None:
        directories = (p for p in [self._root, *self._root.rglob("*")] if p.is_dir())
        return next((p for p in directories if p.stat().st_ino == inode), None)

    def _files(self) -> Iterator[Path]:
        return (path for path in self._root.rglob("*") if path.is_file())


def _named(path: Path) -> Named:
    status = path.lstat()
    return status.st_ino, None if path.is_dir() else status.st_mtime_ns


def _content(path: str) -> Content:
    status: Any = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns
