"""What a subtask of a harness runs, and what it is given: ``HarnessOperator`` and ``SubtaskElements``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.keys.key_form import KeyForm
from state_engine.core.types.every_type import TypeInformation
from state_engine.core.types.row import RowKind


@dataclass(frozen=True)
class HarnessOperator:
    """The operator that is run; see ``OperatorHarness`` and ``StreamOperator`` for the names.

    Attributes:
        input_type, second_type: of the elements; of those of the second input, where there are two.
        two_inputs: whether elements come to the function by their input.
        changing, emits_changes: whether elements, and whether outputs have kinds.
        subtask: that owns the key, where one key is run.
    """

    uid: str
    function: Any
    output_type: TypeInformation
    input_type: TypeInformation | None
    key_type: TypeInformation | None
    second_type: TypeInformation | None = None
    key_form: KeyForm | None = None
    side_outputs: Mapping[str, OutputTag] | None = field(default_factory=dict)
    has_event_time: bool = False
    two_inputs: bool = False
    ordered: bool = False
    changing: bool = False
    emits_changes: bool = False
    dead_letters: bool = False
    subtask: int = 0
    parallelism: int = 1
    max_parallelism: int = 128
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SubtaskElements:
    """The elements of one subtask in one batch, in order.

    Attributes:
        keys: None where the stream is not keyed.
        stamps: event times in milliseconds.
        marks: the watermark before each.
        kinds: where the stream changes.
        broadcast: elements that come before all others, each with its time and kind.
    """

    keys: list[Any] | None
    values: list[Any]
    stamps: list[int | None]
    marks: list[int]
    kinds: list[RowKind] | None = None
    broadcast: Sequence[tuple[Any, int | None, RowKind]] = ()
