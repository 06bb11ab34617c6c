"""A keyed ``SqlSink`` as versions up to 0.2.0 had it, for tests of what they left behind."""

from __future__ import annotations

from dataclasses import dataclass, replace

from state_engine import SqlSink
from state_engine.sinks.sql_target import SqlTarget


@dataclass(frozen=True)
class FormerSink(SqlSink):
    """Stages outputs, each of which replaces the row with its key in the table itself.

    Attributes:
        replaced_by: columns of the key.
    """

    replaced_by: tuple[str, ...] = ("id",)

    def _target(self) -> SqlTarget:
        return replace(super()._target(), key=self.replaced_by)
