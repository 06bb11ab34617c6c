"""What joins are, in plain Python: models that share no code with the operators."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

START = -(2**63)


class Event(NamedTuple):
    """A row of one of two streams, 1 or 2; ``at`` is its event time in milliseconds, ``part`` part of its key."""

    side: int
    k: str
    part: int | None
    n: int
    at: int


def watermarks_before(events: Iterable[Any], bound: int) -> Iterator[tuple[Any, int]]:
    """Each row, and the watermark before it: the smaller one of both streams."""
    of_side = {1: START, 2: START}
    for event in events:
        yield event, min(of_side.values())
        of_side[event.side] = max(of_side[event.side], event.at - bound - 1)


@dataclass
class Joined:
    """Pairs of the numbers of rows, None for one that is not there; and the rows that came too late."""

    pairs: Counter[Any]
    late: list[Any]


def interval_join(events: list[Event], *, low: int, high: int, how: str, lateness: int, bound: int) -> Joined:
    """Every row that is in time with every other one, and what that leaves alone."""
    accepted, late = list[Event](), list[Event]()
    for event, watermark in watermarks_before(events, bound):
        (accepted if watermark < event.at + lateness else late).append(event)
    left = [event for event in accepted if event.side == 1]
    right = [event for event in accepted if event.side == 2]
    pairs: list[Any] = [
        (one.n, other.n)
        for one in left
        for other in right
        if one.k == other.k
        and one.part is not None
        and one.part == other.part
        and low <= other.at - one.at <= high
    ]
    with_left, with_right = {n for n, _ in pairs}, {n for _, n in pairs}
    no_left: list[Any] = [(one.n, None) for one in left if one.n not in with_left]
    no_right: list[Any] = [(None, one.n) for one in right if one.n not in with_right]
    results: dict[str, list[Any]] = {
        "inner": pairs,
        "left": pairs + no_left,
        "right": pairs + no_right,
        "full": pairs + no_left + no_right,
        "semi": [(n, None) for n in with_left],
        "anti": no_left,
    }
    return Joined(Counter(results[how]), late)


def stream(seed: int, bound: int, count: int = 40) -> list[Event]:
    """Displacements of up to and exactly the bound, some rows far behind, ties, times before 1970, null parts."""
    rng = random.Random(seed)
    newest = {1: rng.choice([-20, 0, 1_000_000])}
    newest[2] = newest[1] + rng.choice([-6, 0, 6])
    rows = []
    for number in range(count):
        side = rng.choice([1, 2])
        newest[side] += rng.choice([0, 0, 1, 2, 5, 12])
        behind = rng.choice([0, 0, 1, bound, bound + 1, 9, 25])
        rows.append(
            Event(side, rng.choice("ab"), rng.choice([1, 1, 1, 2, None]), number, newest[side] - behind)
        )
    return rows


class Version(NamedTuple):
    """A row of either stream of an as-of join; ``kind`` says what a row of the right one does."""

    side: int
    k: str
    part: int | None
    n: int
    at: int
    kind: str


def asof_join(
    events: list[Version],
    *,
    tolerance: int | None,
    exact: bool,
    inner: bool,
    lateness: int,
    bound: int,
    wait: bool,
) -> Joined:
    """Each left row that is in time, with what of the right one had come when it came out."""
    given = list(watermarks_before(events, bound))
    after = [watermark for _, watermark in given[1:]] + [2**63]
    pairs, late = list[Any](), list[Any]()
    for place, (event, watermark) in enumerate(given):
        if watermark >= event.at + lateness:
            late.append(event)
        elif event.side == 1:
            comes_out = place
            while wait and after[comes_out] < event.at + lateness:
                comes_out += 1
            known = dict[int, Version]()
            for one in events[: comes_out + 1]:
                if one.side == 2 and one.k == event.k and None is not event.part == one.part:
                    known[one.at] = known.get(one.at, one) if one.kind == "-U" else one
            times = [at for at in known if at < event.at or (exact and at == event.at)]
            newest = known[max(times)] if times else None
            too_old = newest and tolerance is not None and event.at - newest.at > tolerance
            version = None if newest is None or newest.kind in ("-U", "-D") or too_old else newest.n
            if version is not None or not inner:
                pairs.append((event.n, version))
    return Joined(Counter(pairs), late)


def versions(seed: int, bound: int, count: int = 40) -> list[Version]:
    """The same streams, whose right one changes."""
    rng = random.Random(seed)
    return [
        Version(*event, rng.choice(["+I", "+I", "-U", "+U", "-D"]) if event.side == 2 else "+I")
        for event in stream(seed, bound, count)
    ]


class Change(NamedTuple):
    """What happens to a row of one of two tables; ``kind`` is the number of a row kind."""

    side: int
    kind: int
    row: tuple[Any, ...]


def changes(seed: int, *, inserts_only: bool, count: int = 40) -> list[Change]:
    """Two tables of few different rows, many of them there twice: inserts, deletes, updates within and across keys."""
    rng, there, made = random.Random(seed), dict[int, list[Any]]({1: [], 2: []}), list[Change]()

    def row() -> tuple[Any, ...]:
        number = rng.choice([0.0, -0.0, float("nan"), 1.5, None])
        return rng.choice("ab"), rng.choice([1, 1, 1, 2, None]), number, rng.choice([None, (), (1,), (None,)])

    while len(made) < count:
        side = rng.choice([1, 2])
        rows = there[side]
        what = "insert" if inserts_only or not rows else rng.choice(["insert", "insert", "delete", "update"])
        if what != "insert":
            gone = rows.pop(rng.randrange(len(rows)))
            made.append(Change(side, 1 if what == "update" else 3, gone))
        if what != "delete":
            rows.append(row())
            made.append(Change(side, 2 if what == "update" else 0, rows[-1]))
    return made


def tables(given: list[Change]) -> dict[int, list[Any]]:
    """The rows of both tables after some changes."""
    there: dict[int, list[Any]] = {1: [], 2: []}
    for change in given:
        rows = there[change.side]
        if change.kind in (0, 2):
            rows.append(change.row)
        else:
            rows.pop(next(at for at, row in enumerate(rows) if repr(row) == repr(change.row)))
    return there


def deletions(given: list[Change]) -> list[Change]:
    """What empties both tables."""
    return [Change(side, 3, row) for side, rows in tables(given).items() for row in rows]


def regular_join(given: list[Change], how: str) -> list[tuple[Any, ...]]:
    """Every row of one table with every other one of its key, and what that leaves alone."""
    there, no_row = tables(given), (None,) * 4

    def as_it_comes(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*row[:3], None if row[3] is None else list(row[3]))

    left, right = ([as_it_comes(row) for row in there[side]] for side in (1, 2))

    def partners(of: tuple[Any, ...], rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return [] if of[1] is None else [row for row in rows if row[:2] == of[:2]]

    pairs = [(*one, *other) for one in left for other in partners(one, right)]
    no_left = [(*one, *no_row) for one in left if not partners(one, right)]
    no_right = [(*no_row, *other) for other in right if not partners(other, left)]
    return {
        "inner": pairs,
        "left": pairs + no_left,
        "right": pairs + no_right,
        "full": pairs + no_left + no_right,
        "semi": [one for one in left if partners(one, right)],
        "anti": [one for one in left if not partners(one, right)],
    }[how]
