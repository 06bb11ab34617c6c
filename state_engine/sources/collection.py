"""``CollectionSource``: a list of elements as a source, for tests. Mirrors Flink's ``fromCollection``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from state_engine.core.choices import check_bound
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.core.json_text import has_form
from state_engine.core.types.row import RowKind
from state_engine.sources.base import Element, Slice, Source, SourceFrame, summary
from state_engine.sources.local_rows import local_frame, normal_elements
from state_engine.sources.output_type import OutputType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class CollectionSource(Source):
    """Gives the elements of a list, once each, in order.

    Args:
        max_rows_per_batch: elements of a micro-batch; None takes all at once.
        changing: whether elements have kinds: Rows of a kind, or pairs of a kind and an element.
    """

    name: str
    elements: Sequence[Any]
    kind: OutputType
    max_rows_per_batch: int | None = None
    changing: bool = False
    _normal: list[Any] = field(init=False, repr=False)
    _kinds: list[RowKind] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_bound(self.max_rows_per_batch, what=f"source '{self.name}': max_rows_per_batch")
        normal, kinds = normal_elements(self.elements, self.kind, changing=self.changing, source=self.name)
        object.__setattr__(self, "_normal", normal)
        object.__setattr__(self, "_kinds", kinds)

    def plan(self, spark: SparkSession, elements: Sequence[Element]) -> Slice | None:
        return self._up_to(len(self._normal), elements)

    def replan(self, spark: SparkSession, before: Sequence[Element], appended: Sequence[Element]) -> Slice:
        return self._slice(before, self._recorded(appended))

    def rebatch(
        self, spark: SparkSession, before: Sequence[Element], recorded: Sequence[Element]
    ) -> Slice | None:
        return self._up_to(self._recorded(recorded), before)

    def consumed(self, spark: SparkSession, given: Any) -> list[Element]:
        """``given``: how many elements, from the first on; or ``"all"``."""
        count = len(self._normal) if given == "all" else given
        if type(count) is not int or not 0 <= count <= len(self._normal):
            raise ConfigurationError(
                f"say how many of its {counted(len(self._normal), 'element')} the state holds, or 'all'; not {given!r}"
            )
        return [{"split": "collection", "position": count}]

    def unread(self, elements: Sequence[Element]) -> int:
        return len(self._normal) - self._recorded(elements)

    def _up_to(self, end: int, before: Sequence[Element]) -> Slice | None:
        start = self._recorded(before)
        bound = end if self.max_rows_per_batch is None else min(end, start + self.max_rows_per_batch)
        return self._slice(before, bound, more=bound < end) if bound > start else None

    def _recorded(self, elements: Sequence[Element]) -> int:
        end = _position(elements)
        if end > len(self._normal):
            raise SourceError(
                f"source '{self.name}': {counted(end, 'element was', 'elements were')} consumed and the list "
                f"holds {len(self._normal)} now: give "
                "it the elements that it had"
            )
        return end

    def _slice(self, before: Sequence[Element], end: int, *, more: bool = False) -> Slice:
        new: list[Element] = [{"split": "collection", "position": end}]
        places = (_position(before), end)
        return Slice(
            new,
            summary(before),
            summary([*before, *new]),
            ["collection"],
            places,
            more=more,
        )

    def is_element(self, element: Element) -> bool:
        return has_form(element["position"], int)

    def read(self, spark: SparkSession, part: Slice, *, keep_refused: bool) -> SourceFrame:
        start, end = part.detail
        kinds = None if self._kinds is None else self._kinds[start:end]
        return local_frame(self._normal[start:end], self.kind, first=start, kinds=kinds)


def _position(elements: Sequence[Element]) -> int:
    return int(elements[-1]["position"]) if elements else 0
