"""Orders without duplicates, joined with their payments, summed up in windows, and the best of each window in a table.

``plainly`` has what sinks and the table show, by a program that shares nothing with the operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from state_engine import DataStream, StatefulJob, Tumbling, count, sum_

Row = tuple[Any, ...]
START = datetime(2026, 1, 5, tzinfo=UTC)
BOUND, WITHIN, PAID_IN, SIZE, BEST = "10 s", "8 s", "5 s", "20 s", 2
ORDER, PAYMENT = "k string, n bigint, at timestamp", "k string, paid bigint, at timestamp"
SINKS = ("delta", "files", "shown")
"""Names of sinks: joined orders, the sums of windows, and the best keys of each window."""


def _after(name: str) -> timedelta:
    return timedelta(seconds=int(name.removesuffix(" s")))


def _times(steps: int) -> Iterator[tuple[int, datetime]]:
    """Rows come up to eight seconds behind the newest one before."""
    for i in range(steps):
        yield i, START + timedelta(seconds=3 * i - 4 * (i % 3))


ORDERS: list[Row] = [("abc"[i // 2 % 3], i // 2 % 6, at) for i, at in _times(19)]
"""Most come twice. The last one, and that of the payments, close the windows of the others."""
PAYMENTS: list[Row] = [("abc"[i % 3], 1 + i, at + timedelta(seconds=i % 5)) for i, at in _times(19)]
_END = START + timedelta(hours=1)
ORDERS.append(("z", 0, _END))
PAYMENTS.append(("y", 0, _END))


def chain(job: StatefulJob, cut: int) -> Mapping[str, DataStream]:
    """Streams by the names of ``SINKS``; the last one is that of the operator whose state is shown."""
    timed: dict[str, Any] = {"event_time": "at", "max_out_of_orderness": BOUND, "max_rows_per_batch": cut}
    orders = job.from_collection(ORDERS, ORDER, name="orders", **timed)
    payments = job.from_collection(PAYMENTS, PAYMENT, name="payments", **timed)
    once = orders.key_by("k", "n").drop_duplicates(within=WITHIN, uid="once")
    met = once.key_by("k").join(
        payments.key_by("k"), within=(0, PAID_IN), how="left", take=["paid"], uid="met"
    )
    sums = met.key_by("k").window(Tumbling(SIZE)).aggregate(n=sum_("n"), paid=count("paid"), uid="sums")
    best = sums.key_by("window_start").top_n(BEST, by=["n", "k"], uid="best")
    return dict(zip(SINKS, (met, sums, best), strict=True))


def plainly() -> dict[str, list[Row]]:
    """The rows of each sink when all input is read; of the table ``k`` and ``n``."""
    met = list(_joined(_once()))
    windows: dict[tuple[datetime, str], list[Row]] = {}
    for k, n, at, paid in met:
        windows.setdefault((_begin(at), k), []).append((n, paid))
    sums = [
        (k, begin, begin + _after(SIZE), sum(n for n, _ in rows), sum(paid is not None for _, paid in rows))
        for (begin, k), rows in windows.items()
    ]
    best: list[Row] = []
    for begin in {begin for begin, _ in windows}:
        of_window = sorted(((n, k) for k, at, _, n, _ in sums if at == begin), reverse=True)
        best += [(k, n) for n, k in of_window[:BEST]]
    return {"delta": sorted((k, n) for k, n, _, _ in met), "files": sorted(sums), "shown": sorted(best)}


def _once() -> Iterator[Row]:
    """Orders whose key has none before them that is nearer than ``WITHIN``."""
    kept: list[Row] = []
    for k, n, at in ORDERS[:-1]:
        if not any((k, n) == one[:2] and abs(at - one[2]) < _after(WITHIN) for one in kept):
            kept.append((k, n, at))
            yield kept[-1]


def _joined(orders: Iterator[Row]) -> Iterator[Row]:
    for k, n, at in orders:
        paid = [
            p for key, p, paid_at in PAYMENTS if key == k and timedelta() <= paid_at - at <= _after(PAID_IN)
        ]
        yield from ((k, n, at, one) for one in paid or [None])


def _begin(at: datetime) -> datetime:
    return at - (at - START) % _after(SIZE)
