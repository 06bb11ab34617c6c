"""The job in memory: what passes is what a plain program passes over all orders, whatever the order of arrival."""

import random
from datetime import UTC, datetime, timedelta

from dedup import build

from state_engine.testing import run_in_memory

DAY = timedelta(days=1)


def at(day, hour, minute=0):
    return datetime(2026, 1, day, hour, minute, tzinfo=UTC)


def clock(time):
    return int(time.timestamp() * 1000)


def plain(orders):
    """The orders that pass, of all sorted by their time."""
    seen, passed = {}, []
    for order in sorted(orders, key=lambda order: order[1]):
        id_, time, _ = order
        if id_ not in seen or time - seen[id_] >= DAY:
            seen[id_] = time
            passed.append(order)
    return sorted(passed)


def test_what_passes_is_the_first_of_all_orders_in_any_order_within_the_bound():
    for seed in range(20):
        chance = random.Random(seed)
        orders = [
            (chance.choice("ab"), at(5, 9) + chance.randrange(3) * DAY + timedelta(seconds=n), n)
            for n in chance.sample(range(120), 40)
        ]
        # each arrives up to a minute after its time
        orders.sort(key=lambda order: order[1] + timedelta(seconds=chance.randrange(60)))
        size = chance.randrange(1, 12)
        with run_in_memory(build("inbox", "output", "late")) as run:
            for start in range(0, len(orders), size):
                run.process({"orders": orders[start : start + size]})
            run.process(clock=clock(at(8, 9)))
            assert sorted(run.sink("orders")) == plain(orders)
            assert run.sink("late") == []


def test_an_order_that_is_delivered_again_does_not_pass():
    first, again = ("a", at(5, 9), 100), ("a", at(5, 10), 100)
    with run_in_memory(build("inbox", "output", "late")) as run:
        run.process({"orders": [first, first]})
        assert run.process({"orders": [again]}) == {"orders": [first], "late": []}
        assert run.process(clock=clock(at(5, 13))) == {"orders": [], "late": []}
        run.process(clock=clock(at(6, 12)))
        assert run.state("first", "seen") == {}  # it is forgotten after a day


def test_the_last_orders_pass_by_the_clock_if_no_later_one_comes():
    with run_in_memory(build("inbox", "output", "late")) as run:
        assert run.process({"orders": [("a", at(5, 9), 100)]}, clock=clock(at(5, 9)))["orders"] == []
        assert run.process(clock=clock(at(5, 11))) == {}
        assert run.process(clock=clock(at(5, 11, 1)))["orders"] == [("a", at(5, 9), 100)]


def test_a_late_order_is_kept_apart():
    with run_in_memory(build("inbox", "output", "late")) as run:
        run.process({"orders": [("a", at(5, 12), 100)]})
        late = ("b", at(5, 9), 100)
        assert run.process({"orders": [late]}) == {"orders": [], "late": [late]}
