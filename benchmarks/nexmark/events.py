"""Events of an auction house, the same for the same numbers.

Of fifty events one is a new person, three are new auctions and 46 are bids. Every second bid is
for the newest of the popular auctions, and three of four are by the newest of the popular persons. An event is up to a
second older than its place in the stream, so rows come out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Numbers = npt.NDArray[np.int64]

PERSONS = (
    "id bigint, name string, email string, card string, city string, state string, at timestamp, extra string"
)
AUCTIONS = (
    "id bigint, item string, description string, initial bigint, reserve bigint, at timestamp, expires timestamp, "
    "seller bigint, category bigint, extra string"
)
BIDS = "auction bigint, bidder bigint, price bigint, channel string, url string, at timestamp, extra string"
START_MS = int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp() * 1000)
DISPLACED_MS = 1000
"""How much older than its place in the stream an event may be."""
LONGEST_MS = 4000
"""How long the longest auction lasts."""
FIRST_ID = 1000
CATEGORIES = 5
SIDE_KEYS = 10_000
PER_SECOND = 10_000
"""Events in a second of event time."""
_GROUP, _AUCTIONS = 50, 3
_POPULAR = 100
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Phoenix", "Los Angeles", "Boise", "Portland", "Seattle", "Cheyenne")
_FIRST = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")


def drawn(number: Numbers, salt: int) -> npt.NDArray[np.float64]:
    """A number from 0 to 1 for each event and salt, without a pattern that anybody would see.

    Example:
        >>> bool((drawn(np.arange(1000), 1) < 0.5).mean().round(1) == 0.5)
        True
    """
    mixed = number.astype(np.uint64) + np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2.0**53


def _chosen(number: Numbers, salt: int, count: int) -> Numbers:
    return (drawn(number, salt) * count).astype(np.int64)


def _texts(number: Numbers, salt: int, pool: Sequence[str]) -> pa.Array:
    return pa.array(pool).take(pa.array(_chosen(number, salt, len(pool))))


_EXTRA = [f"{place:04x}" * 20 for place in range(997)]


def _instants(ms: Numbers) -> pa.Array:
    return pa.array(ms * 1000).cast(pa.timestamp("us", "UTC"))


def _times(number: Numbers, per_second: int) -> Numbers:
    return START_MS + number * 1000 // per_second - _chosen(number, 1, DISPLACED_MS)


def _before(number: Numbers, each: int) -> Numbers:
    """How many persons (each is 1) or auctions (3) there are before an event; at least one."""
    return np.maximum(number // _GROUP * each, 1)


def _id(number: Numbers, there: Numbers, salt: int, *, popular: float, of: int) -> Numbers:
    """The id of an auction or a person: the newest popular one, or one of the newest."""
    newest = there - 1
    hot = newest // _POPULAR * _POPULAR
    other = np.maximum(newest - _chosen(number, salt, of), 0)
    return FIRST_ID + np.where(drawn(number, salt + 1) < popular, hot, other)


def persons(number: Numbers, per_second: int = PER_SECOND) -> pa.Table:
    """The new persons among some events, given by their numbers."""
    number = number[number % _GROUP == 0]
    names = [f"{first} {last}" for first in _FIRST for last in _LAST]
    place = _chosen(number, 12, len(_STATES))
    name = _texts(number, 10, names)
    cards = [f"{4000 + card} 1234 5678 9012" for card in range(100)]
    columns: dict[str, Any] = {
        "id": FIRST_ID + number // _GROUP,
        "name": name,
        "email": _texts(number, 10, [f"{one.replace(' ', '.').lower()}@example.org" for one in names]),
        "card": _texts(number, 11, cards),
        "city": pa.array(_CITIES).take(pa.array(place)),
        "state": pa.array(_STATES).take(pa.array(place)),
        "at": _instants(_times(number, per_second)),
        "extra": _texts(number, 13, _EXTRA),
    }
    return pa.table(columns)


def auctions(number: Numbers, per_second: int = PER_SECOND) -> pa.Table:
    """The new auctions among some events."""
    of_group = number % _GROUP
    number = number[(of_group > 0) & (of_group <= _AUCTIONS)]
    initial = _prices(number, 20)
    at = _times(number, per_second)
    columns: dict[str, Any] = {
        "id": FIRST_ID + number // _GROUP * _AUCTIONS + number % _GROUP - 1,
        "item": _texts(number, 21, [f"item {item}" for item in range(500)]),
        "description": _texts(number, 22, _EXTRA),
        "initial": initial,
        "reserve": initial + _prices(number, 23),
        "at": _instants(at),
        "expires": _instants(at + 1 + _chosen(number, 24, LONGEST_MS)),
        "seller": _id(number, _before(number, 1), 25, popular=0.75, of=1000),
        "category": 10 + _chosen(number, 27, CATEGORIES),
        "extra": _texts(number, 28, _EXTRA),
    }
    return pa.table(columns)


def bids(number: Numbers, per_second: int = PER_SECOND) -> pa.Table:
    """The bids among some events."""
    number = number[number % _GROUP > _AUCTIONS]
    few = [(name, f"https://auctions.example.org/{name}/item/query=1") for name in _CHANNELS]
    more = [
        (
            f"channel-{channel}",
            f"https://auctions.example.org/a{channel % 7}/b/c?query=1&channel_id={channel}",
        )
        for channel in range(1000)
    ]
    channels = few + more
    place = np.where(
        drawn(number, 30) < 0.5, _chosen(number, 31, len(few)), len(few) + _chosen(number, 32, len(more))
    )
    columns: dict[str, Any] = {
        "auction": _id(number, _before(number, _AUCTIONS), 33, popular=0.5, of=300),
        "bidder": _id(number, _before(number, 1), 35, popular=0.75, of=1000),
        "price": _prices(number, 37),
        "channel": pa.array([name for name, _ in channels]).take(pa.array(place)),
        "url": pa.array([url for _, url in channels]).take(pa.array(place)),
        "at": _instants(_times(number, per_second)),
        "extra": _texts(number, 38, _EXTRA),
    }
    return pa.table(columns)


def _prices(number: Numbers, salt: int) -> Numbers:
    """From 100 to 100,000,000, each power of ten as often as the others."""
    return np.round(np.power(10.0, drawn(number, salt) * 6) * 100).astype(np.int64)


STREAMS: dict[str, tuple[str, Callable[[Numbers, int], pa.Table]]] = {
    "persons": (PERSONS, persons),
    "auctions": (AUCTIONS, auctions),
    "bids": (BIDS, bids),
}


def write(directory: Path, count: int, *, files: int, per_second: int = PER_SECOND) -> None:
    """Write so many events as Parquet, below a directory for each stream, in so many files."""
    for name, (_, rows_of) in STREAMS.items():
        (directory / name).mkdir(parents=True)
        for file in range(files):
            number = np.arange(count * file // files, count * (file + 1) // files, dtype=np.int64)
            pq.write_table(rows_of(number, per_second), directory / name / f"{file:05}.parquet")
