"""The job in memory: what passes, and for how long an id is remembered."""

from datetime import UTC, datetime

from dedup import build

from state_engine.testing import run_in_memory


def order(id_, day, hour):
    return id_, datetime(2026, 1, day, hour, tzinfo=UTC), 100


def test_an_order_passes_once():
    with run_in_memory(build("inbox", "output")) as run:
        first, again = order("a", 5, 9), order("a", 5, 10)
        assert run.process({"orders": [first, again, order("b", 5, 9)]})["orders"] == [
            first,
            order("b", 5, 9),
        ]
        assert run.process({"orders": [order("a", 5, 11)]}) == {"orders": []}


def test_an_id_is_new_again_after_more_than_a_day():
    with run_in_memory(build("inbox", "output")) as run:
        run.process({"orders": [order("a", 5, 9)]})
        assert run.process({"orders": [order("a", 7, 9)]})["orders"] == [order("a", 7, 9)]
