"""The job in memory: what is booked, what is refused, and what a restore takes back."""

from datetime import UTC, datetime

from ledger import build

from state_engine.testing import run_in_memory

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def test_no_payment_takes_a_balance_below_zero():
    with run_in_memory(build("inbox", "booked", "refused")) as run:
        out = run.process({"payments": [(1, "ada", 50, NOON), (2, "ada", -80, NOON), (3, "ada", -30, NOON)]})
        assert out["booked"] == [(1, "ada", 50, 50), (3, "ada", -30, 20)]
        assert out["refused"] == [(2, "ada", -80, 50)]
        assert run.state("ledger", "balance") == {"ada": 20}


def test_a_restore_takes_back_balances_and_bookings_together():
    with run_in_memory(build("inbox", "booked", "refused")) as run:
        run.process({"payments": [(1, "ada", 50, NOON)]})
        run.process({"payments": [(2, "ada", 5, NOON)]})
        run.restore(1)
        assert run.state("ledger", "balance") == {"ada": 50}
        assert run.sink("booked") == [(1, "ada", 50, 50)]
