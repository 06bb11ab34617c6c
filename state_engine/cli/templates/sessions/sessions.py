"""Sessions: the clicks of each user up to a pause of half an hour, by the time of the clicks.

Clicks may arrive in any order: a click may begin a session, extend one, or join two. A session comes out when event
time has passed its pause, and takes clicks for an hour more: the table then follows. The clock moves event time, too,
so the last session ends although no later click comes. A click that is too late goes to a table of its own.
"""

from arrive import INBOX, first_files

from state_engine import DeltaSink, FileSource, OutputTag, Session, StatefulJob, count, max_, min_
from state_engine.registry import RegisteredJob, beside

CLICK = "user string, at timestamp, page string"
LATE = OutputTag("late", CLICK)


def build(inbox, output, late):
    """The job: files of clicks in, a Delta table of sessions and one of late clicks out."""
    job = StatefulJob("sessions", parallelism=2)
    clicks = job.source(
        "clicks",
        FileSource(str(inbox), format="json", schema=CLICK),
        event_time="at",
        max_out_of_orderness="1 min",
        watermark="clock",
        clock_delay="2 h",  # how long after a click its file may arrive
    )
    windows = clicks.key_by("user").window(Session("30 min"), lateness="1 h", late_to=LATE, emit="changes")
    sessions = windows.aggregate(
        first_click=min_("at"), last_click=max_("at"), clicks=count(), uid="sessions"
    )
    sessions.sink("sessions", DeltaSink(output, key=["user", "window_start"]))
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
