"""``AtomicCall``: one call of a function, whose outputs and changes are all kept or, where it raises, all undone.

What timers and broadcast elements go through; ``StreamOperator`` does the same for elements in its own loop, where
every step counts, with the parts that are here. What is undone is set aside or ends the batch, as the policy says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import GeneratorType
from typing import Any

from state_engine.core.errors import (
    MissingFilesError,
    StateMigrationError,
    StorageError,
    TimerChainError,
    ValueTypeError,
)
from state_engine.core.functions.function_calls import Call
from state_engine.core.operator.outputs import ElementOutputs, ElementRefused, Origin, Refusal
from state_engine.core.operator.side_outputs import MARKED
from state_engine.core.state.state_table import KeyContext

BATCH_FATAL_ERRORS = (StateMigrationError, MissingFilesError, StorageError, TimerChainError, MemoryError)
"""What a call may raise for reasons that no other row would cure: the batch ends, whatever the policy."""

OUTPUT_SEQUENCE_TYPES = frozenset({GeneratorType, list})
"""What functions return nearly always, and surely can be outputs."""


class AtomicCall:
    """Calls of one subtask's function.

    Args:
        context: the current key, and what undoes the changes of the call.
        normalise: makes an output what was declared; MARKED where it has a tag or an event time of its own.
        marked: appends such an output.
        dead_letters: whether what is refused is set aside instead of ending the batch.
    """

    def __init__(
        self,
        context: KeyContext,
        *,
        normalise: Callable[[Any], Any],
        marked: Callable[[Any, Origin, ElementOutputs], None],
        dead_letters: bool,
    ) -> None:
        self._context, self._dead_letters = context, dead_letters
        self.normalise, self.marked = normalise, marked

    def run(self, call: Call, value: Any, origin: Origin, refusal: Refusal, out: ElementOutputs) -> None:
        """Make one call; ``refusal`` describes the failure, but for the error.

        Raises:
            ElementRefused: it failed, and what is refused is not set aside.
        """
        error = self.attempt(call, value, origin, out)
        if error is not None:
            self.refuse(refusal, error, out)

    def attempt(self, call: Call, value: Any, origin: Origin, out: ElementOutputs) -> Exception | None:
        """Make one call; what it raised, without its outputs, and with its changes, which the caller undoes."""
        context, lengths = self._context, out.lengths()
        try:
            result = call.process(value, call.context)
            if result is not None:
                for output in (
                    result if type(result) in OUTPUT_SEQUENCE_TYPES else outputs_of(result, call.name)
                ):
                    normal = self.normalise(output)
                    if normal is MARKED:
                        self.marked(output, origin, out)
                    else:
                        out.values.append(normal)
                        out.origins.append(origin)
        except BATCH_FATAL_ERRORS:
            raise
        except Exception as error:
            out.cut(lengths)
            return error
        if context.undo:
            context.undo.clear()
        return None

    def refuse(self, refusal: Refusal, error: Exception, out: ElementOutputs) -> None:
        """Take back the changes of what failed and set it aside, or end the batch with ElementRefused."""
        refused = refusal.caused_by(error)
        if not self._dead_letters:
            raise ElementRefused(refused) from error
        self._context.roll_back()
        out.refused.append(refused)


def outputs_of(result: Any, method: str) -> Iterable[Any]:
    """What a method returned, if it can be outputs.

    Example:
        >>> list(outputs_of(range(2), "process_element"))
        [0, 1]
    """
    if isinstance(result, str | bytes | dict) or not hasattr(result, "__iter__"):
        raise ValueTypeError(
            f"{method} returned {result!r}: yield the outputs, or return a list of them, or None"
        )
    if isinstance(result, tuple):
        raise ValueTypeError(f"{method} returned the tuple {result!r}: to emit it, yield it or return [it]")
    outputs: Iterable[Any] = result
    return outputs
