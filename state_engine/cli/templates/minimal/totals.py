"""What every shop has sold so far: one state for each key, and a row for each sale."""

from arrive import INBOX, first_files

from state_engine import DeltaSink, FileSource, KeyedProcessFunction, StatefulJob, ValueStateDescriptor
from state_engine.registry import RegisteredJob, beside


class Total(KeyedProcessFunction):
    """Gives (shop, its total after the sale) for every sale."""

    def open(self, runtime_context):
        """Name the state. Each shop has its own value of it."""
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_element(self, value, ctx):
        """Add one sale."""
        self.total.update(self.total.value() + value.cents)
        yield value.shop, self.total.value()


def build(inbox, output):
    """The job: files of sales in, a Delta table of totals out."""
    job = StatefulJob("totals", parallelism=2)
    sales = job.source("sales", FileSource(str(inbox), format="json", schema="shop string, cents bigint"))
    totals = sales.key_by("shop").process(Total(), uid="total", output_type="shop string, total bigint")
    totals.sink("totals", DeltaSink(output))
    return job


def jobs(settings):
    """The jobs of this module, for `statelake` and Dagster."""
    return [
        RegisteredJob(
            job=build(INBOX, beside(settings, "tables", "totals")),
            prepare=first_files,
            cron="*/10 * * * *",
            description="What every shop has sold so far.",
        )
    ]
