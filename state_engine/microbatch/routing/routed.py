"""What a routed row is: its columns, by name, on the way from an operator's inputs to its subtasks."""

from __future__ import annotations

from dataclasses import dataclass

from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.types.every_type import StructType
from state_engine.sources.frames import HIDDEN, StreamFrame

HASH = HIDDEN + "hash"
"""Hash of the key; 0 without one. Null of rows that could not be parsed."""
SUBTASK = HIDDEN + "subtask"
INPUT = HIDDEN + "input"
"""Which input of an operator with two a row is of."""
KEY_REFUSAL = HIDDEN + "key_refusal"
"""Why a row's key cannot be one; null for a good key."""


def key_name(position: int) -> str:
    """Name of a canonical key column that differs from the user's."""
    return f"{HIDDEN}k{position}"


def selected_name(position: int) -> str:
    """Name of a column of a key that a function made."""
    return f"{HIDDEN}s{position}"


def payload_name(stream: int, position: int) -> str:
    """Name of a user's column of one of two inputs."""
    return f"{HIDDEN}p{stream}_{position}"


@dataclass(frozen=True)
class RoutedInput:
    """One input of an operator that has rows in this batch."""

    place: int
    frame: StreamFrame
    scalar: bool
    declared: StructType | None = None

    @property
    def fitting(self) -> StructType | None:
        """The declared columns, where they are those of the frame."""
        fits = self.declared is not None and list(self.declared.names) == self.frame.user_columns
        return self.declared if fits else None


@dataclass(frozen=True)
class InputLayout:
    """One input in a routed row.

    Attributes:
        columns: of the routed row that functions see, in order.
        scalar: whether functions see the one column bare.
        broadcast: whether every subtask has all rows, as broadcast elements: before those of the other stream.
        ordered: whether broadcast elements stand at their places in the total order instead.
        declared: the columns as the stream declares them; None where their Arrow types say all.
    """

    columns: tuple[str, ...]
    names: tuple[str, ...]
    scalar: bool
    broadcast: bool = False
    ordered: bool = False
    everywhere: bool = False
    declared: StructType | None = None


@dataclass(frozen=True)
class RoutedLayout:
    """Columns of a routed row, by name.

    Attributes:
        inputs: one, or two; none where no stream has anything new.
        named: how many columns of the order the user named.
        timed_order: whether the order begins with the event time.
        positioned: whether the order ends with file and row of a source (and with the kind, where the stream changes),
            and not with a hash of the row.
        keys: canonical key columns; none without a key.
        key_schema: names and declared types of the key; None without a key.
        event_time: whether there is an event-time column, and one of the watermark beside it.
        key_refusals: whether a column marks rows whose key cannot be one.
        refused: whether a column holds rows that could not be parsed.
        lead: columns that come before those of the order, where the rows carry the watermark: it, and their rank.
        reordered: whether columns hold the places at which rows came, which the order is not that of.
    """

    inputs: tuple[InputLayout, ...]
    order: tuple[str, ...]
    named: int
    timed_order: bool
    positioned: bool
    keys: tuple[str, ...]
    key_schema: KeySchema | None
    event_time: bool
    key_refusals: bool
    refused: bool
    sources: bool
    lead: tuple[str, ...] = ()
    changing: bool = False
    reordered: bool = False

    @property
    def whole_order(self) -> tuple[str, ...]:
        """Columns by which the rows are sorted."""
        return (*self.lead, *self.order)

    @property
    def broadcast(self) -> int | None:
        """Number of the broadcast input that comes before the other one; None where there is none."""
        return next((at for at, one in enumerate(self.inputs) if one.broadcast and not one.ordered), None)

    @property
    def ordered_broadcast(self) -> int | None:
        """Number of the broadcast input whose rows stand among those of the other one; None where there is none."""
        return next((at for at, one in enumerate(self.inputs) if one.broadcast and one.ordered), None)
