"""``KafkaPublisher``: sends the staged rows of a checkpoint, and its marker, in transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.errors import CommitFailedError, CommitUnknownError, SinkError, SinkIdentityError
from state_engine.sinks.base import DROP_ROWS, Publisher, verify_files
from state_engine.sinks.kafka.kafka_target import KafkaTarget
from state_engine.sinks.kafka.markers import Marker, Markers, check_continued
from state_engine.sinks.staging import read_note, recorded_target, write_note
from state_engine.spark.kafka.clients import (
    KafkaAdmin,
    KafkaError,
    TransactionalProducer,
    kafka_admin,
    transactional_producer,
)
from state_engine.storage.stores.files import join
from state_engine.storage.stores.locks import table_lock
from state_engine.storage.stores.parquet_reading import open_recorded

if TYPE_CHECKING:
    from state_engine.storage.delta.kernel import DeltaKernel

_SHOWN = "shown.json"
"""Note of what was published, for those who do not start Java; the marker decides."""
_ROWS_AT_ONCE = 10_000
_ATTEMPTS = 3
"""So often a publish begins anew, where a broker or another publisher was in the way."""


class _UnknownEndError(Exception):
    """A commit broke off, and may have happened."""

    def __init__(self, cause: KafkaError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class KafkaPublisher(Publisher):
    """Publishes to Kafka, from the files that are staged in a root.

    Args:
        kernel: of the session whose Java has Kafka's clients; None for those who only ask what was seen.
    """

    def __init__(self, kernel: DeltaKernel | None) -> None:
        self._kernel = kernel

    def seen(self, uri: str, app: str) -> int:
        if self._kernel is None:
            note = read_note(join(uri, _SHOWN))
            return int(note["checkpoint_id"]) if note else 0
        note = recorded_target(uri)
        if note is None:
            return 0
        marker = self._marker(KafkaTarget.from_json(note), app, sink=app.rsplit("/", 1)[-1])
        return 0 if marker is None else marker.seen

    def check_seen(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        target = KafkaTarget.of(staged)
        marker = self._marker(target, app, sink=staged.name)
        if marker is not None and marker.checkpoint_id == checkpoint_id:
            check_continued(marker, Marker.before(staged, target, checkpoint_id), app=app, sink=staged.name)

    def withdraws(self, staged: StagedSink) -> bool:
        return False

    def check_withdrawable(self, staged: StagedSink) -> None:
        _check_withdrawals(staged)
        verify_files(staged.path, staged.files, what=f"sink '{staged.name}'")

    def _publish(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        _check_withdrawals(staged)
        target, who = KafkaTarget.of(staged), f"sink '{staged.name}', checkpoint {checkpoint_id}"
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with table_lock(staged.path):
                    self._publish_rest(staged, target, app, checkpoint_id)
                    write_note(join(staged.path, _SHOWN), {"checkpoint_id": checkpoint_id})
                return
            except _UnknownEndError as error:
                if attempt == _ATTEMPTS:
                    raise CommitUnknownError(
                        f"{who}: a transaction to {target.shown} broke off ({error}). Run again: that looks up first "
                        "whether it was committed"
                    ) from error.cause
            except KafkaError as error:
                if not error.is_passing:
                    raise SinkError(
                        f"{who}: {target.shown} does not take the rows ({error}). Nothing is lost: let it take them "
                        f"and run again, or {DROP_ROWS}"
                    ) from error
                if attempt == _ATTEMPTS:
                    raise CommitFailedError(
                        f"{who}: nothing more was sent to {target.shown} ({error}): run again"
                    ) from error

    def _publish_rest(self, staged: StagedSink, target: KafkaTarget, app: str, checkpoint_id: int) -> None:
        """Send what the marker says is not there yet."""
        assert self._kernel is not None, "publishing needs a session"
        spark, markers = self._kernel.spark, Markers(self._kernel.spark, target)
        with (
            kafka_admin(spark, target.cluster) as admin,
            transactional_producer(
                spark, target.cluster, f"statelake-{app}", timeout=target.timeout
            ) as producer,
        ):
            _check_identity(admin, staged, target)
            producer.take_over()  # first: from now on nobody else can change the marker
            marker = markers.all(admin, everything=True).get(app)
            begun = Marker.before(staged, target, checkpoint_id)
            if marker is not None:
                check_continued(marker, begun, app=app, sink=staged.name)
                begun = marker if marker.checkpoint_id == checkpoint_id else begun
            if begun.part and begun.rows == begun.of:
                return
            what = f"sink '{staged.name}', checkpoint {checkpoint_id}"
            verify_files(staged.path, staged.files, what=what, footers=True)
            _send(producer, staged, target, app, begun)

    def _marker(self, target: KafkaTarget, app: str, *, sink: str) -> Marker | None:
        assert self._kernel is not None, "a marker is read by Java"
        try:
            with kafka_admin(self._kernel.spark, target.cluster) as admin:
                if target.marker_topic not in admin.topics([target.marker_topic]):
                    return None
                return Markers(self._kernel.spark, target).all(admin).get(app)
        except KafkaError as error:
            raise SinkError(
                f"sink '{sink}': {target.shown} cannot be used ({error}). Repair that and run again; nothing is lost"
            ) from error


def _send(
    producer: TransactionalProducer, staged: StagedSink, target: KafkaTarget, app: str, begun: Marker
) -> None:
    """Send the rows behind those that a marker counts, part by part."""
    marker = begun
    rows = _rows(staged, after=begun.rows)
    while not marker.part or marker.rows < marker.of:
        producer.begin()
        end = min(marker.rows + target.max_rows, marker.of)
        marker = replace(marker, part=marker.part + 1)
        while marker.rows < end:
            some, rest = next(rows), None
            if marker.rows + some.num_rows > end:
                some, rest = some.slice(0, end - marker.rows), some.slice(end - marker.rows)
            producer.send(target.topic, target.frames(some, sink=staged.name))
            marker = replace(marker, rows=marker.rows + some.num_rows)
            rows = rows if rest is None else _with_first(rest, rows)
        producer.send(target.marker_topic, marker.frame(app))
        with _committing():
            producer.commit()


@contextmanager
def _committing() -> Iterator[None]:
    """A commit that breaks off may have happened; one that was refused has not."""
    try:
        yield
    except KafkaError as error:
        if error.is_passing and not error.is_fenced:
            raise _UnknownEndError(error) from error
        raise


def _with_first(first: pa.Table, rest: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    yield from rest


def _rows(staged: StagedSink, *, after: int) -> Iterator[pa.Table]:
    """Staged rows in their order, some at a time.

    Args:
        after: how many of them are left out, from the first on.
    """
    left = after
    for file in staged.files:
        if file.rows <= left:
            left -= file.rows
            continue
        recorded = open_recorded(join(staged.path, file.path), file, of=f"sink '{staged.name}'")
        for batch in recorded.batches(_ROWS_AT_ONCE):
            table = pa.Table.from_batches([batch])
            if left < table.num_rows:
                yield table.slice(left)
            left = max(0, left - table.num_rows)


def _check_identity(admin: KafkaAdmin, staged: StagedSink, target: KafkaTarget) -> None:
    there = admin.topics([target.topic, target.marker_topic])
    now = " ".join(there[name].id for name in (target.topic, target.marker_topic) if name in there)
    if now != staged.identity:
        raise SinkIdentityError(
            f"sink '{staged.name}': {target.shown}, or the topic of its markers, is gone, or was recreated, since rows "
            f"were staged for it. To go on, {DROP_ROWS}"
        )


def _check_withdrawals(staged: StagedSink) -> None:
    if staged.withdrawn:
        raise SinkError(
            f"sink '{staged.name}': records that were sent to Kafka cannot be withdrawn. Keep them with "
            'outputs="keep" (--outputs keep)'
        )
