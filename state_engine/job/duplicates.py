"""``Duplicates``: what ``keyed.drop_duplicates(…)`` asks for, and the function of its operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from state_engine.core.choices import check_choice
from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.job.changing_streams import is_changing
from state_engine.job.graph import Node, has_event_time
from state_engine.job.late_outputs import check_event_time
from state_engine.job.lists_of_rows import check_rows
from state_engine.job.typed_by_input import TimedByInput, TypedByInput, element_type
from state_engine.operators.deduplication import (
    FirstRow,
    FirstRowsInTime,
    FirstRowsWithin,
    NewestRow,
    shape_of,
    shape_of_last,
)
from state_engine.operators.lateness import Lateness
from state_engine.sources.output_type import OutputType

Keep = Literal["first", "last"]
"""Which row of a key comes out."""
EmitOfDuplicates = Literal["at_once", "final"]
"""When it comes out: as it comes, or when no earlier row can come."""


@dataclass(frozen=True)
class Duplicates:
    """The arguments, checked against each other.

    Attributes:
        forgets: whether keys are forgotten some time after their last row.

    Raises:
        ConfigurationError: they do not fit.
    """

    within_ms: int | None
    keep: Keep
    sequence: str | Sequence[str] | None
    emit: EmitOfDuplicates
    lateness: Lateness
    forgets: bool

    def __post_init__(self) -> None:
        check_choice(self.keep, get_args(Keep), what="keep")
        check_choice(self.emit, get_args(EmitOfDuplicates), what="emit")
        if self.within_ms is not None and self.within_ms <= 0:
            raise ConfigurationError(
                f"within of drop_duplicates must be longer than nothing, not {self.within_ms} ms: only rows nearer "
                "than this are duplicates"
            )
        if self.keep == "last":
            self._check_last()
        else:
            self._check_first()

    def _check_last(self) -> None:
        if self.within_ms is not None or self.emit == "final" or self.lateness != Lateness():
            raise ConfigurationError(
                "drop_duplicates(keep='last') gives the changes of the last row of a key, and no row is too late for "
                "it: leave within, emit, lateness and late_to out. For a last row of each hour use "
                "window(Tumbling('1 h')).top_n(1, by=…)"
            )

    def _check_first(self) -> None:
        if self.sequence is not None:
            raise ConfigurationError(
                "drop_duplicates(sequence=…) says which row is the last one: use keep='last'; the first one is by the "
                "total order, or with emit='final' by event time"
            )
        if not self._by_time and self.lateness != Lateness():
            raise ConfigurationError(
                "drop_duplicates without within keeps each key for ever, so no row is too late: leave lateness and "
                "late_to out, or give within, or emit='final'"
            )
        if self._by_time and self.forgets:
            raise ConfigurationError(
                "drop_duplicates with within or emit='final' takes no ttl: with within, what is kept of a key goes by "
                "event time. Leave ttl out"
            )

    @property
    def _by_time(self) -> bool:
        """Whether the event time of rows decides between them."""
        return self.within_ms is not None or self.emit == "final"

    def function(self, node: Node, key: tuple[str, ...]) -> TypedByInput:
        """What the operator runs.

        Args:
            key: the columns that the stream is keyed by.

        Raises:
            ConfigurationError: the stream has no event time, and needs it.
        """
        if self.keep == "last":
            return self._newest(node, key)
        if not self._by_time:
            return TypedByInput(lambda kind: FirstRow(), shape=FirstRow.shape, shows=FirstRow.shows)
        what = "drop_duplicates(within=…)" if self.within_ms is not None else "drop_duplicates(emit='final')"
        check_event_time(node, what=what, lateness_ms=self.lateness.ms)
        return TimedByInput(
            self._first,
            holds_back_ms=self.lateness.ms,
            shape=shape_of(self.within_ms, self.lateness, in_time=self.emit == "final"),
            shows=FirstRowsWithin.shows,
            late_to=self.lateness.late_to,
            timers_yield=self.emit == "final",
        )

    def _first(self, kind: OutputType) -> KeyedProcessFunction:
        if self.emit == "at_once" and self.within_ms is not None:
            return FirstRowsWithin(self.within_ms, self.lateness)
        return FirstRowsInTime(element_type(kind), self.within_ms, self.lateness)

    def _newest(self, node: Node, key: tuple[str, ...]) -> TypedByInput:
        changing = is_changing(node)
        by_time = self.sequence is None and not changing and has_event_time(node)
        newest = partial(_newest_row, key, self.sequence, by_time, changing)
        return TypedByInput(
            newest,
            accepts_changes=changing,
            emits_changes=True,
            shape=shape_of_last(self.sequence, by_time=by_time),
            shows=NewestRow.shows,
        )


def _newest_row(
    key: tuple[str, ...],
    sequence: str | Sequence[str] | None,
    by_time: bool,
    changing: bool,
    kind: OutputType,
) -> NewestRow:
    check_rows(kind, "drop_duplicates(keep='last')")
    return NewestRow(kind.columns, key=key, sequence=sequence, by_time=by_time, changing=changing)
