"""Sessions: the clicks of each user up to a pause of half an hour, by the time of the clicks.

Clicks may arrive in any order within a minute: a click may begin a session, extend one, or join two. A session is over
when event time has passed its pause. The clock moves event time, too, so the last session ends although no later click
comes. A click that is older than event time is late, and goes to a table of its own.
"""

from datetime import UTC, datetime

from arrive import INBOX, first_files

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    OutputTag,
    SortedMapStateDescriptor,
    StatefulJob,
)
from state_engine.registry import RegisteredJob, beside

PAUSE_MS = 30 * 60 * 1000
CLICK = "user string, at timestamp, page string"
LATE = OutputTag("late", CLICK)


class Sessions(KeyedProcessFunction):
    """Gives (user, first click, last click, clicks) at the end of each session."""

    def open(self, runtime_context):
        """Name the state: the open sessions, first click → (last click, clicks), in milliseconds."""
        session = SortedMapStateDescriptor("session", int, tuple[int, int])
        self.open_sessions = runtime_context.get_sorted_map_state(session)

    def process_element(self, value, ctx):
        """Put one click and the sessions less than a pause away from it into one session."""
        at = first = last = ctx.timestamp()
        clicks = 1
        for start, (end, number) in list(self.open_sessions.items()):
            if start - PAUSE_MS < at < end + PAUSE_MS:
                first, last, clicks = min(first, start), max(last, end), clicks + number
                self.open_sessions.remove(start)
                ctx.timer_service().delete_event_time_timer(end + PAUSE_MS)
        self.open_sessions.put(first, (last, clicks))
        ctx.timer_service().register_event_time_timer(last + PAUSE_MS)

    def on_timer(self, timestamp, ctx):
        """Put out the session whose pause is over."""
        for first, (last, clicks) in list(self.open_sessions.items()):
            if last + PAUSE_MS <= timestamp:
                self.open_sessions.remove(first)
                yield ctx.get_current_key(), _time(first), _time(last), clicks


def _time(ms):
    return datetime.fromtimestamp(ms / 1000, UTC)


def build(inbox, output, late):
    """The job: files of clicks in, Delta tables of sessions and of late clicks out."""
    job = StatefulJob("sessions", parallelism=2)
    clicks = job.source(
        "clicks",
        FileSource(str(inbox), format="json", schema=CLICK),
        event_time="at",
        max_out_of_orderness="1 min",
        watermark="clock",
        clock_delay="2 h",  # how long after a click its file may arrive
        late_to=LATE,
    )
    columns = "user string, first_click timestamp, last_click timestamp, clicks bigint"
    sessions = clicks.key_by("user").process(Sessions(), uid="sessions", output_type=columns)
    sessions.sink("sessions", DeltaSink(output))
    sessions.get_side_output(LATE).sink("late", DeltaSink(late))
    return job


def jobs(settings):
    """The jobs of this module, for `statelake` and Dagster."""
    tables = (beside(settings, "tables", name) for name in ("sessions", "late_clicks"))
    return [
        RegisteredJob(
            job=build(INBOX, *tables),
            prepare=first_files,
            cron="*/10 * * * *",
            description="The clicks of each user, up to a pause of half an hour.",
        )
    ]
