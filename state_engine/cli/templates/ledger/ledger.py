"""A ledger: the balance of each account, which no payment may take below zero.

What is booked goes to one table, what is refused to another. Both appear together with the state, or not at all.
"""

from arrive import INBOX, first_files

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    OutputTag,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.registry import RegisteredJob, beside

REFUSED = OutputTag("refused", "id bigint, account string, cents bigint, balance bigint")


class Ledger(KeyedProcessFunction):
    """Gives (number, account, cents, balance afterwards) of what is booked; REFUSED gets what would overdraw."""

    def open(self, runtime_context):
        """Name the state: cents, zero for a new account."""
        self.balance = runtime_context.get_state(ValueStateDescriptor("balance", int, default=0))

    def process_element(self, value, ctx):
        """Book one payment, or refuse it."""
        balance = self.balance.value()
        if balance + value.cents < 0:
            yield REFUSED, (value.id, value.account, value.cents, balance)
            return
        self.balance.update(balance + value.cents)
        yield value.id, value.account, value.cents, balance + value.cents


def build(inbox, booked, refused):
    """The job: files of payments in, Delta tables of what was booked and what was refused out."""
    job = StatefulJob("ledger", parallelism=2)
    payments = job.source(
        "payments",
        FileSource(str(inbox), format="json", schema="id bigint, account string, cents bigint, at timestamp"),
        order_by=["at", "id"],  # which payment comes first decides which one is refused
    )
    columns = "id bigint, account string, cents bigint, balance bigint"
    ledger = payments.key_by("account").process(Ledger(), uid="ledger", output_type=columns)
    ledger.sink("booked", DeltaSink(booked))
    ledger.get_side_output(REFUSED).sink("refused", DeltaSink(refused))
    return job


def jobs(settings):
    """The jobs of this module, for `statelake` and Dagster."""
    tables = (beside(settings, "tables", name) for name in ("booked", "refused"))
    return [
        RegisteredJob(
            job=build(INBOX, *tables),
            prepare=first_files,
            cron="*/10 * * * *",
            description="The balance of each account, which no payment may take below zero.",
        )
    ]
