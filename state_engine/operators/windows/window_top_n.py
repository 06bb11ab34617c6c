"""``TopRows``: the greatest rows of each window, for ``keyed.window(…).top_n(3, by="amount")``.

Each part of a window keeps its own greatest rows; those of a window are the greatest of its parts. Mirrors Flink's
``WindowRankOperator``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.column_order import are_compared
from state_engine.operators.keyed_rows import KeyedRows, same, with_time
from state_engine.operators.ranking import RANK, Ranking
from state_engine.operators.top_n import TOP
from state_engine.operators.windows.column_top_rows import ListOrder
from state_engine.operators.windows.contents import Contents, Kept

Timed = Any
"""A row with what is kept of it, and behind that its event time."""


class TopRows(Contents):
    """The greatest rows, by rank; of those that are equal the one with the least event time comes first.

    State: in ``top`` as many rows a part as there are ranks, by the start of the part and their rank.

    Args:
        rank: whether the rank comes out in front of the columns of a row.
    """

    def __init__(self, rows: KeyedRows, ranking: Ranking, *, rank: bool) -> None:
        super().__init__()
        self._rows, self._ranking, self._shows_rank = rows, ranking, rank
        self.form = ranking.form
        place = to_type(f"window_start bigint, {RANK} bigint", parameter="place in a list")
        self._timed = with_time(rows.kept, operator="top_n of a window")
        self._descriptor = SortedMapStateDescriptor(TOP, place, self._timed)

    def order_over_columns(self, *, shows_key: bool) -> tuple[SortedMapStateDescriptor, ListOrder] | None:
        """The state and the order of lists, for the form over columns; None where columns do not compare as rows do."""
        if not are_compared(self._timed):
            return None
        ranking = self._ranking
        return self._descriptor, ListOrder(
            ranking.n, ranking.by, ranking.ascending, ranking.ties, self._shows_rank, shows_key
        )

    def open(self, runtime_context: RuntimeContext) -> None:
        self._top = runtime_context.get_sorted_map_state(self._descriptor)

    def added(self, kept: Kept | None, row: Any, part: int, at: int) -> Kept:
        before = self._listed(part, part + 1)
        timed = self._timed.normalise((*self._rows.kept_of(self._rows.normal(row)), at))
        self._write(part, before, self._first([*before, timed]))
        return super().added(kept, row, part, at)

    def joined(self, parts: Sequence[int], whole: int) -> None:
        before = [timed for part in parts for timed in self._listed(part, part + 1)]
        for part in parts:
            self.dropped(part, part + 1)
        self._write(whole, [], self._first(before))

    def dropped(self, part: int, end: int) -> None:
        for place in [place for place, _ in self._top.sub_items((part, 0), (part + 1, 0))]:
            self._top.remove(place)

    def elements(self, start: int, end: int, kept: Kept) -> list[Any]:
        """Rows of the rank and the columns that are not the key's."""
        rows = self._first(self._listed(start, end))
        if not self._shows_rank:
            return [row[:-1] for row in rows]
        ranks = self._ranking.ranks([self._ranking.place(row) for row in rows])
        return [(rank, *row[:-1]) for rank, row in zip(ranks, rows, strict=True)]

    def _listed(self, start: int, end: int) -> list[Timed]:
        return [timed for _, timed in self._top.sub_items((start, 0), (end, 0))]

    def _first(self, rows: list[Timed]) -> list[Timed]:
        """Those that are in the list; rows of one place and time stay in their order."""
        ordered = sorted(rows, key=lambda row: (self._ranking.place(row), row[-1]))
        return ordered[: self._ranking.count([self._ranking.place(row) for row in ordered])]

    def _write(self, part: int, before: list[Timed], after: list[Timed]) -> None:
        for rank, timed in enumerate(after, 1):
            if rank > len(before) or not same(before[rank - 1], timed):
                self._top.put((part, rank), timed)
        for rank in range(len(after) + 1, len(before) + 1):
            self._top.remove((part, rank))
