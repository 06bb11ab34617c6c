"""``AttemptSinks``: what one attempt emits, from the sinks that are prepared for it to what readers see of it.

    prepare   steps 2 to 4   a sink makes sure that it can take the columns, and says where its files go
    add       steps 2 to 4   what the subtasks wrote, which no reader sees yet
    stage     step 7         the lists of files go into the row, checked
    publish   step 9         readers see them
    give_up                  instead of the rest, where the attempt has certainly failed: the files go

The files of an attempt that certainly failed go at once, so that they do not wait a day for a collection. What is in no
table's log is deleted, by the attempt's ``write_id``, which nobody else has. Changes that were committed to the log of
their table leave it, and a collection deletes them later, for somebody may have begun to read them. A task still at
work may write after this; a collection finds that, too. Where the outcome of a commit is not known, nothing is touched.

Plays the part of Flink's ``CommittableCollector``: what the writers of a sink hand to its committer at a checkpoint;
and of ``notifyCheckpointAborted`` of its checkpoint storage, which discards the state of a failed one. Decision 0030.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow, DataFile
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.write_ids import write_id_in
from state_engine.job.graph import SinkNode
from state_engine.publishing.publication import Publication
from state_engine.publishing.sink_places import Declared
from state_engine.publishing.stale_outputs import replacing_stale
from state_engine.sinks.base import SinkRequest, SinkTarget, naming_damage, verify_files
from state_engine.sinks.staging import Staging
from state_engine.state_tables.states import PublishedState
from state_engine.storage.delta.kernel import DeltaKernel, InactiveFilesError
from state_engine.storage.layout import JobLayout, partition_path
from state_engine.storage.stores.files import is_local, join, open_location


@dataclass(frozen=True)
class OutputsOfJob:
    """What the outputs of all attempts of a run have in common."""

    kernel: DeltaKernel
    publication: Publication
    layout: JobLayout
    declared: Declared = None
    published: tuple[PublishedState, ...] = ()

    def of(self, write_id: str) -> AttemptSinks:
        return AttemptSinks(self, write_id)


@dataclass
class AttemptSinks:
    """The outputs of one attempt."""

    of_job: OutputsOfJob
    write_id: str
    targets: dict[str, SinkTarget] = field(default_factory=dict)
    files: dict[str, list[DataFile]] = field(default_factory=dict)
    dead_letters: list[DataFile] = field(default_factory=list)

    @property
    def kernel(self) -> DeltaKernel:
        """Of the job."""
        return self.of_job.kernel

    def prepare(self, node: SinkNode, schema: pa.Schema) -> SinkTarget:
        """Make sure that a sink can take columns; where its files go."""
        node.sink.check_columns(schema, name=node.name)
        publication = self.of_job.publication
        with naming_damage(node.name):
            target = node.sink.prepare(
                SinkRequest(
                    kernel=self.of_job.kernel,
                    staging=Staging(self.of_job.layout.root),
                    name=node.name,
                    app=publication.places.app_of(node.name),
                    schema=schema,
                    write_id=self.write_id,
                    known=publication.knows(node.name),
                )
            )
        self.targets[node.name] = target
        return target

    def add(self, sink: str, files: Iterable[DataFile]) -> None:
        """Take over files that tasks wrote for a sink."""
        self.files.setdefault(sink, []).extend(files)

    def stage(self, row: CheckpointRow, rows: History) -> CheckpointRow:
        """The row of the attempt with the list of every sink's files, and of stale outputs that leave them with it.

        Args:
            rows: of the job, as the row was planned on.
        """
        sinks = [target.staged(self.files.get(name, [])) for name, target in self.targets.items()]
        for sink in sinks:
            verify_files(sink.path, sink.files, what=f"sink '{sink.name}'")
        self.of_job.publication.check_identity(sinks)
        tables = [table.staged() for table in self.of_job.published]
        staged = replace(row, sinks=[*sinks, *tables], dead_letters=self.dead_letters)
        if row.partition and row.branch == MAIN:
            return replacing_stale(staged, rows, self.of_job.publication, self.of_job.declared)
        return staged

    def publish(self, row: CheckpointRow) -> int:
        """Make the outputs visible that the committed row lists; the number of Delta commits.

        Published tables that could not follow are left behind, see ``CheckpointCoordinator.check_tables``.
        """
        return self.of_job.publication.publish(row, raises_at_once=False)

    def give_up(self) -> None:
        """Remove what was written for sinks, and the dead letters."""
        delete_partition(self.of_job.layout.dead_letters, self.write_id)
        for target in self.targets.values():
            if target.directory == target.uri:
                delete_beside(target.uri, self.write_id, target.owner)
            else:
                delete_directory(target.directory)


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
