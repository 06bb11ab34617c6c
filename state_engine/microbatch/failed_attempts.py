"""Files of a micro-batch that certainly failed: removed at once, so that they do not wait a day for a collection.

What is in no table's log is deleted, by the attempt's ``write_id``, which nobody else has: what is staged for sinks,
dead letters, changes and operator state. Changes that were committed to the log of their table leave it, and a
collection deletes them later, for somebody may have begun to read them. A task that is still at work may write after
this; a collection finds that, too. Where the outcome of a commit is not known, nothing is touched. Plays the part of
``notifyCheckpointAborted`` of Flink's checkpoint storage, which discards the state of a failed checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pyarrow.fs as pafs

from state_engine.core.checkpoints.write_ids import owner_mark, write_id_in
from state_engine.job.graph import SinkNode
from state_engine.sinks.delta import DeltaSink
from state_engine.sinks.file_moves import STAGED_PREFIX
from state_engine.sinks.files import FileSink
from state_engine.sinks.spark_writer import STAGED
from state_engine.sinks.staging import Staging
from state_engine.storage.delta.kernel import DeltaKernel, InactiveFilesError
from state_engine.storage.files import is_local, join, open_location
from state_engine.storage.layout import JobLayout, partition_path

_LOG = logging.getLogger(__name__)


def discard(
    write_id: str,
    *,
    layout: JobLayout,
    app: str,
    kernel: DeltaKernel,
    operators: Iterable[str],
    sinks: Iterable[SinkNode],
    in_logs: bool,
) -> None:
    """Remove what an attempt wrote; what cannot be removed is left to a collection.

    Args:
        app: application id of the job, ``<root id>/<job>``.
        operators: uids.
        sinks: of the job.
        in_logs: whether changes and operator state may be in the logs of their tables.
    """
    try:
        _delete_directory(_partition(layout.dead_letters, write_id))
        for node in sinks:
            for uri in _staged(node, write_id, layout, app):
                _delete_directory(uri)
            if isinstance(node.sink, DeltaSink):
                _delete_beside(node.sink.path, write_id, owner_mark(f"{app}/{node.name}"))
        _delete_beside(layout.checkpoints, write_id)  # the row that was not committed
        for uri in (*map(layout.changelog, operators), layout.operator_state):
            if not (in_logs and _taken_out(kernel, uri, write_id)):
                _delete_directory(_partition(uri, write_id))
    except Exception:
        _LOG.warning(
            "job '%s': files of the failed attempt %s could not be removed; a collection will",
            layout.job,
            write_id,
            exc_info=True,
            extra={"job": layout.job, "write_id": write_id},
        )


def _staged(node: SinkNode, write_id: str, layout: JobLayout, app: str) -> Iterator[str]:
    """The directories that only this attempt writes to."""
    place = node.sink.place(f"{app}/{node.name}", Staging(layout.root))
    if isinstance(node.sink, FileSink):
        yield join(place, f"{STAGED_PREFIX}{write_id}")
    elif isinstance(node.sink, DeltaSink):
        yield join(place, STAGED, write_id)
    else:
        yield join(place, write_id)


def _taken_out(kernel: DeltaKernel, uri: str, write_id: str) -> bool:
    """Take what an attempt committed to a table out of its log; False where it committed nothing there."""
    listed = {partition_path(write_id, name) for name in _names(_partition(uri, write_id))}
    while listed:
        try:
            kernel.change(uri, add=[], remove=sorted(listed))
            return True
        except InactiveFilesError as error:
            listed -= set(error.paths)
    return False


def _partition(uri: str, write_id: str) -> str:
    """The directory of an attempt in a table of the job's own."""
    return join(uri, partition_path(write_id, "").rstrip("/"))


def _delete_beside(uri: str, write_id: str, owner: str = "") -> None:
    """Delete the files of an attempt from among all of a table; elsewhere than here a listing costs too much."""
    if not is_local(uri):
        return
    at = open_location(uri)
    for name in _names(uri):
        if write_id_in(name) == write_id and (not owner or f"-{owner}-" in name):
            with suppress(FileNotFoundError):
                at.inside(name).delete()


def _names(uri: str) -> list[str]:
    at = open_location(uri)
    entries = at.listing(missing_ok=True)
    return [info.base_name for info in entries if info.type == pafs.FileType.File]


def _delete_directory(uri: str) -> None:
    at = open_location(uri)
    with suppress(FileNotFoundError):
        at.delete_directory()
