"""Deduplication: of orders that are delivered more than once, the first one.

An id is remembered for a day, by the time of the orders. So the state holds the ids of one day, however old the job is,
and an id that comes again after more than a day counts as new.
"""

from arrive import INBOX, first_files

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    StatefulJob,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from state_engine.registry import RegisteredJob, beside

COLUMNS = "id string, at timestamp, cents bigint"


class FirstOfEachId(KeyedProcessFunction):
    """Passes on the first order of each id."""

    def open(self, runtime_context):
        """Name the state, and say for how long it lives."""
        seen = ValueStateDescriptor("seen", bool)
        seen.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).use_event_time().build())
        self.seen = runtime_context.get_state(seen)

    def process_element(self, value, ctx):
        """Pass one order on, unless its id was seen."""
        if self.seen.value() is None:
            self.seen.update(True)
            yield value


def build(inbox, output):
    """The job: files of orders in, a Delta table with each of them once out."""
    job = StatefulJob("dedup", parallelism=2)
    orders = job.source(
        "orders",
        FileSource(str(inbox), format="json", schema=COLUMNS),
        order_by=["at", "id"],
        event_time="at",
    )
    first = orders.key_by("id").process(FirstOfEachId(), uid="first", output_type=COLUMNS)
    first.sink("orders", DeltaSink(output))
    return job


def jobs(settings):
    """The jobs of this module, for `statelake` and Dagster."""
    return [
        RegisteredJob(
            job=build(INBOX, beside(settings, "tables", "orders")),
            prepare=first_files,
            cron="*/10 * * * *",
            description="Each order once, however often it is delivered.",
        )
    ]
