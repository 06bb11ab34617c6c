"""``TopN``: the greatest rows of each key, in their order.

The state ``top`` is what a table shows, ready to be published: one entry a rank. Mirrors
``org.apache.flink.table.runtime.operators.rank.AppendOnlyTopNFunction`` and, with ``keep_all``,
``RetractableTopNFunction``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain, islice

from state_engine.core.argument_checks import checked_function
from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.keys.ordering import key_order
from state_engine.core.state.descriptors import MapStateDescriptor, SortedMapStateDescriptor
from state_engine.core.types.every_type import ListType
from state_engine.core.types.row import Row
from state_engine.core.types.type_information import TypeLike
from state_engine.operators.keyed_rows import GONE, KeyedRows, same

TOP, ROWS = "top", "rows"
"""Names of the states: what is published, and all rows, where these are kept."""
RANK = "rank"
"""What the key of the map ``top`` is: 1 and up."""
_REVERSED = bytes(range(255, -1, -1))


class TopN(KeyedProcessFunction):
    """Keeps the ``n`` greatest rows of each key in the map state ``top``, by rank, beginning with 1; emits nothing.

    Of rows that are equal in ``by``, the first in the total order has the better rank. An element writes the ranks that
    it changes: all from its own on.

    Only with ``keep_all`` can rows be taken back: where a row goes, another one comes from behind the last rank, so all
    rows of the key stay in the state ``rows``, and an element reads the first ``n`` of them. A delete, as an
    ``update_before``, takes back one row that is equal in all columns; it is ignored where there is none.

    Args:
        row_type: type of the elements.
        n: how many ranks there are.
        by: columns to compare, from the first to the last; not of the key.
        key: the columns that the stream is keyed by; the state holds the others. Empty where a function gives the key.
        keep_all: keep all rows, to take updates and deletes.

    Raises:
        ConfigurationError: a column is unknown, has no order, or belongs to the key; there is no rank.
        ValueTypeError: of a row, when it is processed: it has not this type, or a column of ``by`` is null.

    Example:
        >>> from state_engine.testing import KeyedHarness
        >>> best = TopN("game string, player string, points bigint", 2, by="points", key=["game"])
        >>> harness = KeyedHarness(best, key_by=lambda row: row.game)
        >>> scores = [("go", "ada", 3), ("go", "eva", 5), ("go", "bob", 3), ("go", "kim", 4)]
        >>> harness.process([Row("game", "player", "points")(*score) for score in scores])
        []
        >>> harness.state("top")
        {'go': {1: Row(player='eva', points=5), 2: Row(player='kim', points=4)}}
    """

    shows = (TOP, RANK)

    @checked_function
    def __init__(
        self,
        row_type: TypeLike,
        n: int,
        *,
        by: str | Sequence[str],
        key: Iterable[str] = (),
        keep_all: bool = False,
    ) -> None:
        if n < 1:
            raise ConfigurationError(f"TopN keeps at least one row, not {n}")
        key = tuple(key)
        self._rows = KeyedRows(row_type, apart=key, operator="TopN")
        self._n, self._by, self._keep_all = n, (by,) if isinstance(by, str) else tuple(by), keep_all
        self.accepts_changes = keep_all
        in_key = [name for name in self._by if name in key]
        if in_key or not self._by:
            raise ConfigurationError(
                f"TopN needs columns to compare rows of one key by, not {in_key} of the key"
            )
        self._by_type = self._rows.in_order(self._by, what="by")
        kept = self._rows.kept
        self._top_descriptor = MapStateDescriptor(TOP, int, kept)
        # by the bytes of ``by``, each turned around: the greatest come first
        self._rows_descriptor = SortedMapStateDescriptor(ROWS, bytes, ListType(kept))

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the states; without ``keep_all`` there is only one."""
        self._top = runtime_context.get_map_state(self._top_descriptor)
        self._encode = key_order(self._by_type).encode
        if self._keep_all:
            self._all = runtime_context.get_sorted_map_state(self._rows_descriptor)

    def process_element(self, value: object, ctx: KeyedProcessFunction.Context) -> None:
        """Put the row at its rank, or take it back."""
        row = self._rows.normal(value)
        place, kept = self._place(row), self._rows.kept_of(row)
        if not self._keep_all:
            self._show(self._ranked(place, kept))
        else:
            before = self._all.get(place) or []
            self._all_at(place, _without(before, kept) if ctx.row_kind() in GONE else [*before, kept])
            self._show(islice(chain.from_iterable(self._all.values()), self._n))

    def _place(self, row: Row) -> bytes:
        return self._encode(self._rows.values(row, self._by, what="by")).translate(_REVERSED)

    def _ranked(self, place: bytes, kept: Row) -> list[Row]:
        """The rows shown with another one."""
        last = self._top.get(self._n)
        if last is not None and self._place(last) <= place:
            return []
        ranked = [row for rank in range(1, self._n + 1) if (row := self._top.get(rank)) is not None]
        ranked.insert(bisect_right(ranked, place, key=self._place), kept)
        return ranked[: self._n]

    def _all_at(self, place: bytes, rows: list[Row]) -> None:
        if rows:
            self._all.put(place, rows)
        else:
            self._all.remove(place)

    def _show(self, rows: Iterable[Row]) -> None:
        """Write the ranks that differ."""
        rank = 0
        for rank, row in enumerate(list(rows), 1):
            if not same(self._top.get(rank), row):
                self._top.put(rank, row)
        if self._keep_all:
            self._top.remove(rank + 1)  # one row less at most


def _without(rows: list[Row], gone: Row) -> list[Row]:
    """The rows without the first that is the same."""
    at = next((at for at, row in enumerate(rows) if same(row, gone)), len(rows))
    return rows[:at] + rows[at + 1 :]
