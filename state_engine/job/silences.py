"""``Silences``: what ``keyed.silent(…)`` asks for, and the function of its operator."""

from __future__ import annotations

from dataclasses import dataclass

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_parsing import to_type
from state_engine.job.declared_aggregates import Key, key_columns, record_key
from state_engine.job.graph import Node
from state_engine.job.late_outputs import check_event_time
from state_engine.job.lists_of_rows import check_rows
from state_engine.job.typed_by_input import TimedByInput
from state_engine.operators.keyed_rows import KeyedRows
from state_engine.operators.silence import Silence, check_taken, shape_of
from state_engine.sources.output_type import OutputType

SINCE, BACK = "silent_since", "back_at"
"""Names of the columns that come out behind those of the key."""


@dataclass(frozen=True)
class Silences:
    """The arguments.

    Raises:
        ConfigurationError: a span is none, or keys would be forgotten before they are silent.
    """

    after_ms: int
    lateness_ms: int
    back: bool
    take: tuple[str, ...]
    forget_after_ms: int | None

    def __post_init__(self) -> None:
        if self.after_ms <= 0:
            raise ConfigurationError(f"after of silent must be longer than nothing, not {self.after_ms} ms")
        if self.forget_after_ms is not None and self.forget_after_ms < self.after_ms:
            raise ConfigurationError(
                f"silent(after={self.after_ms} ms, forget_after={self.forget_after_ms} ms) would forget keys before "
                "they are silent: make forget_after as long as after, or longer"
            )

    def function(self, node: Node, key: Key) -> TimedByInput:
        """What the operator runs. Raises ConfigurationError where the stream has no event time."""
        check_event_time(node, what="silent(…)", lateness_ms=self.lateness_ms)

        def made(kind: OutputType) -> Silence:
            return Silence(
                self.after_ms,
                lateness_ms=self.lateness_ms,
                back=self.back,
                forget_after_ms=self.forget_after_ms,
                rows=KeyedRows(kind.columns, apart=(), operator="silent") if self.take else None,
                take=self.take,
                record_key=record_key(key_columns(key, kind)),
            )

        return TimedByInput(
            made,
            gives=lambda kind: self._gives(kind, key),
            holds_back_ms=self.lateness_ms,
            shape=shape_of(self.after_ms, self.lateness_ms),
            shows=Silence.shows,
        )

    def _gives(self, kind: OutputType, key: Key) -> OutputType:
        columns, time = key_columns(key, kind), to_type("timestamp", parameter="times of silences")
        names, types = list(columns.names), list(columns.types)
        for name in (SINCE, BACK) if self.back else (SINCE,):
            names.append(name)
            types.append(time)
        if self.take:
            check_rows(kind, "silent(…, take=…)")
            check_taken(self.take)
            rows = KeyedRows(kind.columns, apart=(), operator="silent")
            taken = rows.only(rows.named(self.take))
            names += taken.names
            types += taken.types
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigurationError(
                f"silent: two columns would come out as {twice}: leave them out of take, or rename them in a transform "
                "before key_by"
            )
        return OutputType(StructType(names, types, "row"), scalar=False)
