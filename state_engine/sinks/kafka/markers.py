"""Markers: what sinks have published, in a compacted topic of one partition.

A marker is sent in the transaction that sends the rows, so that both are there or neither is. Its key is the
application ``<root id>/<job>/<sink>``, so that the newest marker of each stays.

    key      <root id>/<job>/<sink>
    value    {"checkpoint_id": 7, "part": 2, "rows": 200000, "of": 250000, "files": "…", "topic": "…"}

``rows`` are those that were sent by this part and the ones before it, of all that the checkpoint has.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import SinkError, SinkIdentityError
from state_engine.sinks.kafka.kafka_target import KafkaTarget, marker_frame
from state_engine.sinks.spark_writer import note_of
from state_engine.spark.kafka.clients import LATEST, KafkaAdmin, Topic, newest_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPTS, _PAUSE_S = 50, 0.1
_SEGMENTS = {"segment_ms": "3600000", "min_cleanable_dirty_ratio": "0.1"}
"""Compaction leaves the newest segment alone: a new one begins each hour."""


@dataclass(frozen=True)
class Marker:
    """How far an application has published.

    Attributes:
        part: the transaction of it, from 1 on; 0 before there is one.
        files: what stands for its rows, see ``note_of``.
    """

    checkpoint_id: int
    part: int
    rows: int
    of: int
    files: str
    topic: str

    @property
    def seen(self) -> int:
        """The newest checkpoint that was sent completely."""
        return self.checkpoint_id if self.rows == self.of else self.checkpoint_id - 1

    @staticmethod
    def before(staged: StagedSink, target: KafkaTarget, checkpoint_id: int) -> Marker:
        """The marker of a checkpoint before its first record."""
        return Marker(checkpoint_id, 0, 0, staged.rows, note_of(staged), target.topic)

    def frame(self, app: str) -> bytes:
        return marker_frame(app, json.dumps(asdict(self)))


def check_continued(recorded: Marker, begun: Marker, *, app: str, sink: str) -> None:
    """Refuse to publish a checkpoint where a later one, or another of its number, was."""
    other = recorded.checkpoint_id == begun.checkpoint_id and recorded.files != begun.files
    if other or recorded.checkpoint_id > begun.checkpoint_id:
        held = f"{'other ' if other else ''}rows of checkpoint {recorded.checkpoint_id}"
        raise SinkIdentityError(
            f"sink '{sink}': topic {recorded.topic} already holds {held} by '{app}': a copy of this root, or a "
            "re-created job, writes to the same topic. Give each its own, or restore the checkpoint's parent"
        )


class Markers:
    """The markers beside a topic."""

    def __init__(self, spark: SparkSession, target: KafkaTarget) -> None:
        self._spark, self._target = spark, target

    def make(self, admin: KafkaAdmin, *, sink: str) -> tuple[Topic, Topic]:
        """The topic and that of its markers, each made unless it is there."""
        names = [self._target.topic, self._target.marker_topic]
        there = admin.topics(names)
        if names[0] not in there:
            admin.create(names[0])
        if names[1] not in there:
            admin.create(names[1], partitions=1, cleanup_policy="compact", **_SEGMENTS)
        for _ in range(_ATTEMPTS):  # brokers hear of a new topic one after the other
            there = admin.topics(names)
            if len(there) == len(set(names)):
                self._check(admin, there[names[1]], sink)
                return there[names[0]], there[names[1]]
            time.sleep(_PAUSE_S)
        raise SinkError(f"sink '{sink}': topics {names} were made, and are not there yet: run again")

    def _check(self, admin: KafkaAdmin, topic: Topic, sink: str) -> None:
        policy = admin.topic_settings(topic.name).get("cleanup.policy")
        if policy != "compact" or len(topic.partitions) != 1:
            raise SinkError(
                f"sink '{sink}': topic {topic.name} has cleanup.policy={policy} and "
                f"{counted(len(topic.partitions), 'partition')}. It holds markers, which must not "
                "expire: make it with cleanup.policy=compact and one partition, or leave that to the sink"
            )

    def all(self, admin: KafkaAdmin, *, everything: bool = False) -> dict[str, Marker]:
        """The newest marker of every application.

        Args:
            everything: whether to wait for transactions that are open. Who has shut out all other producers of an
                application knows then that its marker is the last one.
        """
        place = (self._target.marker_topic, 0)
        end = admin.offsets([place], LATEST, committed=not everything)[place]
        patience = self._target.timeout + timedelta(seconds=30)
        texts = newest_values(
            self._spark, self._target.cluster, self._target.marker_topic, end=end, patience=patience
        )
        return {app: Marker(**json.loads(text)) for app, text in texts.items() if text}
