"""``Ranking``: which of two rows stands first in a list of the greatest, or of the least.

A place is the bytes of the columns that rows are compared by: they compare as the rows do. Null is below every value
and NaN above all numbers, as in Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from state_engine.core.errors import ConfigurationError
from state_engine.core.keys.ordering import key_order
from state_engine.operators.keyed_rows import KeyedRows

RANK = "rank"
"""Name of the column with the rank of a row: 1 and up."""
_REVERSED = bytes(range(255, -1, -1))
_NULL, _VALUE, _NAN = b"\x00", b"\x01", b"\x02"


class Ranking:
    """An order of the rows of a key. The first ``n`` are kept.

    Args:
        rows: what rows are.
        by: columns to compare, from the first to the last; not of the key.
        ascending: whether the least rows come first.
        ties: whether to keep the rows that are equal to the last one, too.

    Raises:
        ConfigurationError: a column is unknown, has no order, or belongs to the key; there is no rank.
    """

    def __init__(
        self,
        rows: KeyedRows,
        n: int,
        *,
        by: str | Sequence[str],
        key: Iterable[str],
        ascending: bool = False,
        ties: bool = False,
    ) -> None:
        if n < 1:
            raise ConfigurationError(f"TopN keeps at least one row, not {n}")
        self.n, self.ties, self.ascending = n, ties, ascending
        self.by = (by,) if isinstance(by, str) else tuple(by)
        key = tuple(key)
        in_key = [name for name in self.by if name in key]
        if in_key or not self.by:
            raise ConfigurationError(
                f"TopN needs columns to compare rows of one key by, not {in_key} of the key"
            )
        self.form = form_of(n, self.by, ascending=ascending, ties=ties)
        encodes = [key_order(kind).encode for kind in rows.in_order(self.by, what="by").types]
        self._columns = [
            (rows.kept.names.index(name), encode) for name, encode in zip(self.by, encodes, strict=True)
        ]

    def place(self, kept: tuple[Any, ...]) -> bytes:
        """Where a row stands, of which the state keeps this: rows with lesser bytes stand before it."""
        value_of = tuple.__getitem__  # subscripts of a Row would run Python code
        parts = [
            _NULL
            if (value := value_of(kept, at)) is None
            else _NAN
            if value != value
            else _VALUE + encode(value)
            for at, encode in self._columns
        ]
        place = b"".join(parts)
        return place if self.ascending else place.translate(_REVERSED)

    def count(self, places: Sequence[bytes]) -> int:
        """The number of rows to keep; their places are in order."""
        if not self.ties or len(places) <= self.n:
            return min(len(places), self.n)
        last = places[self.n - 1]
        return next((at for at in range(self.n, len(places)) if places[at] != last), len(places))

    def ranks(self, places: Sequence[bytes]) -> list[int]:
        """The rank of each row; with ties that of the first of those that are equal."""
        ranks: list[int] = []
        for at, place in enumerate(places):
            ranks.append(ranks[-1] if self.ties and at and place == places[at - 1] else at + 1)
        return ranks


def form_of(n: int, by: str | Sequence[str], *, ascending: bool, ties: bool) -> str:
    """What a list keeps, as text: another list would lack rows.

    Example:
        >>> form_of(3, "points", ascending=False, ties=True)
        ', top 3 by points descending with ties'
    """
    columns = by if isinstance(by, str) else ", ".join(by)
    return (
        f", top {n} by {columns} {'ascending' if ascending else 'descending'}{' with ties' if ties else ''}"
    )
