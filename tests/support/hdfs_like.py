"""A file system in memory that renames as HDFS does, for pyarrow; nothing in it can be locked.

What matters of HDFS, and is tested against a real one in ``tests/stores/test_file_sinks_on_hdfs.py``:

    rename    in one step; refused where the source, or the directory above the target, is not there, or the target is
              a file; where the target is a directory, the source is moved *into* it
    create    makes the directories above, and replaces a file
    delete    takes a directory with all that is in it
"""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs


class OnlyWhatIsUsed(pafs.FileSystemHandler):
    """A file system for pyarrow that refuses what the engine never asks for."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def get_type_name(self) -> str:
        return "of a test"

    def normalize_path(self, path: str) -> str:
        return path

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self.open_input_stream(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        raise AssertionError("the engine deletes by name")

    def delete_root_dir_contents(self) -> None:
        raise AssertionError("never")

    def copy_file(self, src: str, dest: str) -> None:
        raise AssertionError("nothing is copied")

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise AssertionError("the engine appends to no file")


class HdfsLike(OnlyWhatIsUsed):
    """The file system.

    Args:
        around: is given the name of each operation, its path and the operation; does it, or lets something happen.

    Attributes:
        files: content by path.
        directories: paths.
    """

    def __init__(
        self, around: Callable[[str, str, Callable[[], Any]], Any] = lambda _, __, act: act()
    ) -> None:
        self.files: dict[str, bytes] = {}
        self.directories: set[str] = set()
        self.around = around

    def location(self, uri: str) -> tuple[pafs.FileSystem, str]:
        """In place of ``files._remote``."""
        return pafs.PyFileSystem(self), uri.split("://", 1)[1]

    def write_new(self, uri: str, text: str) -> bool:
        """Of many writers of a file one wins, as with Delta's log store; it says whether this one did."""
        path = uri.split("://", 1)[1]

        def create() -> bool:
            if path in self.files:
                return False
            self._create(path, text.encode())
            return True

        return bool(self.around("create", path, create))

    def below(self, uri: str) -> list[str]:
        """Files by their path from a directory."""
        start = self.location(uri)[1] + "/"
        return [path.removeprefix(start) for path in self.files if path.startswith(start)]

    # -- operations -------------------------------------------------------------------------------------------------

    def move(self, src: str, dest: str) -> None:
        self.around("rename", f"{src} {dest}", lambda: self._move(src, dest))

    def _move(self, source: str, target: str) -> None:
        if target in self.directories:
            target = f"{target}/{source.rsplit('/', 1)[-1]}"
        there, start = self.files.keys() | self.directories, source + "/"
        if source == target and source in there:
            return
        if source not in there or target in there or target.startswith(start):
            raise OSError(errno.EIO, f"rename {source} to {target} is refused")
        if _above(target) not in self.directories:
            raise OSError(errno.EIO, f"rename {source} to {target} is refused: there is no such directory")
        if source in self.files:
            self.files[target] = self.files.pop(source)
            return
        for path in [p for p in self.files if p.startswith(start)]:
            self.files[f"{target}/{path.removeprefix(start)}"] = self.files.pop(path)
        moved = {d for d in self.directories if d == source or d.startswith(start)}
        self.directories -= moved
        self.directories |= {target + d.removeprefix(source) for d in moved}

    def create_dir(self, path: str, recursive: bool) -> None:
        self.around("mkdirs", path, lambda: self._make(path))

    def _make(self, path: str) -> None:
        made = set()
        while path and path not in self.directories:
            if path in self.files:
                raise FileExistsError(errno.EEXIST, "a file is there", path)
            made.add(path)
            path = _above(path)
        self.directories |= made

    def _create(self, path: str, content: bytes) -> None:
        if path in self.directories:
            raise FileExistsError(errno.EEXIST, "a directory is there", path)
        self._make(_above(path))
        self.files[path] = content

    def delete_file(self, path: str) -> None:
        def delete() -> None:
            if self.files.pop(path, None) is None:
                raise FileNotFoundError(errno.ENOENT, "no file", path)

        self.around("delete", path, delete)

    def delete_dir(self, path: str) -> None:
        def delete() -> None:
            if path not in self.directories:
                raise FileNotFoundError(errno.ENOENT, "no directory", path)
            start = path + "/"
            self.files = {p: c for p, c in self.files.items() if not p.startswith(start)}
            self.directories = {d for d in self.directories if d != path and not d.startswith(start)}

        self.around("delete all", path, delete)

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return pa.PythonFile(
            Written(lambda content: self.around("write", path, lambda: self._create(path, content))),
            mode="w",
        )

    # -- looks -------------------------------------------------------------------------------------------------------

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        return [self.around("look", path, partial(self._info, path)) for path in paths]

    def _info(self, path: str) -> pafs.FileInfo:
        if path in self.files:
            return pafs.FileInfo(path, pafs.FileType.File, size=len(self.files[path]))
        return pafs.FileInfo(
            path, pafs.FileType.Directory if path in self.directories else pafs.FileType.NotFound
        )

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        at = selector.base_dir.rstrip("/")

        def listed() -> list[pafs.FileInfo]:
            if at not in self.directories:
                if selector.allow_not_found:
                    return []
                raise FileNotFoundError(errno.ENOENT, "no directory", at)
            return [
                self._info(p) for p in sorted([*self.files, *self.directories]) if self._is_in(p, selector)
            ]

        entries: list[pafs.FileInfo] = self.around("list", at, listed)
        return entries

    def _is_in(self, path: str, selector: pafs.FileSelector) -> bool:
        start = selector.base_dir.rstrip("/") + "/"
        return path.startswith(start) and (selector.recursive or "/" not in path.removeprefix(start))

    def open_input_stream(self, path: str) -> pa.NativeFile:
        def read() -> bytes:
            if path not in self.files:
                raise FileNotFoundError(errno.ENOENT, "no file", path)
            return self.files[path]

        return pa.BufferReader(self.around("read", path, read))


class Written(io.BytesIO):
    """A file that is there when it is closed."""

    def __init__(self, done: Callable[[bytes], None]) -> None:
        super().__init__()
        self._done = done

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            super().close()
            self._done(content)


def _above(path: str) -> str:
    return path.rpartition("/")[0]
