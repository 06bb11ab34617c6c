"""The job and its function, in memory."""

from totals import Total, build

from state_engine import Row
from state_engine.testing import KeyedHarness, run_in_memory

SALE = Row("shop", "cents")


def test_each_shop_has_its_own_total():
    harness = KeyedHarness(Total(), key_by=lambda sale: sale.shop)
    assert harness.process([SALE("Lyon", 5), SALE("Porto", 7), SALE("Lyon", 1)]) == [
        ("Lyon", 5),
        ("Porto", 7),
        ("Lyon", 6),
    ]
    assert harness.state("total") == {"Lyon": 6, "Porto": 7}


def test_totals_go_on_where_the_last_micro_batch_ended():
    with run_in_memory(build("inbox", "output")) as run:
        run.process({"sales": [("Lyon", 5)]})
        assert run.process({"sales": [("Lyon", 1)]}) == {"totals": [("Lyon", 6)]}
