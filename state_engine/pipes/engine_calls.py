"""``EngineCall`` and ``Message``: what goes to a process that Dagster launches, and what comes back. Plain data.

A run of Dagster asks for one call of the engine. What comes back are the engine's own reports, not what is shown of
them: Dagster's side makes events of them as it does of those of an engine in its own process. Both travel as JSON: the
call in the extras of the Pipes context, each message as a custom message of Pipes. Neither has anything of a session or
of a store in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, Literal, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from state_engine.core.errors import ConfigurationError
from state_engine.microbatch.reports import BatchReport, RunReport
from state_engine.microbatch.subtask.subtask_spec import SubtaskReport
from state_engine.replay.backfill import BackfillReport

KEY = "statelake"
"""Under which it is in the extras of a context, and in a custom message."""
FORMAT = 2
"""Grows with every change that the other side would misread."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EngineCall:
    """One call of the engine that a run of Dagster asks for."""

    job: str
    method: Literal["run", "backfill"]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def to_extras(self) -> dict[str, Any]:
        return {KEY: {"format": FORMAT, **asdict(self)}}

    @classmethod
    def from_extras(cls, extras: Mapping[str, Any]) -> EngineCall | None:
        """Back from extras; None where something else launched this process."""
        given = extras.get(KEY)
        return None if given is None else _checked(cls, given)


@dataclass(frozen=True, kw_only=True)
class Message:
    """One thing that a launched process reports: a committed batch, or how the call ended.

    Attributes:
        ran, backfilled: what the call returned; the batches are those that were reported one by one.
        failure: what it raised, as ``core.errors.to_wire`` describes it.
    """

    batch: BatchReport | None = None
    ran: RunReport | None = None
    backfilled: BackfillReport | None = None
    failure: dict[str, Any] | None = None

    @classmethod
    def of_batch(cls, report: BatchReport) -> Message:
        """A batch, and of its subtasks what Dagster shows of them: the lists of their files may be long."""
        operators = {
            uid: replace(
                one, metrics={}, subtasks=[SubtaskReport(s.subtask, rows_in=s.rows_in) for s in one.subtasks]
            )
            for uid, one in report.operators.items()
        }
        return cls(batch=replace(report, operators=operators))

    @classmethod
    def of_end(cls, report: RunReport | BackfillReport) -> Message:
        if isinstance(report, RunReport):
            return cls(ran=replace(report, batches=[]))
        return cls(backfilled=replace(report, batches=[]))

    def to_payload(self) -> dict[str, Any]:
        return {KEY: {"format": FORMAT, **_adapter(Message).dump_python(self, mode="json")}}

    @classmethod
    def from_payload(cls, payload: Any) -> Message | None:
        """Back from the payload of a custom message; None where it is not ours."""
        ours = isinstance(payload, Mapping) and KEY in payload
        return _checked(cls, payload[KEY]) if ours else None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _checked(kind: type[T], given: Any) -> T:
    values = dict(given) if isinstance(given, Mapping) else {}
    if values.pop("format", None) == FORMAT:
        try:
            checked: T = _adapter(cast(Any, kind)).validate_python(values)
        except ValidationError as error:
            raise ConfigurationError(f"{_OTHER_VERSION} ({error})") from error
        return checked
    raise ConfigurationError(_OTHER_VERSION)


_OTHER_VERSION = (
    "Dagster and the process that it launched have different versions: install the same version of statelake for "
    "both"
)
