"""``Watermarks``: event time of one operator in one micro-batch: where its watermark begins, and where it will end.

An operator's watermark is the smallest of its sources'. Timers need to know where it ends before the elements come.
What it is before every single element is for ``microbatch.routing.element_watermarks``; the rule itself for
``core.time.watermarks``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from state_engine.core.functions.function_calls import has_timers
from state_engine.core.time.watermarks import advanced
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.job.graph import OperatorNode, SourceNode
from state_engine.job.job import StatefulJob
from state_engine.microbatch.batch import BatchContext
from state_engine.microbatch.routing.origins import (
    Origins,
    held_back_before,
    may_be_held_back,
    origins_of,
    timed_sources,
)
from state_engine.microbatch.routing.routing import newest_by_source
from state_engine.microbatch.subtask.subtask_spec import BatchClocks
from state_engine.sources.frames import StreamFrame


def reached_ms(
    sources: Mapping[str, SourceNode], batch: BatchContext, newest_ms: Mapping[str, int]
) -> dict[str, int | None]:
    """The watermark of each source after a batch, as far as is known; None before its first row.

    Args:
        newest_ms: by source, the largest event time of the batch.
    """
    known, reached = batch.watermarks_ms, dict[str, int | None]()
    for name, node in sources.items():
        by_rows = advanced(
            known.get(name), newest_ms.get(name), out_of_orderness_ms=node.max_out_of_orderness_ms
        )
        reached[name] = batch.time.raised(name, by_rows)
    return reached


def operators_reached_ms(
    job: StatefulJob, batch: BatchContext, sources_ms: Mapping[str, int | None]
) -> dict[str, int]:
    """The watermarks of operators after a batch that those of the sources alone do not say; by uid."""
    before = batch.event_times
    after = replace(before, sources_ms=sources_ms)
    reached = {}
    for uid, operator in job.operators.items():
        may_be_idle = any(s.time_policy.idle_after_ms is not None for s in timed_sources(operator).values())
        recorded = may_be_idle or may_be_held_back(operator) or uid in before.operators_ms
        watermark_ms = after.of(operator) if recorded else None
        if watermark_ms is not None:
            reached[uid] = watermark_ms
    return reached


class Watermarks:
    """See the module docstring.

    Args:
        max_event_ms: by source, the largest event time of this batch as far as it is known; added to.
    """

    def __init__(self, operator: OperatorNode, batch: BatchContext, max_event_ms: dict[str, int]) -> None:
        self._batch, self._max_event_ms = batch, max_event_ms
        self._has_timers = has_timers(operator.function)
        self._sources = timed_sources(operator)
        self._operator = operator
        self.origins: Origins = origins_of(operator, batch.event_times)

    @property
    def timed(self) -> bool:
        return bool(self._sources)

    def look_ahead(self, frames: Sequence[StreamFrame]) -> None:
        """Find the largest event times in this batch where timers need them and the driver has the rows.

        Args:
            frames: those with event time.
        """
        for frame in frames:
            if self._has_timers and frame.sources and frame.table is not None:
                self.learn(newest_by_source(frame, frame.table, self._max_event_ms))

    def learn(self, newest_ms: Mapping[str, int]) -> None:
        """Take over event times of sources, where they are newer than those that are known."""
        for source, newest in newest_ms.items():
            self._max_event_ms[source] = max(newest, self._max_event_ms.get(source, newest))

    def start(self) -> int:
        """Where the watermark is before the batch; the smallest long where there is none."""
        return _or_none_yet(self._batch.event_times.start(self._operator))

    def end(self) -> int:
        """Where it is after the batch, as far as is known."""
        after = reached_ms(self._sources, self._batch, self._max_event_ms)
        return _or_none_yet(replace(self._batch.event_times, sources_ms=after).of(self._operator))

    def clocks(self) -> BatchClocks:
        """Time in this batch, as subtasks see it."""
        delays = [node.max_out_of_orderness_ms for node in self._sources.values()]
        parent, held_back_ms = self._batch.parent, held_back_before(self._operator)
        return BatchClocks(
            clock_ms=self._batch.clock_ms,
            watermark_ms=self.start(),
            end_watermark_ms=self.end(),
            out_of_orderness_ms=max(delays, default=0) + held_back_ms,
            drain=self._batch.drain,
            checkpoint_watermark_ms=parent.watermark_of(self._operator.uid) if parent else None,
            held_back_ms=held_back_ms,
        )


def _or_none_yet(watermark_ms: int | None) -> int:
    return MIN_TIMESTAMP if watermark_ms is None else watermark_ms
