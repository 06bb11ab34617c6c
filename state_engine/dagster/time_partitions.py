"""A job's time partitions as Dagster's, and which of them wait to be run.

The keys are the engine's, character by character, days of 23 and 25 hours included. Which partition is next, and
whether one was run, is never asked of Dagster: the rows of ``checkpoints`` show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import dagster as dg

from state_engine.core.time.partitions import Partition, TimePartitions
from state_engine.dagster.dagster_internals import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
)
from state_engine.monitoring.job_history import JobHistory
from state_engine.registry import EVERY_TEN_MINUTES, RegisteredJob

MOST_AT_ONCE = 100
"""Partitions that a schedule or a sensor asks of one run; the next tick asks for more."""
MINUTES_AFTER = 10
"""How long after the end of a partition the schedule of a job without a cron of its own looks for it."""


def definition_of(partitions: TimePartitions) -> dg.TimeWindowPartitionsDefinition:
    """Dagster's partitions with the same keys and bounds.

    Example:
        >>> definition_of(TimePartitions("at", start="2013-11-02", end="2013-11-04")).get_partition_keys()
        ['2013-11-02', '2013-11-03']
    """
    kind = dg.DailyPartitionsDefinition if partitions.every == "day" else dg.HourlyPartitionsDefinition
    # as instants: an hour that a clock shows twice has no text that Dagster reads back, and a day begins no hour there
    begin = partitions.first().start_ms
    end = None if partitions.end is None else _end_ms(partitions)
    return kind(
        start_date=_local(partitions, begin),
        end_date=None if end is None else _local(partitions, end),
        timezone=partitions.timezone,
    )


def previous_of_itself(key: dg.AssetKey) -> dg.AssetDep:
    """A partition of an asset needs the one before it."""
    before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
    return dg.AssetDep(key, partition_mapping=before)


def cron_of(registered: RegisteredJob, definition: dg.TimeWindowPartitionsDefinition) -> str:
    """When a schedule looks for partitions that are over: as the job says, or a little after each has ended."""
    if registered.cron != EVERY_TEN_MINUTES:
        return registered.cron
    return definition.get_cron_schedule(minute_of_hour=MINUTES_AFTER)


def waiting(
    partitions: TimePartitions, history: JobHistory | None, *, now_ms: int, most: int = MOST_AT_ONCE
) -> list[Partition]:
    """Partitions that are over and were not run, in order, the next one first; up to a number."""
    head = history.head if history else None
    return partitions.waiting(head.partition_end_ms if head else None, now_ms=now_ms, most=most)


def request_for(
    job: str, wanted: Sequence[Partition], *, tags: Mapping[str, str] | None = None
) -> dg.RunRequest:
    """A run of partitions that lie side by side; of whatever waits for any, where none is named."""
    more = dict(tags or {})
    if not wanted:
        return dg.RunRequest(tags=more)
    # another run may have been faster: what was run meanwhile is not to be run once more
    config = {"ops": {f"{job}_micro_batches": {"config": {"missing_only": True}}}}
    if len(wanted) == 1:
        return dg.RunRequest(partition_key=wanted[0].key, run_config=config, tags=more)
    return dg.RunRequest(run_config=config, tags={**range_tags(wanted[0].key, wanted[-1].key), **more})


def range_tags(first: str, last: str) -> dict[str, str]:
    """What makes one run of many partitions."""
    return {ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last}


def _end_ms(partitions: TimePartitions) -> int:
    end = TimePartitions(
        "at", every=partitions.every, start=partitions.end or "", timezone=partitions.timezone
    )
    return end.first().start_ms


def _local(partitions: TimePartitions, at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, partitions.zone)
