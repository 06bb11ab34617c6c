"""Where outputs wait that go into no table and no directory, but into a database or a function: in the job's root.

    <root>/<job>/sinks/<sink>/<target>/<write_id>/part-….parquet     outputs, staged and kept: a restore may bring them
    <root>/<job>/sinks/<sink>/<target>/….json                        notes of the sink

A target is one database table, or one function, that the sink had: each keeps what is its own. Publishers look below
the root as it is now, so a root that was moved is published from as well.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import pyarrow.fs as pafs

from state_engine.backends.delta.kernel import DeltaKernel
from state_engine.backends.files import join, open_location

_SINKS = "sinks"
_ROOTS: WeakKeyDictionary[DeltaKernel, str] = WeakKeyDictionary()


class Staging:
    """The staged outputs below one root, as publishers find them.

    Args:
        kernel: of the engine; sinks of that engine stage below this root from now on.
        root: URI.
    """

    def __init__(self, kernel: DeltaKernel, root: str) -> None:
        # ``Sink.prepare`` is not told the root, only the kernel, of which an engine has one for its one root
        _ROOTS[kernel] = root
        self._root = root

    def here(self, uri: str) -> str:
        """Where a directory of ``staging_directory`` is, now that the root may have been moved."""
        return join(self._root, *uri.rsplit("/", 4)[1:])


def staging_directory(kernel: DeltaKernel, app: str, target: str) -> str:
    """Where a sink stages outputs for a target, which is named by letters and digits."""
    _, job, sink = app.split("/")
    return join(_ROOTS[kernel], job, _SINKS, sink, target)


def write_note(uri: str, note: dict[str, Any]) -> None:
    """Write a JSON file, whole or not at all, in place of the one before."""
    at, aside = open_location(uri), open_location(f"{uri}.{uuid4().hex}")
    at.fs.create_dir(at.path.rsplit("/", 1)[0])
    with at.fs.open_output_stream(aside.path) as stream:
        stream.write(json.dumps(note).encode())
    at.fs.move(aside.path, at.path)


def read_note(uri: str) -> dict[str, Any] | None:
    """What ``write_note`` wrote; None where it wrote nothing."""
    at = open_location(uri)
    if at.info().type != pafs.FileType.File:
        return None
    with at.fs.open_input_stream(at.path) as stream:
        found: dict[str, Any] = json.loads(stream.read())
    return found
