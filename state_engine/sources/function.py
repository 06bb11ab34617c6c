"""``FunctionSource``: a ``SourceFunction`` as a source: each micro-batch runs it anew, from the state of the last one.

What it collects and the state it is left with are committed together, so there is neither a gap nor a repeat after a
crash. Its state is its position: the last element of the position holds all of it, and says whether the function has
returned by itself: then it is finished, and no later batch runs it. Mirrors Flink's ``StreamSource``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from state_engine.core.choices import check_bound
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.functions.source_function import SourceFunction
from state_engine.core.json_text import has_form
from state_engine.core.operator.operator_lifecycle import Resumption
from state_engine.core.operator.source_operator import SourceOperator
from state_engine.core.operator_state.operator_snapshot import StateElements, SubtaskSnapshot
from state_engine.sources.base import Element, Slice, Source, SourceFrame, summary
from state_engine.sources.local_rows import local_frame
from state_engine.sources.output_type import OutputType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


FINISHED = "finished"
_FORM = {
    "rows": int,
    "states": [{"name": str, "scheme": str, "type": str, "elements": [str]}],
    f"{FINISHED}?": bool,
}
"""In a position: the function returned by itself."""


@dataclass(frozen=True)
class FunctionSource(Source):
    """Rows that a source function of the user collects.

    Args:
        function: the user's; every batch works on its own copy.
        max_rows_per_batch: after so many rows it must stop.
    """

    name: str
    function: SourceFunction
    kind: OutputType
    max_rows_per_batch: int | None

    def __post_init__(self) -> None:
        check_bound(self.max_rows_per_batch, what=f"source '{self.name}': max_rows_per_batch")
        if self.max_rows_per_batch is None:
            raise ConfigurationError(
                f"source '{self.name}': max_rows_per_batch must say, with a number of at least 1, when a micro-batch "
                "of a SourceFunction is full"
            )

    def plan(self, spark: SparkSession, elements: Sequence[Element]) -> Slice | None:
        before: dict[str, Any] = elements[-1]["position"] if elements else {}
        if before.get(FINISHED):
            return None
        read = before.get("rows", 0)
        operator = SourceOperator(
            copy.deepcopy(self.function),
            info=TaskInfo(self.name),
            output_type=self.kind.element,
            clock_ms=0,
            resumption=Resumption(len(elements) + 1, _snapshot(before) if before else None),
        )
        assert self.max_rows_per_batch is not None
        try:
            operator.open()
            try:
                collected = operator.run(self.max_rows_per_batch)
                state = operator.snapshot()
            finally:
                operator.close()
        except Exception as error:  # the user's function may raise anything
            raise SourceError(
                f"source '{self.name}': {type(self.function).__name__} raised {type(error).__name__}: {error}. "
                "Nothing of this micro-batch was committed"
            ) from error
        if any(t is not None for t in collected.timestamps):
            raise SourceError(
                f"source '{self.name}': collect_with_timestamp has no column to put the time in: collect it as a "
                "field, and name the field in source(..., event_time=...)"
            )
        if not (collected.values or collected.finished):
            return None
        after = {"rows": read + len(collected.values), **_position(state)}
        facts: dict[str, Any] = {"rows": after["rows"]}
        if collected.finished:
            after[FINISHED] = facts[FINISHED] = True
        new: list[Element] = [{"split": "0", "position": after}]
        began = summary(elements, rows=read) if elements else self.empty_position()
        return Slice(
            new,
            began,
            summary([*elements, *new], **facts),
            [self.name],
            (read, collected.values),
            endless=collected.full and not collected.finished,
        )

    def is_element(self, element: Element) -> bool:
        return has_form(element["position"], _FORM)

    def replan(self, spark: SparkSession, before: Sequence[Element], appended: Sequence[Element]) -> Slice:
        raise SourceError(
            f"source '{self.name}': a SourceFunction cannot be replayed: what run() of {type(self.function).__name__} "
            "collects does not follow from the position. Let a job of its own write it to a table or to files, read "
            "these with a DeltaSource or a FileSource, and replay jobs that do; or replay from a later checkpoint"
        )

    def read(self, spark: SparkSession, part: Slice, *, keep_refused: bool) -> SourceFrame:
        first, values = part.detail
        return local_frame(values, self.kind, first=first)


def _position(state: SubtaskSnapshot) -> dict[str, Any]:
    if state.raw_operator or state.raw_keyed:
        raise ConfigurationError("a source has no raw state: keep its state in a list state")
    return {
        "states": [
            {"name": s.name, "scheme": s.scheme, "type": s.type, "elements": list(s.elements)}
            for s in state.states
        ]
    }


def _snapshot(position: dict[str, Any]) -> SubtaskSnapshot:
    states = [
        StateElements(s["name"], s["scheme"], s["type"], tuple(s["elements"])) for s in position["states"]
    ]
    return SubtaskSnapshot(tuple(states))
