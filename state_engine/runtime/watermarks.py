"""``Watermarks``: event time of one operator in one micro-batch: where its watermark begins, and where it will end.

An operator's watermark is the smallest of its sources'. Timers need to know where it ends before the elements come;
that takes a small Spark job of its own, which only an operator with timers pays for. Mirrors Flink's
``BoundedOutOfOrdernessWatermarks`` and the ``StatusWatermarkValve`` behind several inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from state_engine.core.function_calls import has_timers
from state_engine.core.timer_service import MIN_TIMESTAMP
from state_engine.runtime.batch import BatchContext
from state_engine.runtime.few_routing import newest_by_source
from state_engine.runtime.frames import StreamFrame, source_column
from state_engine.runtime.graph import OperatorNode, SourceNode, upstream
from state_engine.runtime.job import StatefulJob
from state_engine.runtime.subtask_spec import BatchClocks


class Watermarks:
    """See the module docstring.

    Args:
        job, operator, batch: what runs.
        max_event_ms: by source, the largest event time of this batch as far as it is known; added to.
    """

    def __init__(
        self, job: StatefulJob, operator: OperatorNode, batch: BatchContext, max_event_ms: dict[str, int]
    ) -> None:
        self._batch, self._max_event_ms = batch, max_event_ms
        self._has_timers = has_timers(operator.function)
        self._sources = {
            node.name: node
            for node in upstream(operator)
            if isinstance(node, SourceNode) and node.event_time is not None
        }
        self._what = f"operator '{operator.uid}'"

    @property
    def timed(self) -> bool:
        """Whether any source of the operator has event time."""
        return bool(self._sources)

    def look_ahead(
        self, frames: Sequence[StreamFrame], collect: Callable[[DataFrame], Sequence[Any]]
    ) -> None:
        """Find the largest event times in this batch where timers need them and nobody read the rows before.

        Args:
            frames: inputs of the operator.
            collect: runs a DataFrame.
        """
        if not self._has_timers:
            return
        for frame in frames:
            if frame.event_time is None or not set(frame.sources) - set(self._max_event_ms):
                continue
            at = frame.event_time_column(self._what)
            if frame.table is not None:
                self._max_event_ms.update(newest_by_source(frame, frame.table, self._max_event_ms))
                continue
            rows = frame.rows.select(source_column(frame).alias("source"), at.alias("at"))
            for name, newest in collect(rows.groupBy("source").agg(F.max("at"))):
                if name is not None and newest is not None:
                    self._max_event_ms[name] = max(newest, self._max_event_ms.get(name, newest))

    def start(self) -> int:
        """Where the watermark is before the batch; the smallest long where there is none."""
        return self._smallest([self._batch.watermarks_ms.get(name) for name in self._sources])

    def end(self) -> int:
        """Where it is after the batch, as far as is known."""
        return self._smallest([self._after(node) for node in self._sources.values()])

    def clocks(self) -> BatchClocks:
        """Time in this batch, as subtasks see it."""
        delays = [node.max_out_of_orderness_ms for node in self._sources.values()]
        return BatchClocks(
            clock_ms=self._batch.clock_ms,
            watermark_ms=self.start(),
            end_watermark_ms=self.end(),
            out_of_orderness_ms=max(delays, default=None),
            drain=self._batch.drain,
        )

    def _after(self, node: SourceNode) -> int | None:
        before, newest = self._batch.watermarks_ms.get(node.name), self._max_event_ms.get(node.name)
        if newest is None:
            return before
        reached = newest - node.max_out_of_orderness_ms
        return reached if before is None else max(before, reached)

    @staticmethod
    def _smallest(found: Sequence[int | None]) -> int:
        known = [w for w in found if w is not None]
        return min(known) if known and len(known) == len(found) else MIN_TIMESTAMP
