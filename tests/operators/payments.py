"""Payments of users in a table that changes, all aggregates of them, and what these should be, by a plain loop."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from state_engine import RowKind, avg, count, max_, min_, sum_
from state_engine.operators.aggregates.declarations import Aggregate
from state_engine.operators.retraction import takes_back

INSERT, BEFORE, AFTER, DELETE = RowKind
Change = tuple[RowKind, tuple[Any, ...]]
PAYMENT = "user string, n bigint, x double, price decimal(10,2), name string"
ALL: dict[str, Aggregate] = {
    "rows": count(), "named": count("name"), "n": sum_("n"), "x": sum_("x"), "price": sum_("price"),
    "mean_n": avg("n"), "mean_x": avg("x"), "mean_price": avg("price"), "least_n": min_("n"), "most_n": max_("n"),
    "least_x": min_("x"), "most_x": max_("x"), "first": min_("name"), "last": max_("price"),
}  # fmt: skip


def payment(user: str, randomness: random.Random) -> tuple[Any, ...]:
    """A payment with nulls, special numbers, and values that come again."""

    def or_null(value: Any) -> Any:
        return None if randomness.random() < 0.2 else value

    x = randomness.choice(
        [0.1, 0.2, 1e16, -1e16, 5e-324, math.nan, math.inf, -math.inf, -0.0, randomness.random()]
    )
    price = Decimal(randomness.randrange(-500, 500)).scaleb(-2)
    name = randomness.choice(["ada", "bob", "zoë"])
    return user, or_null(randomness.randrange(-5, 6)), or_null(x), or_null(price), or_null(name)  # fmt: skip


def history(seed: int, steps: int = 60) -> Iterator[Change]:
    """Inserts, updates and deletes of a table of payments; an update may give a row to another user."""
    randomness, table = random.Random(seed), list[tuple[Any, ...]]()
    for _ in range(steps):
        choice = randomness.random()
        if not table or choice < 0.5:
            table.append(payment(randomness.choice("abc"), randomness))
            yield INSERT, table[-1]
        else:
            old = table.pop(randomness.randrange(len(table)))
            yield (BEFORE if choice < 0.7 else DELETE), old
            if choice < 0.7:
                table.append(payment(randomness.choice("abc"), randomness))
                yield AFTER, table[-1]


def left_of(changes: Iterable[Change]) -> list[tuple[Any, ...]]:
    """The rows that changes leave, in the order in which they came; NaN is NaN."""
    rows: list[tuple[Any, ...]] = []
    for kind, row in changes:
        if takes_back(kind):
            rows.remove(next(r for r in rows if repr(r) == repr(row)))
        else:
            rows.append(row)
    return rows


def recomputed(rows: list[tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The aggregates of each user, by the definitions of SQL."""
    table = {}
    for user in sorted({row[0] for row in rows}):
        _, ns, xs, prices, names = (
            [v for v in column if v is not None]
            for column in zip(*(r for r in rows if r[0] == user), strict=True)
        )
        table[user] = (
            user, sum(r[0] == user for r in rows), len(names),
            sum(ns) if ns else None, sum_of(xs), sum(prices, Decimal("0.00")) if prices else None,
            sum(ns) / len(ns) if ns else None, None if not xs else sum_of(xs) / len(xs), mean(prices),
            min(ns, default=None), max(ns, default=None),
            min(xs, key=nan_last, default=None), max(xs, key=nan_last, default=None),
            min(names, default=None), max(prices, default=None),
        )  # fmt: skip
    return table


def sum_of(xs: list[float]) -> Any:
    if not xs:
        return None
    if any(map(math.isnan, xs)) or {math.inf, -math.inf} <= set(xs):
        return math.nan
    return math.fsum(xs)


def mean(prices: list[Decimal]) -> Decimal | None:
    if not prices:
        return None
    exact = sum(map(Fraction, prices), Fraction()) / len(prices) * 10**6
    rounded = math.floor(abs(exact) + Fraction(1, 2))
    return Decimal(rounded if exact >= 0 else -rounded).scaleb(-6)


def nan_last(x: float) -> tuple[bool, float]:
    return math.isnan(x), x


def plain(rows: Any) -> str:
    """Rows as text, in which NaN is NaN; the sign of zero is left to the tests of sums."""
    return repr(rows).replace("-0.0,", "0.0,")
