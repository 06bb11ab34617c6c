"""Sessions: the clicks of each user up to a pause of half an hour, by the time of the clicks.

Every click moves a timer to half an hour after itself. Where the timer fires, the session is over: it is put out, and
its state is cleared. A session may begin in one micro-batch and end in another.
"""

from datetime import UTC, datetime, timedelta

from arrive import INBOX, first_files

from state_engine import DeltaSink, FileSource, KeyedProcessFunction, StatefulJob, ValueStateDescriptor
from state_engine.registry import RegisteredJob, beside

PAUSE_MS = 30 * 60 * 1000


class Sessions(KeyedProcessFunction):
    """Gives (user, first click, last click, clicks) at the end of each session."""

    def open(self, runtime_context):
        """Name the state: first and last click in milliseconds, and how many there were."""
        self.session = runtime_context.get_state(ValueStateDescriptor("session", tuple[int, int, int]))

    def process_element(self, value, ctx):
        """Put one click into the session of its user; a session that it comes too late for ends."""
        at, session = ctx.timestamp(), self.session.value()
        if session:
            first, last, clicks = session
            ctx.timer_service().delete_event_time_timer(last + PAUSE_MS)
            if at - last >= PAUSE_MS:
                yield ctx.get_current_key(), _time(first), _time(last), clicks
                session = None
        first, last, clicks = session or (at, at, 0)
        self.session.update((min(at, first), max(at, last), clicks + 1))
        ctx.timer_service().register_event_time_timer(max(at, last) + PAUSE_MS)

    def on_timer(self, timestamp, ctx):
        """End the session of one user, who has not clicked for half an hour."""
        first, last, clicks = self.session.value()
        yield ctx.get_current_key(), _time(first), _time(last), clicks
        self.session.clear()


def _time(ms):
    return datetime.fromtimestamp(ms / 1000, UTC)


def build(inbox, output):
    """The job: files of clicks in, a Delta table of sessions out."""
    job = StatefulJob("sessions", parallelism=2)
    clicks = job.source(
        "clicks",
        FileSource(str(inbox), format="json", schema="user string, at timestamp, page string"),
        order_by=["at", "user"],
        event_time="at",
        max_out_of_orderness=timedelta(minutes=1),
    )
    columns = "user string, first_click timestamp, last_click timestamp, clicks bigint"
    sessions = clicks.key_by("user").process(Sessions(), uid="sessions", output_type=columns)
    sessions.sink("sessions", DeltaSink(output))
    return job


def jobs(settings):
    """The jobs of this module, for `statelake` and Dagster."""
    return [
        RegisteredJob(
            job=build(INBOX, beside(settings, "tables", "sessions")),
            prepare=first_files,
            cron="*/10 * * * *",
            description="The clicks of each user, up to a pause of half an hour.",
        )
    ]
