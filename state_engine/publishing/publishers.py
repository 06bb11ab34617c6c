"""The publisher of each kind of sink, and how those ask a sink what it has seen who must not start Java."""

from __future__ import annotations

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.checkpoints.pending import Seen
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.databases.sink import SqlPublisher
from state_engine.job.job_tables import JobTables
from state_engine.publishing.dead_letters import DeadLetterPublisher
from state_engine.publishing.sink_places import SinkPlaces
from state_engine.sinks.base import Publisher
from state_engine.sinks.delta import DeltaPublisher
from state_engine.sinks.delta_spark import SparkDeltaPublisher
from state_engine.sinks.files import FilePublisher
from state_engine.sinks.foreach_batch import ForeachBatchPublisher
from state_engine.sinks.kafka.kafka_publisher import KafkaPublisher
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.delta.log import DeltaLog

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
