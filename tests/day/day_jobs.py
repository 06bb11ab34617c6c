"""The jobs of somebody's own: sums of meter readings, as they come (``readings``) and day by day (``daily``).

Every site of these tests has a copy of this file, registered by its settings. The function obeys the files in the
directory ``signals``, so that a run can be hit in the middle, whatever the machine's pace is:

    hold    holds a number: at the reading of that number, wait until the file is gone, and say who waits in ``held_by``
    broken  fail
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from state_engine import (
    CheckpointedFunction,
    CompactionPolicy,
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    RuntimeContext,
    StatefulJob,
    StateTtlConfig,
    Time,
    TimePartitions,
    ValueStateDescriptor,
)
from state_engine.machine.settings import Settings
from state_engine.registry import JobParameters, RegisteredJob, beside

EVERY_MINUTE = "* * * * *"
BATCH_ROWS = 500
LOOK_EVERY = 100
"""Readings: looking for signals at each of them would cost more than the rest."""
TTL_HOURS = {"readings": 1, "daily": 12}
FIRST_DAY, LAST_DAY = "2013-01-01", "2013-01-06"
COLUMNS = "n bigint, meter string, amount bigint, at timestamp"


class Totals(KeyedProcessFunction, CheckpointedFunction):
    """Per meter the sum of its readings, forgotten after some hours without any; per subtask how many there were."""

    def __init__(self, ttl_hours: int, signals: Path) -> None:
        self.ttl_hours, self.signals = ttl_hours, signals

    def initialize_state(self, context: Any) -> None:
        """Take over the counts, however many subtasks there were."""
        store = context.get_operator_state_store()
        self.counts = store.get_list_state(ListStateDescriptor("seen", int))
        self.seen = sum(self.counts.get())

    def open(self, runtime_context: RuntimeContext) -> None:
        """Declare the sums."""
        total = ValueStateDescriptor("total", int, default=0)
        ttl = StateTtlConfig.new_builder(Time.hours(self.ttl_hours))
        ttl.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.EventTime)
        total.enable_time_to_live(ttl.build())
        self.total = runtime_context.get_state(total)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """Add a reading."""
        if value.n % LOOK_EVERY == 0:
            self._obey(value.n)
        self.seen += 1
        total = self.total.value() + value.amount
        self.total.update(total)
        yield value.n, value.meter, total

    def snapshot_state(self, context: Any) -> None:
        """Write the count down."""
        self.counts.update([self.seen])

    def _obey(self, n: int) -> None:
        hold = self.signals / "hold"
        if hold.exists() and hold.read_text() == str(n):
            aside = self.signals / f".{os.getpid()}"
            aside.write_text(str(os.getpid()))
            aside.rename(self.signals / "held_by")
            while hold.exists():
                time.sleep(0.05)
        if (self.signals / "broken").exists():
            raise RuntimeError(f"reading {n} cannot be added: on purpose")


class Parameters(JobParameters):
    """Sections ``[jobs.parameters.readings]`` and ``[jobs.parameters.daily]`` of the settings."""

    compact_files: int = CompactionPolicy().max_files


def jobs(settings: Settings) -> list[RegisteredJob]:
    """Both, which differ in their slices alone."""
    days = TimePartitions("at", start=FIRST_DAY, end=LAST_DAY)
    return [_registered(settings, "readings", None), _registered(settings, "daily", days)]


def _registered(settings: Settings, name: str, partitions: TimePartitions | None) -> RegisteredJob:
    given = Parameters.of(settings, name)
    job = StatefulJob(
        name,
        parallelism=2,
        max_parallelism=16,
        partitions=partitions,
        compaction=CompactionPolicy(max_files=given.compact_files),
    )
    source = FileSource(
        beside(settings, "feeds", name),
        schema=COLUMNS,
        max_rows_per_batch=None if partitions else BATCH_ROWS,
    )
    totals = Totals(TTL_HOURS[name], Path(beside(settings, "signals")))
    (
        job.source("meters", source, order_by=["at", "n"], event_time="at")
        .key_by("meter")
        .process(totals, uid="totals", output_type="n bigint, meter string, total bigint")
        .sink("totals", DeltaSink(beside(settings, "sinks", name)))
    )
    return RegisteredJob(job=job, cron=EVERY_MINUTE, description=__doc__ or "")
