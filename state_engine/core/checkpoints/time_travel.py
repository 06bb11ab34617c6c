"""Which checkpoint a reader looks at, what it holds of a state, and what has expired in it.

What the readers with and without Spark have in common. Pure functions over the rows of the ``checkpoints`` table.
Flink has no counterpart: its State Processor API opens one savepoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint
from state_engine.core.checkpoints.history import History
from state_engine.core.errors import ConfigurationError, MissingFilesError
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.state.descriptors import SHAPES
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.state.ttl import Lifetime
from state_engine.core.types.column_forms import times_as_text
from state_engine.core.types.ddl import parse_ddl
from state_engine.core.types.type_text import shown_storage, type_from_text

LAST_MS = 253_402_300_799_999
"""The end of the year 9999 in milliseconds: the last time that a timestamp of SQL or of Python can hold."""

METADATA = ("updated_at", "expires_at", "key_group")
"""Columns beside key and value."""


def moment(as_of: datetime | str) -> datetime:
    """A time with its zone; UTC where none is given.

    Example:
        >>> moment("2026-03-01 12:30"), moment("2026-03-01T12:30+02:00").hour
        (datetime.datetime(2026, 3, 1, 12, 30, tzinfo=datetime.timezone.utc), 10)
    """
    if isinstance(as_of, str):
        try:
            as_of = datetime.fromisoformat(as_of)
        except ValueError:
            raise ConfigurationError(
                f"'{as_of}' is not a time: write it as 2026-03-01T12:30:00, in UTC, or with its offset as in +02:00"
            ) from None
    return as_of.replace(tzinfo=UTC) if as_of.tzinfo is None else as_of.astimezone(UTC)


def path_as_of(
    history: History,
    *,
    job: str,
    root: str,
    checkpoint_id: int | None = None,
    as_of: datetime | str | None = None,
) -> list[CheckpointRow]:
    """The path to the checkpoint that is asked for: any one by its id, one on the path of the head by time.

    Args:
        as_of: the newest one that was made at or before this time, on the path of today's head.
    """
    head = history.head
    if head is None:
        raise ConfigurationError(f"job '{job}' has no checkpoint in {root} yet: run it first")
    if as_of is None:
        return history.path(head.checkpoint_id if checkpoint_id is None else checkpoint_id)
    if checkpoint_id is not None:
        raise ConfigurationError("give checkpoint_id or as_of, not both")
    at, path = moment(as_of), history.path(head.checkpoint_id)
    older = [place for place, row in enumerate(path, 1) if moment(row.created_at) <= at]
    if not older:
        first = path[0]
        raise ConfigurationError(
            f"job '{job}' had no checkpoint at {_as_text(at)}: its first one, {first.checkpoint_id}, was made at "
            f"{_as_text(moment(first.created_at))}"
        )
    return path[: older[-1]]


def why_missing(
    error: MissingFilesError, history: History, path: Sequence[CheckpointRow]
) -> MissingFilesError:
    """The error, or a plainer one where files are missing because the checkpoint has expired."""
    if path and path[-1].checkpoint_id in history.expired:
        return MissingFilesError(
            f"checkpoint {path[-1].checkpoint_id} has expired, and its files are being deleted: read a "
            f"younger checkpoint ({error})"
        )
    return error


@dataclass(frozen=True)
class DeclaredState:
    """A state as a checkpoint declares it."""

    operator: OperatorCheckpoint
    schema: StateSchema
    row: CheckpointRow

    @property
    def shape(self) -> str:
        """How it is stored: value, list or map."""
        return SHAPES[self.schema.kind]

    @property
    def key_type(self) -> pa.StructType:
        return parse_ddl(self.operator.key_schema).arrow

    @property
    def key(self) -> KeySchema:
        """The key: as declared, or where that is not known as stored."""
        return KeySchema.recorded(self.operator.key_schema, self.operator.key_type)

    @property
    def column_type(self) -> pa.DataType:
        """Stored type of the state's column in files."""
        return type_from_text(self.schema.type).storage

    @property
    def shown_type(self) -> pa.DataType:
        """The same with the names that fields were declared with, which are others where a field was renamed."""
        return shown_storage(self.schema.type)

    @property
    def read_type(self) -> pa.DataType:
        """The same as queries show it, with text for times of day."""
        return times_as_text(pa.array([], self.shown_type), type_from_text(self.schema.type)).type

    def key_names(self, *, metadata: bool) -> list[str]:
        """Names of the key's columns for readers; one that another column has gets ``key_`` before it."""
        others = {"value", *(["map_key"] if self.shape == "map" else []), *(METADATA if metadata else ())}
        names = self.key.names
        return [_free(name, {*others, *(n.lower() for n in names if n != name)}) for name in names]

    def columns(self) -> list[tuple[str, pa.DataType]]:
        """Names and types of all columns for readers."""
        keys = zip(self.key_names(metadata=True), self.key.shown, strict=True)
        column, stamp = self.read_type, pa.timestamp("us", "UTC")
        if self.shape == "map":
            values = [("map_key", column.field("key").type), ("value", column.field("value").type)]
        elif self.shape == "list":
            values = [("value", pa.list_(column.value_type.field("value").type))]
        else:
            values = [("value", column)]
        return [*keys, *values, ("updated_at", stamp), ("expires_at", stamp), ("key_group", pa.int64())]


def declared_state(path: Sequence[CheckpointRow], uid: str, state: str) -> DeclaredState:
    last = path[-1] if path else None
    operator = last.operator(uid) if last else None
    if last is None or operator is None:
        known = [o.uid for o in last.operators] if last else []
        raise ConfigurationError(f"there is no state of an operator '{uid}'; operators with state: {known}")
    for schema in operator.states:
        if schema.name == state:
            return DeclaredState(operator, schema, last)
    raise ConfigurationError(
        f"operator '{uid}' has no state '{state}'; its states: {[s.name for s in operator.states]}"
    )


def declared_states(path: Sequence[CheckpointRow]) -> list[DeclaredState]:
    """All keyed states at the end of a path, timers included."""
    return [DeclaredState(o, s, row) for row in path[-1:] for o in row.operators for s in o.states]


@dataclass(frozen=True)
class Expiry:
    """What a reader needs to know of a time to live.

    Attributes:
        ttl_ms: how long items live; None where they do not expire.
        hidden_ms: items of this time and before are not shown; None where all are.
    """

    ttl_ms: int | None = None
    hidden_ms: int | None = None

    @property
    def latest_ms(self) -> int | None:
        """Items accessed last after this time expire after the last time that can be shown; None where all do."""
        if self.ttl_ms is None or self.ttl_ms >= 2 * LAST_MS:
            return None
        return LAST_MS - self.ttl_ms


def expiry_of(state: DeclaredState, *, include_expired: bool) -> Expiry:
    """By the clock or watermark that the checkpoint recorded, and only where the job itself never sees what expired."""
    life = Lifetime.recorded(state.schema.ttl)
    if life is None:
        return Expiry()
    if include_expired or not life.hides_expired:
        return Expiry(life.ttl_ms)
    watermark_ms = state.row.watermark_of(state.operator.uid)
    return Expiry(life.ttl_ms, life.horizon_ms(clock_ms=state.row.clock_ms, watermark_ms=watermark_ms))


def _as_text(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _free(name: str, taken: Iterable[str]) -> str:
    while name.lower() in taken:
        name = f"key_{name}"
    return name
