"""The fault plane over files: every access of the engine to a local file, and faults of accesses as data.

Stands below the seam (``storage/stores``), in place of pyarrow's local file system, so nothing that goes through the
seam escapes it, whichever function it was called by; syncs are wrapped beside it. A recording run lists the accesses
of an operation; then one run for each of them, and each thing that can happen:

    fail     the system refuses: the disk is full, the right is missing, too many files are open, or the device fails
    cut      a write stops in the middle and fails; a read gives the first half as if it were all
    lost     it is done, and the answer is an error
    rival    it takes so long that another runner does a micro-batch meanwhile

An access is known by its kind, its path without the random parts, and how often that was reached before.
"""

from __future__ import annotations

import errno
import io
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from state_engine.sinks import file_moves
from state_engine.storage.stores import durability, files

Kind = Literal["look", "list", "read", "write", "move", "delete", "delete_dir", "make_dir", "copy", "sync"]
What = Literal["fail", "cut", "lost", "rival"]

_RANDOM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{8,}")
_REFUSALS = {
    "write": (errno.ENOSPC, errno.EACCES, errno.EMFILE, errno.EDQUOT),
    "make_dir": (errno.ENOSPC, errno.EACCES, errno.EROFS),
    "move": (errno.EACCES, errno.ENOSPC, errno.EIO),
    "copy": (errno.ENOSPC, errno.EMFILE),
    "delete": (errno.EACCES, errno.EROFS),
    "delete_dir": (errno.EACCES, errno.EROFS),
    "sync": (errno.EIO, errno.ENOSPC),
}
_OTHERS = (errno.EACCES, errno.EMFILE, errno.EIO)


@dataclass(frozen=True, order=True)
class Access:
    """One access to a file."""

    kind: str
    path: str
    nth: int

    def __str__(self) -> str:
        return f"{self.kind} {self.path} #{self.nth}"

    def happens(self) -> Iterator[What]:
        """The faults that are tried on an access."""
        yield "fail"
        if self.kind in ("read", "write"):
            yield "cut"
        if self.kind in ("write", "move", "delete", "delete_dir", "make_dir", "copy"):
            yield "lost"
        yield "rival"


class Plane:
    """Notes accesses, and lets one thing happen to one of them."""

    def __init__(
        self,
        at: str,
        access: Access | None = None,
        what: What = "fail",
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self.accesses: list[Access] = []
        self.fired = False
        self._at, self._access, self._what, self._meanwhile = at, access, what, meanwhile
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock, self._asleep = threading.Lock(), False

    def note(self, path: str) -> None:
        """Called after a sync."""

    def reading(self, path: str, file: pa.NativeFile) -> pa.NativeFile:
        """A file that was opened to read it, as the engine gets it."""
        return file

    def reach(self, kind: Kind, path: str) -> What | None:
        """Called at an access; what happens to it, where that is not the whole of it."""
        if not path.startswith(self._at):
            return None
        with self._lock:
            if self._asleep:
                return None
            name = (kind, _RANDOM.sub("#", path[len(self._at) :].lstrip("/")))
            self._counts[name] += 1
            access = Access(*name, self._counts[name])
            self.accesses.append(access)
            if self.fired or access != self._access:
                return None
            self.fired = True
            self._asleep = self._what == "rival"
        if self._what == "fail":
            raise refusal(access, path)
        if self._what == "rival":
            try:
                self._meanwhile()
            finally:
                self._asleep = False
            return None
        return self._what


def refusal(access: Access, path: str) -> OSError:
    """The error of the system; always the same for an access."""
    numbers = _REFUSALS.get(access.kind, _OTHERS)
    number = numbers[sum(map(ord, str(access))) % len(numbers)]
    return OSError(number, os.strerror(number), path)


@contextmanager
def installed(plane: Plane) -> Iterator[Plane]:
    """Put a plane below the seam while the block runs."""
    real_sync = durability.fsync_path

    def sync(path: str) -> None:
        plane.reach("sync", path)
        real_sync(path)
        plane.note(path)

    def wrapped(path: str) -> None:
        with durability.storage_errors(path, "synced to the disk"):
            sync(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "local_files", lambda: pafs.PyFileSystem(_Faulty(plane)))
        for module in (durability, file_moves):
            patch.setattr(module, "fsync_path", wrapped)
        yield plane


class _HalfWritten(io.RawIOBase):
    """Takes half of the first write, and fails."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        data = bytes(content)
        self._real.write(data[: len(data) // 2])
        self._real.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        if not self.closed:
            self._real.close()
        super().close()


class _Faulty(pafs.FileSystemHandler):
    """The local file system, behind a plane."""

    def __init__(self, plane: Plane) -> None:
        self._plane, self._real = plane, pafs.LocalFileSystem()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Faulty) and other._plane is self._plane

    def __hash__(self) -> int:
        return id(self._plane)

    def _do(self, kind: Kind, path: str, act: Callable[[], Any]) -> Any:
        after = self._plane.reach(kind, path)
        result = act()
        if after == "lost":
            raise OSError(errno.EIO, "the answer is lost", path)
        return result

    def get_type_name(self) -> str:
        return "local"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        for path in paths:
            self._plane.reach("look", path)
        infos: list[pafs.FileInfo] = self._real.get_file_info(list(paths))
        return infos

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        infos: list[pafs.FileInfo] = self._do(
            "list", selector.base_dir, lambda: self._real.get_file_info(selector)
        )
        return infos

    def create_dir(self, path: str, recursive: bool) -> None:
        self._do("make_dir", path, lambda: self._real.create_dir(path, recursive=recursive))

    def delete_dir(self, path: str) -> None:
        self._do("delete_dir", path, lambda: self._real.delete_dir(path))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        raise AssertionError("the engine deletes by name")

    def delete_root_dir_contents(self) -> None:
        raise AssertionError("never")

    def delete_file(self, path: str) -> None:
        self._do("delete", path, lambda: self._real.delete_file(path))

    def move(self, src: str, dest: str) -> None:
        self._do("move", src, lambda: self._real.move(src, dest))

    def copy_file(self, src: str, dest: str) -> None:
        self._do("copy", dest, lambda: self._real.copy_file(src, dest))

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self._reading(path, self._real.open_input_stream)

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self._reading(path, self._real.open_input_file)

    def _reading(self, path: str, real: Callable[[str], pa.NativeFile]) -> pa.NativeFile:
        if self._plane.reach("read", path) == "cut":
            with open(path, "rb") as file:
                content = file.read()
            return pa.BufferReader(content[: len(content) // 2])
        return self._plane.reading(path, real(path))

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        after = self._plane.reach("write", path)
        real = self._real.open_output_stream(path)
        if after == "cut":
            return pa.PythonFile(_HalfWritten(real), mode="w")
        if after == "lost":
            return pa.PythonFile(_Unanswered(real), mode="w")
        return real

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise AssertionError("the engine appends to no file")


class _Unanswered(_HalfWritten):
    """Takes everything, and fails nevertheless."""

    def write(self, content: Any) -> int:
        self._real.write(bytes(content))
        self._real.flush()
        raise OSError(errno.EIO, "the answer is lost")
