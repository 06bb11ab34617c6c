"""Files of a micro-batch that certainly failed: removed at once, so that they do not wait a day for a collection.

What is in no table's log is deleted, by the attempt's ``write_id``, which nobody else has: changes and operator state
here, what is staged for sinks and dead letters by ``AttemptSinks.give_up``. Changes that were committed to the log of
their table leave it, and a collection deletes them later, for somebody may have begun to read them. A task still at
work may write after this; a collection finds that, too. Where the outcome of a commit is not known, nothing is touched.
Plays the part of ``notifyCheckpointAborted`` of Flink's checkpoint storage, which discards the state of a failed
checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from state_engine.core.checkpoints.write_ids import write_id_in
from state_engine.storage.delta.kernel import DeltaKernel, InactiveFilesError
from state_engine.storage.layout import JobLayout, partition_path
from state_engine.storage.stores.files import is_local, join, open_location

_LOG = logging.getLogger(__name__)


@contextmanager
def leaving_rest_to_collection(layout: JobLayout, write_id: str) -> Iterator[None]:
    """Remove what an attempt wrote; what cannot be removed is left to a collection, which is logged."""
    try:
        yield
    except Exception:
        _LOG.warning(
            "job '%s': files of the failed attempt %s could not be removed; a collection will",
            layout.job,
            write_id,
            exc_info=True,
            extra={"job": layout.job, "write_id": write_id},
        )


def discard_state(
    write_id: str, *, layout: JobLayout, kernel: DeltaKernel, operators: Iterable[str], in_logs: bool
) -> None:
    """Remove the row that an attempt did not commit, and what it wrote of state.

    Args:
        in_logs: whether changes and operator state may be in the logs of their tables.
    """
    delete_beside(layout.checkpoints, write_id)
    for uri in (*map(layout.changelog, operators), layout.operator_state):
        if not (in_logs and _taken_out(kernel, uri, write_id)):
            delete_partition(uri, write_id)


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


def delete_partition(uri: str, write_id: str) -> None:
    """Delete what an attempt wrote into a table of the job's own."""
    delete_directory(_partition(uri, write_id))


def delete_beside(uri: str, write_id: str, owner: str = "") -> None:
    """Delete the files of an attempt from among all of a table; elsewhere than here a listing costs too much."""
    if not is_local(uri):
        return
    at = open_location(uri)
    for name in _names(uri):
        if write_id_in(name) == write_id and (not owner or f"-{owner}-" in name):
            with suppress(FileNotFoundError):
                at.inside(name).delete()


def _names(uri: str) -> list[str]:
    return list(open_location(uri).files(recursive=False))


def delete_directory(uri: str) -> None:
    """Delete a directory that only one attempt wrote to, if it is there."""
    at = open_location(uri)
    with suppress(FileNotFoundError):
        at.delete_directory()
