"""Readings with every kind of value, all aggregates of them, and what these are by their definitions.

Shares no code with the package: values are compared, ordered, squared and divided here again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, NamedTuple

from state_engine import (
    AggregateFunction,
    aggregate_with,
    avg,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    max_,
    max_by,
    min_,
    min_by,
    stddev,
    sum_,
    variance,
)
from state_engine.operators.aggregates.declarations import Aggregate

COLUMNS = "k string, v bigint, x double, y double, price decimal(38,6), name string, pair struct<a: bigint, b: string>"
ROWS = f"{COLUMNS}, at bigint"


class Reading(NamedTuple):
    """A row; ``at`` is its event time in milliseconds."""

    k: str
    v: int | None
    x: float | None
    y: float | None
    price: Decimal | None
    name: str | None
    pair: tuple[Any, ...] | None
    at: int


class Spread(AggregateFunction):
    """The difference of the greatest and the least value, kept in a list that is changed in place."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.append(value)
        return accumulator

    def retract(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.remove(value)
        return accumulator

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        acc_a.extend(acc_b)
        return acc_a

    def get_result(self, accumulator: list[int]) -> int | None:
        return max(accumulator) - min(accumulator) if accumulator else None


RETRACTABLE: dict[str, Aggregate] = {
    "rows": count(), "named": count("name"), "total": sum_("v"), "mean": avg("y"), "least": min_("x"),
    "most": max_("name"),
    "vs": count_distinct("v"), "xs": count_distinct("x"), "pairs": count_distinct("pair"), "names": collect_set("name"),
    "x_set": collect_set("x"), "prices": collect_set("price"), "var_v": variance("v"), "dev_y": stddev("y"),
    "dev_x": stddev("x", population=True), "var_price": variance("price", population=True),
    "dev_price": stddev("price"),
    "spread": aggregate_with(Spread(), "array<bigint>", "bigint", field="v"),
}  # fmt: skip
ADDED_ONLY: dict[str, Aggregate] = {
    "first_x": first("x"), "last_pair": last("pair"), "all_v": collect_list("v"), "two_x": collect_list("x", most=2),
    "lowest": min_by("name", "x"), "highest": max_by("pair", "x"), "dearest": max_by("v", by="price"),
}  # fmt: skip
ALL = RETRACTABLE | ADDED_ONLY
NAN, INF = math.nan, math.inf
_XS = [None, None, 0.0, -0.0, 0.1, 0.1, 1e16, -1e16, 5e-324, NAN, INF, -INF]
_YS = [None, 0.0, 0.1, 0.2, 2.5, -7.0, 1e16, 1e300, -1e200, 3e-200, 5e-324, 1.7e308]
_PRICES = [None, Decimal("0.10"), Decimal("-99999999999999999999999999999999.999999"), Decimal("7.123456"),
           Decimal("99999999999999999999999999999999.999999")]  # fmt: skip


def reading(rng: random.Random, at: int, keys: str = "ab") -> Reading:
    v = rng.choice([None, 1, 2, 3, -4, rng.randint(-5, 5)])
    pair = rng.choice([None, (1, "a"), (1, None), (2, "a")])
    name = rng.choice([None, "ada", "bob", "zoë"])
    return Reading(rng.choice(keys), v, rng.choice(_XS), rng.choice(_YS), rng.choice(_PRICES), name, pair, at)


def expected(names: Iterable[str], rows: Sequence[Reading]) -> tuple[Any, ...]:
    """The aggregates of rows, which stand in the order of the stream."""
    ordered = sorted(rows, key=lambda row: row.at)
    return tuple(_DEFINED[name](ordered) for name in names)


def _of(rows: list[Reading], field: str) -> list[Any]:
    return [value for row in rows if (value := getattr(row, field)) is not None]


def _order(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple((part is not None, part if part is not None else 0) for part in value)
    return (value != value, 0.0 if value != value else value)


def _different(values: list[Any]) -> list[Any]:
    made: list[Any] = []
    for value in sorted(values, key=_order):
        if not made or _order(made[-1]) != _order(value):
            made.append(value + 0.0 if isinstance(value, float) else value)
    return made


def _variance(values: list[Any], *, population: bool) -> Any:
    less = 0 if population else 1
    if len(values) <= less:
        return None
    if not all(map(math.isfinite, values)):
        return NAN
    exact = [Fraction(value) for value in values]
    mean = sum(exact, Fraction()) / len(exact)
    return sum(((value - mean) ** 2 for value in exact), Fraction()) / (len(exact) - less)


def _double(exact: Any) -> Any:
    try:
        return float(exact) if isinstance(exact, Fraction) else exact
    except OverflowError:
        return INF


def _root(exact: Any) -> Any:
    if not isinstance(exact, Fraction):
        return exact
    with localcontext() as context:
        context.prec, context.Emax, context.Emin = 1500, 10**6, -(10**6)
        return float((Decimal(exact.numerator) / Decimal(exact.denominator)).sqrt())


def _mean(values: list[float]) -> Any:
    if not values:
        return None
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return _sign_of(values) * INF


def _sign_of(values: list[float]) -> int:
    return 1 if sum(map(Fraction, values), Fraction()) > 0 else -1


def _best(rows: list[Reading], field: str, by: str, *, greatest: bool) -> Any:
    both = [row for row in rows if getattr(row, field) is not None and getattr(row, by) is not None]
    best = None
    for row in both:  # the earlier one stays where they are equal
        place = _order(getattr(row, by))
        if best is None or (place > best[0] if greatest else place < best[0]):
            best = place, getattr(row, field)
    return None if best is None else best[1]


_DEFINED: dict[str, Any] = {
    "rows": len,
    "named": lambda rows: len(_of(rows, "name")),
    "total": lambda rows: sum(_of(rows, "v")) if _of(rows, "v") else None,
    "mean": lambda rows: _mean(_of(rows, "y")),
    "least": lambda rows: next(iter(_different(_of(rows, "x"))), None),
    "most": lambda rows: max(_of(rows, "name"), default=None),
    "vs": lambda rows: len(set(_of(rows, "v"))),
    "xs": lambda rows: len(_different(_of(rows, "x"))),
    "pairs": lambda rows: len(set(_of(rows, "pair"))),
    "names": lambda rows: sorted(set(_of(rows, "name"))),
    "x_set": lambda rows: _different(_of(rows, "x")),
    "prices": lambda rows: _different(_of(rows, "price")),
    "var_v": lambda rows: _double(_variance(_of(rows, "v"), population=False)),
    "dev_y": lambda rows: _root(_variance(_of(rows, "y"), population=False)),
    "dev_x": lambda rows: _root(_variance(_of(rows, "x"), population=True)),
    "var_price": lambda rows: _double(_variance(_of(rows, "price"), population=True)),
    "dev_price": lambda rows: _root(_variance(_of(rows, "price"), population=False)),
    "spread": lambda rows: max(_of(rows, "v")) - min(_of(rows, "v")) if _of(rows, "v") else None,
    "first_x": lambda rows: next(iter(_of(rows, "x")), None),
    "last_pair": lambda rows: next(reversed(_of(rows, "pair")), None),
    "all_v": lambda rows: _of(rows, "v"),
    "two_x": lambda rows: _of(rows, "x")[:2],
    "lowest": lambda rows: _best(rows, "name", "x", greatest=False),
    "highest": lambda rows: _best(rows, "pair", "x", greatest=True),
    "dearest": lambda rows: _best(rows, "v", "price", greatest=True),
}


def plain(value: Any) -> Any:
    """A value as what compares and prints as itself: NaN as text, records as tuples, decimals without scale."""
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, Decimal):
        return value.normalize()
    if isinstance(value, list):
        return [plain(part) for part in value]
    return tuple(plain(part) for part in tuple(value)) if isinstance(value, tuple) else value
