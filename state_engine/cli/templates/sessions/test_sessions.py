"""The job in memory: the sessions are those of a plain program over all clicks, whatever the order of arrival."""

import random
from datetime import UTC, datetime, timedelta

from sessions import build

from state_engine.testing import run_in_memory

PAUSE = timedelta(minutes=30)


def at(hour, minute, second=0):
    return datetime(2026, 1, 5, hour, minute, second, tzinfo=UTC)


def clock(time):
    return int(time.timestamp() * 1000)


def plain(clicks):
    """The sessions of all clicks: user, first click, last click, number of clicks."""
    sessions = {}
    for user, time, _ in sorted(clicks):
        of_user = sessions.setdefault(user, [])
        if of_user and time - of_user[-1][-1] <= PAUSE:
            of_user[-1].append(time)
        else:
            of_user.append([time])
    return sorted((user, s[0], s[-1], len(s)) for user, of_user in sessions.items() for s in of_user)


def table(run):
    """The rows of the table of sessions."""
    return sorted((row.user, row.first_click, row.last_click, row.clicks) for row in run.table("sessions"))


def test_sessions_are_those_of_all_clicks_in_any_order():
    for seed in range(8):
        chance = random.Random(seed)
        clicks = [
            (chance.choice(["ann", "bob"]), at(9, 0) + timedelta(seconds=60 * n * chance.choice([1, 8])), "/")
            for n in range(40)
        ]
        # each arrives up to an hour after its time
        clicks.sort(key=lambda click: click[1] + timedelta(seconds=chance.randrange(3600)))
        size = chance.randrange(1, 12)
        with run_in_memory(build("inbox", "output", "late")) as run:
            for start in range(0, len(clicks), size):
                run.process({"clicks": clicks[start : start + size]})
            run.process(clock=clock(at(23, 0)))
            assert table(run) == plain(clicks)
            assert run.sink("late") == []


def test_a_late_click_between_two_sessions_joins_them():
    with run_in_memory(build("inbox", "output", "late")) as run:
        run.process({"clicks": [("ann", at(9, 0), "/"), ("ann", at(9, 50), "/")]})
        run.process({"clicks": [("bob", at(10, 25), "/")]})
        assert table(run) == [("ann", at(9, 0), at(9, 0), 1), ("ann", at(9, 50), at(9, 50), 1)]
        run.process({"clicks": [("ann", at(9, 25), "/")]})
        assert table(run) == [("ann", at(9, 0), at(9, 50), 3)]


def test_a_session_ends_by_the_clock_if_no_later_click_comes():
    with run_in_memory(build("inbox", "output", "late")) as run:
        run.process({"clicks": [("ann", at(9, 0), "/")]}, clock=clock(at(9, 5)))
        assert run.process(clock=clock(at(11, 30))) == {}
        run.process(clock=clock(at(11, 31)))
        assert table(run) == [("ann", at(9, 0), at(9, 0), 1)]


def test_a_click_that_is_too_late_is_kept_in_a_table_of_its_own():
    with run_in_memory(build("inbox", "output", "late")) as run:
        run.process({"clicks": [("ann", at(12, 0), "/")]})
        late = ("ann", at(9, 0), "/cart")
        assert run.process({"clicks": [late]})["late"] == [late]
        run.process(clock=clock(at(15, 0)))
        assert table(run) == [("ann", at(12, 0), at(12, 0), 1)]
