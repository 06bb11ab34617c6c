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
            known = [
                (one.at, number, one)
                for number, one in enumerate(events[: comes_out + 1])
                if one.side == 2 and one.kind != "-U" and one.k == event.k
                and None is not event.part == one.part
                and (one.at < event.at or (exact and one.at == event.at))
            ]  # fmt: skip
            newest = max(known)[2] if known else None
            too_old = newest and tolerance is not None and event.at - newest.at > tolerance
            version = None if newest is None or newest.kind == "-D" or too_old else newest.n
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
