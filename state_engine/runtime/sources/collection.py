"""``CollectionSource``: a list of elements as a source, for tests. Mirrors Flink's ``fromCollection``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.runtime.output_type import OutputType
from state_engine.runtime.sources.base import Element, Slice, Source, SourceFrame, summary
from state_engine.runtime.sources.local_rows import local_frame


@dataclass(frozen=True)
class CollectionSource(Source):
    """Gives the elements of a list, once each, in order.

    Args:
        name: of the source, for messages.
        elements: of the type.
        kind: their type.
        max_rows_per_batch: elements of a micro-batch; None takes all at once.

    Raises:
        ConfigurationError: the number is none.
        ValueTypeError: an element does not fit.
    """

    name: str
    elements: Sequence[Any]
    kind: OutputType
    max_rows_per_batch: int | None = None
    _normal: list[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.max_rows_per_batch is not None and self.max_rows_per_batch < 1:
            raise ConfigurationError(
                f"source '{self.name}': max_rows_per_batch must be at least 1, not {self.max_rows_per_batch!r}"
            )
        normalise = self.kind.element.normalise
        try:
            normal = [normalise(e) for e in self.elements]
        except ValueTypeError as error:
            raise ValueTypeError(f"source '{self.name}': {error}") from None
        object.__setattr__(self, "_normal", normal)

    def plan(self, spark: SparkSession, elements: Sequence[Element]) -> Slice | None:
        start = elements[-1]["position"] if elements else 0
        end = len(self._normal)
        if self.max_rows_per_batch is not None:
            end = min(end, start + self.max_rows_per_batch)
        if end <= start:
            return None
        new: list[Element] = [{"split": "collection", "position": end}]
        return Slice(new, summary(elements), summary([*elements, *new]), ["collection"], (start, end))

    def read(self, spark: SparkSession, part: Slice, *, keep_refused: bool) -> SourceFrame:
        start, end = part.detail
        return local_frame(spark, self._normal[start:end], self.kind, first=start)
