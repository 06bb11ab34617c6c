"""The publisher of each kind of sink, and how those ask a sink what it has seen who must not start Java."""

from __future__ import annotations

from state_engine.core.checkpoints.checkpoint import DataFile, StagedSink
from state_engine.core.checkpoints.pending import Seen
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.databases.sink import SqlPublisher
from state_engine.job.job_tables import JobTables
from state_engine.publishing.sink_places import SinkPlaces
from state_engine.sinks.base import Publisher
from state_engine.sinks.delta import (
    DeltaPublisher,
    LogPublisher,
    change_once,
    check_active,
    check_published,
    rewritten,
)
from state_engine.sinks.delta_spark import SparkDeltaPublisher
from state_engine.sinks.files import FilePublisher
from state_engine.sinks.foreach_batch import ForeachBatchPublisher
from state_engine.sinks.kafka.kafka_publisher import KafkaPublisher
from state_engine.storage.delta.kernel import DeltaKernel, FileGroup, InactiveFilesError
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.layout import WRITE_ID

Publishers = dict[str, Publisher]
"""By kind of sink."""


def publishers(kernel: DeltaKernel, tables: JobTables, functions: ForeachBatchPublisher) -> Publishers:
    """Of every kind of sink.

    Args:
        functions: calls those of the job's code.
    """
    return {
        SinkKind.DELTA: DeltaPublisher(kernel),
        SinkKind.DELTA_SPARK: SparkDeltaPublisher(kernel),
        SinkKind.FILES: FilePublisher(kernel.disk.durability, kernel.write_new),
        SinkKind.DEAD_LETTERS: DeadLetterPublisher(kernel, tables),
        SinkKind.SQL: SqlPublisher(),
        SinkKind.FOREACH_BATCH: functions,
        SinkKind.KAFKA: KafkaPublisher(kernel),
    }


def seen_without_java(places: SinkPlaces) -> Seen:
    """Asks sinks what they have seen, in their own files and databases."""
    looking: Publishers = {
        SinkKind.FILES: FilePublisher(),
        SinkKind.SQL: SqlPublisher(),
        SinkKind.FOREACH_BATCH: ForeachBatchPublisher(None),
        SinkKind.KAFKA: KafkaPublisher(None),
    }

    def seen(staged: StagedSink) -> int:
        app = places.app_of(staged.name)
        if SinkKind(staged.kind).has_log:
            log = DeltaLog(staged.path).newest()
            return log.transactions.get(app, 0) if log else 0
        return looking[staged.kind].seen(staged.path, app)

    return seen


class DeadLetterPublisher(LogPublisher):
    """Publishes refused rows to the job's own table of dead letters, each file into the partition that its path names.

    A partition is an attempt. Letters are withdrawn like outputs where the head moves to another path.
    """

    def __init__(self, kernel: DeltaKernel, tables: JobTables) -> None:
        super().__init__(kernel)
        self._tables = tables

    def _publish(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        self._tables.ensure_dead_letters()
        if self.seen(staged.path, app) < checkpoint_id:
            try:
                if change_once(self._kernel, staged, app, checkpoint_id, _by_partition(staged)):
                    return
            except InactiveFilesError as error:
                raise rewritten(staged, error.paths) from error
        check_published(staged, app, checkpoint_id, active=self._kernel.active_files)

    def check_withdrawable(self, staged: StagedSink) -> None:
        check_active(self._kernel, staged, lineage=False)


def _by_partition(staged: StagedSink) -> list[FileGroup]:
    """A row that moves the head may bring files of several attempts."""
    groups: dict[str, list[DataFile]] = {}
    for file in staged.files:
        groups.setdefault(file.path.split("/")[0].removeprefix(f"{WRITE_ID.name}="), []).append(file)
    return [FileGroup(files, {WRITE_ID.name: write_id}) for write_id, files in groups.items()]
