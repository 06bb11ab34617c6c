"""``KeyedProcessOperator``: runs a KeyedProcessFunction over the elements of one subtask.

The one loop that every element goes through, in the harness and on Spark alike. An element is atomic: where its
function raises and the policy is ``dead_letter``, its state changes and outputs are undone and the element is set
aside; otherwise the first failure ends the batch. Mirrors Flink's ``KeyedProcessOperator``.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from types import GeneratorType
from typing import Any

from state_engine.core.errors import MissingFilesError, StateMigrationError, ValueTypeError
from state_engine.core.functions import KeyedProcessFunction, TimerService
from state_engine.core.keyed_state import KeyedStateStore
from state_engine.core.runtime_context import RuntimeContext, TaskInfo
from state_engine.core.state_table import NO_KEY, KeyContext
from state_engine.core.types import TypeInformation

_NOT_THE_ELEMENTS_FAULT = (StateMigrationError, MissingFilesError)
"""What a state handle may raise for reasons that no other row would cure: the batch ends, whatever the policy."""


@dataclass(frozen=True)
class Refusal:
    """An element that its function refused.

    Attributes:
        index: position of the element in this subtask's input; None where open or close raised.
        key: its key.
        error: class and message of what was raised.
        traceback_text: where it was raised.
    """

    index: int | None
    key: Any
    error: str
    traceback_text: str


class ElementRefused(Exception):
    """Ends the batch at the first refused element; carries its Refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.error)
        self.refusal = refusal


@dataclass
class Outputs:
    """What a subtask produced: ``values[i]`` came from the element at ``origins[i]``, in order."""

    values: list[Any] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


class KeyedProcessOperator:
    """One subtask of a keyed operator during one micro-batch.

    Args:
        function: the user's function; owned by this subtask.
        info: name, subtask and parallelism.
        store: keyed states, made with the same ``context``.
        context: the current key.
        timers: the clocks of the batch.
        output_type: what outputs are normalised to.
        dead_letters: whether refused elements are set aside instead of ending the batch.
    """

    def __init__(
        self,
        function: KeyedProcessFunction,
        *,
        info: TaskInfo,
        store: KeyedStateStore,
        context: KeyContext,
        timers: TimerService,
        output_type: TypeInformation,
        dead_letters: bool = False,
    ) -> None:
        self.function, self.store = function, store
        self._runtime_context = RuntimeContext(info, store)
        self._context, self._element = context, KeyedProcessFunction.Context(context, timers)
        self._normalise = output_type.compiled()
        self._dead_letters = dead_letters

    def open(self) -> None:
        """Open the function."""
        self._guard(lambda: self.function.open(self._runtime_context))

    def close(self) -> None:
        """Close the function."""
        self._guard(self.function.close)

    def process(
        self, keys: Iterable[Any], values: Iterable[Any], timestamps: Iterable[int | None], out: Outputs
    ) -> None:
        """Feed elements in order; outputs and refusals are appended to ``out``.

        Raises:
            ElementRefused: an element failed and the policy is not dead_letter.
        """
        context, element, process = self._context, self._element, self.function.process_element
        normalise, emit, emit_origin = self._normalise, out.values.append, out.origins.append
        undo = context.undo = [] if self._dead_letters else None
        after, index, key = context.on_element, 0, None
        try:
            for index, key, value, timestamp in zip(count(), keys, values, timestamps):
                context.key, context.timestamp = key, timestamp
                try:
                    result = process(value, element)
                    if result is not None:
                        for output in result if type(result) is GeneratorType else _outputs(result):
                            emit(normalise(output))
                            emit_origin(index)
                except _NOT_THE_ELEMENTS_FAULT:
                    raise
                except Exception as error:
                    self._refuse(index, key, error, out)
                if undo:
                    undo.clear()
                for hook in after:
                    hook()
        finally:
            context.key, context.timestamp, context.undo = NO_KEY, None, None

    def _refuse(self, index: int, key: Any, error: Exception, out: Outputs) -> None:
        refusal = _refusal(index, key, error)
        if not self._dead_letters:
            raise ElementRefused(refusal) from error
        self._context.roll_back()
        while out.origins and out.origins[-1] == index:
            out.origins.pop()
            out.values.pop()
        out.refused.append(refusal)

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except _NOT_THE_ELEMENTS_FAULT:
            raise
        except Exception as error:
            raise ElementRefused(_refusal(None, None, error)) from error


def _refusal(index: int | None, key: Any, error: Exception) -> Refusal:
    text = "".join(traceback.format_exception(error))
    return Refusal(index, key, f"{type(error).__name__}: {error}", text)


def _outputs(result: Any) -> Iterable[Any]:
    """What process_element returned, if it can be outputs."""
    if isinstance(result, str | bytes | dict) or not hasattr(result, "__iter__"):
        raise ValueTypeError(
            f"process_element returned {result!r}: yield the outputs, or return a list of them, or None"
        )
    if isinstance(result, tuple):
        raise ValueTypeError(
            f"process_element returned the tuple {result!r}: to emit it, yield it or return [it]"
        )
    outputs: Iterable[Any] = result
    return outputs
