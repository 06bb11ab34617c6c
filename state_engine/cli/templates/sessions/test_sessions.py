"""The job in memory: where sessions end, and that they may span micro-batches."""

from datetime import UTC, datetime

from sessions import build

from state_engine.testing import run_in_memory


def at(hour, minute):
    return datetime(2026, 1, 5, hour, minute, tzinfo=UTC)


def test_a_session_ends_after_half_an_hour_without_a_click():
    with run_in_memory(build("inbox", "output")) as run:
        out = run.process({"clicks": [
            ("ann", at(9, 0), "/"),
            ("ann", at(9, 20), "/cart"),
            ("ann", at(10, 0), "/"),
        ]})  # fmt: skip
        assert out == {"sessions": [("ann", at(9, 0), at(9, 20), 2)]}
        assert run.state("sessions", "session")["ann"][2] == 1


def test_a_session_may_span_micro_batches():
    with run_in_memory(build("inbox", "output")) as run:
        assert run.process({"clicks": [("ann", at(9, 0), "/")]}) == {"sessions": []}
        run.process({"clicks": [("ann", at(9, 20), "/cart"), ("bob", at(9, 25), "/")]})
        out = run.process({"clicks": [("bob", at(9, 59), "/")]})
        assert sorted(out["sessions"]) == [("ann", at(9, 0), at(9, 20), 2), ("bob", at(9, 25), at(9, 25), 1)]
