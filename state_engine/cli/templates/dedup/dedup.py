"""Deduplication: of orders that are delivered more than once, the first one, by the time of the orders.

Orders may arrive in any order within a minute: each waits until event time has passed it, so the earliest passes. An id
is remembered for a day from then on, however old the job is; an order with that id after a day counts as new. The clock
moves event time, too, so the last orders pass although no later one comes. An order that is older than event time is
late, and goes to a table of its own.
"""

from arrive import INBOX, first_files

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.registry import RegisteredJob, beside

DAY_MS = 24 * 60 * 60 * 1000
ORDER = "id string, at timestamp, cents bigint"
LATE = OutputTag("late", ORDER)


class FirstOfEachId(KeyedProcessFunction):
    """Passes on the first order of each id and day."""

    def open(self, runtime_context):
        """Name the states: orders that wait, by their time, and the time of the order that passed."""
        self.waiting = runtime_context.get_map_state(MapStateDescriptor("waiting", int, ORDER))
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int))

    def process_element(self, value, ctx):
        """Let one order wait until none before it can come."""
        if not self.waiting.contains(ctx.timestamp()):
            self.waiting.put(ctx.timestamp(), value)
            ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def on_timer(self, timestamp, ctx):
        """Forget an id after a day, and pass an order on unless its id was seen."""
        seen = self.seen.value()
        if seen is not None and timestamp >= seen + DAY_MS:
            self.seen.clear()
        order = self.waiting.get(timestamp)
        if order is not None:
            self.waiting.remove(timestamp)
            if self.seen.value() is None:
                self.seen.update(timestamp)
                ctx.timer_service().register_event_time_timer(timestamp + DAY_MS)
                yield order


def build(inbox, output, late):
    """The job: files of orders in, Delta tables with each of them once and of late ones out."""
    job = StatefulJob("dedup", parallelism=2)
    orders = job.source(
        "orders",
        FileSource(str(inbox), format="json", schema=ORDER),
        event_time="at",
        max_out_of_orderness="1 min",
        watermark="clock",
        clock_delay="2 h",  # how long after an order its file may arrive
        late_to=LATE,
    )
    first = orders.key_by("id").process(FirstOfEachId(), uid="first", output_type=ORDER)
    first.sink("orders", DeltaSink(output))
    first.get_side_output(LATE).sink("late", DeltaSink(late))
    return job


def jobs(settings):
    """The jobs of this module, for `statelake` and Dagster."""
    tables = (beside(settings, "tables", name) for name in ("orders", "late_orders"))
    return [
        RegisteredJob(
            job=build(INBOX, *tables),
            prepare=first_files,
            cron="*/10 * * * *",
            description="Each order once, however often it is delivered.",
        )
    ]
