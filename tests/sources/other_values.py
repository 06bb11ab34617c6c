"""Values of every kind that files carry, with those that readers get wrong: for files as other programs write them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

TEXTS = (
    "",
    " ",
    " blanks around ",
    "a,b",
    "a;b",
    "a\tb",
    "a|b",
    'an inch is 1"',
    '"',
    '""',
    '"quoted"',
    'a "b" c',
    ",",
    "'",
    "two\nlines",
    "two\r\nlines",
    "\n",
    "null",
    "NULL",
    "NA",
    "None",
    "nan",
    "\\",
    "\\N",
    "\\n",
    'back\\"slash',
    "a\\,b",
    "é",
    "日本",
    "🙂",
    "0012",
    "1e5",
    "1,234.5",
    "true",
    "=1+1",
    "#no comment",
    "2024-01-05",
    "-",
    "{}",
    "[]",
    "a" * 300,
)
"""Texts that mean something to some reader of text."""
DATES = (
    date(1, 1, 1),
    date(1582, 10, 4),
    date(1582, 10, 15),
    date(1969, 12, 31),
    date(2024, 2, 29),
    date(9999, 12, 31),
)
NAIVE = (
    datetime(1, 1, 1),
    datetime(1582, 10, 4, 23, 59, 59),
    datetime(1900, 1, 1, 0, 0, 1),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(2024, 3, 31, 2, 30),
    datetime(2024, 1, 5, 10, 0, 0, 120000),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
)
"""Local times; one does not exist in Rome."""


@dataclass(frozen=True)
class Kind:
    """A type of column, and how to draw values of it.

    Attributes:
        ddl: as a schema declares it.
        arrow: the same in Arrow.
        draw: a value that is not null.
    """

    ddl: str
    arrow: pa.DataType
    draw: Callable[[Random], Any]


def _integer(bits: int) -> Callable[[Random], int]:
    edge = 2 ** (bits - 1)
    return lambda rng: rng.choice((0, 1, -1, 42, edge - 1, -edge, rng.randrange(-edge, edge)))


DOUBLES = (0.1, -0.0, 1e308, 5e-324, 1e22, 123456789.123456, -2.5, 3.0, math.nan, math.inf, -math.inf)


def _double(rng: Random) -> float:
    return rng.choice((*DOUBLES, rng.uniform(-1e6, 1e6)))


def _decimal(digits: int, scale: int) -> Callable[[Random], Decimal]:
    def draw(rng: Random) -> Decimal:
        edge = 10**digits - 1
        number = rng.choice((0, 1, -1, 1000, edge, -edge, rng.randrange(-edge, edge)))
        return Decimal(number).scaleb(-scale) if digits <= 28 else Decimal(f"{number}e-{scale}")

    return draw


def _naive(rng: Random) -> datetime:
    return rng.choice((*NAIVE, datetime(2013, 1, 1) + timedelta(microseconds=rng.randrange(10**15))))


TEXT = Kind("string", pa.string(), lambda rng: rng.choice(TEXTS))
FLAT = (
    TEXT,
    Kind("bigint", pa.int64(), _integer(64)),
    Kind("int", pa.int32(), _integer(32)),
    Kind("smallint", pa.int16(), _integer(16)),
    Kind("double", pa.float64(), _double),
    Kind("boolean", pa.bool_(), lambda rng: rng.random() < 0.5),
    Kind("decimal(10,2)", pa.decimal128(10, 2), _decimal(10, 2)),
    Kind("decimal(38,10)", pa.decimal128(38, 10), _decimal(38, 10)),
    Kind("date", pa.date32(), lambda rng: rng.choice(DATES)),
    Kind("timestamp", pa.timestamp("us", "UTC"), lambda rng: _naive(rng).replace(tzinfo=UTC)),
    Kind("timestamp_ntz", pa.timestamp("us"), _naive),
)
"""What a line of text can hold."""
NESTED = (
    Kind(
        "array<string>",
        pa.list_(pa.string()),
        lambda rng: [rng.choice((None, *TEXTS)) for _ in range(rng.randrange(3))],
    ),
    Kind(
        "struct<a:bigint,b:string>",
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        lambda rng: {"a": rng.randrange(-9, 9), "b": rng.choice(TEXTS)},
    ),
    Kind(
        "array<decimal(10,2)>",
        pa.list_(pa.decimal128(10, 2)),
        lambda rng: [_decimal(10, 2)(rng) for _ in range(2)],
    ),
)
BINARY = Kind("binary", pa.binary(), lambda rng: rng.randbytes(rng.randrange(4)))


@dataclass(frozen=True)
class Rows:
    """Rows of a file: ``id`` is unique among all files of a test.

    Attributes:
        kinds: of the columns, by name; the first is ``id``.
        rows: values by column.
    """

    kinds: dict[str, Kind]
    rows: list[dict[str, Any]]

    @property
    def ddl(self) -> str:
        return ", ".join(f"`{name}` {kind.ddl}" for name, kind in self.kinds.items())

    @property
    def arrow(self) -> pa.Table:
        schema = pa.schema([(name, kind.arrow) for name, kind in self.kinds.items()])
        return pa.Table.from_pylist(self.rows, schema)

    def reordered(self, names: Sequence[str]) -> Rows:
        """The same with columns in another order."""
        return Rows({n: self.kinds[n] for n in names}, [{n: row[n] for n in names} for row in self.rows])


def drawn_kinds(rng: Random, kinds: Sequence[Kind], count: int) -> dict[str, Kind]:
    """Columns of random kinds, with names that a file may have."""
    names = rng.sample(("amount", "city", "Bill City", "straße", "a.b", "order", "x1"), count)
    return {"id": FLAT[1], **{name: rng.choice(kinds) for name in names}}


def drawn_rows(rng: Random, kinds: dict[str, Kind], first: int, count: int, *, nulls: bool = True) -> Rows:
    """Rows of these columns, with ids from ``first`` on."""
    rows = []
    for number in range(first, first + count):
        row: dict[str, Any] = {"id": number}
        for name, kind in list(kinds.items())[1:]:
            row[name] = None if nulls and rng.random() < 0.15 else kind.draw(rng)
        rows.append(row)
    return Rows(kinds, rows)


def comparable(value: Any) -> Any:
    """A value as one that equals itself, and no other: NaN, signed zero, numbers of other types."""
    if isinstance(value, float):
        return ("float", "nan" if math.isnan(value) else value.hex())
    if isinstance(value, datetime):
        at = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return ("instant" if value.tzinfo else "local", at.isoformat())
    if isinstance(value, list):
        return [comparable(one) for one in value]
    if isinstance(value, dict):
        return {name: comparable(one) for name, one in value.items()}
    return (type(value).__name__, value)
