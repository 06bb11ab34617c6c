"""Outputs for databases and functions wait in the job's root.

    <root>/<job>/sinks/<sink>/<target>/<write_id>/part-….parquet     outputs, staged and kept: a restore may bring them
    <root>/<job>/sinks/<sink>/<target>/….json                        notes of the sink

A target is one database table, or one function, that the sink had: each keeps what is its own. Publishers look below
the root as it is now, so a root that was moved is published from as well.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.checkpoints.row_outputs import DEAD_LETTERS
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores.files import join, open_location

_SINKS = "sinks"
_TARGET = "target.json"


@dataclass(frozen=True)
class Staging:
    """The staged outputs below one root."""

    root: str

    def directory(self, app: str, target: str) -> str:
        """The directory in which a sink stages outputs for a target; letters and digits name it.

        Example:
            >>> Staging("file:///state").directory("4f6e/totals/report", "a1b2")
            'file:///state/totals/sinks/report/a1b2'
        """
        _, job, sink = app.split("/")
        return join(self.root, job, _SINKS, sink, target)

    def here(self, uri: str) -> str:
        """The present place of a directory that ``directory`` gave: the root may have moved.

        Example:
            >>> Staging("file:///moved").here("file:///state/totals/sinks/report/a1b2")
            'file:///moved/totals/sinks/report/a1b2'
        """
        return join(self.root, *uri.rsplit("/", 4)[1:])


def located(staged: StagedSink, layout: JobLayout) -> StagedSink:
    """A sink of a row with the path that it has now: dead letters and staged outputs move with the root."""
    if staged.kind == DEAD_LETTERS:
        return replace(staged, path=layout.dead_letters)
    if SinkKind(staged.kind).is_staged_in_root:
        return replace(staged, path=Staging(layout.root).here(staged.path))
    return staged


def write_note(uri: str, note: dict[str, Any]) -> None:
    """Write a JSON object behind the checksum of its text, whole or not at all, instead of the one before."""
    at, text = open_location(uri), json.dumps(note).encode()
    at.above().make_directory()
    at.write_whole(_checksum(text) + b"\n" + text)


def read_note(uri: str) -> dict[str, Any] | None:
    """What ``write_note`` wrote; None where it wrote nothing."""
    at = open_location(uri)
    if not at.is_file():
        return None
    checksum, _, text = (content := at.read()).rpartition(b"\n")  # version 0.2.0 wrote no checksum
    return at.parsed(text if checksum in (b"", _checksum(text)) else content)


def _checksum(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest().encode()


def record_target(uri: str, target: dict[str, Any]) -> None:
    """Note in a directory that ``Staging.directory`` gave what its outputs are for; nothing where that is noted."""
    if recorded_target(uri) != target:
        write_note(join(uri, _TARGET), target)


def recorded_target(uri: str) -> dict[str, Any] | None:
    """What ``record_target`` noted; None where it noted nothing."""
    return read_note(join(uri, _TARGET))
