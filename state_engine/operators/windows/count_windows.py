"""``CountWindows``: windows of so many rows of a key.

Mirrors ``CountTumblingWindowAssigner`` and ``CountSlidingWindowAssigner`` of PyFlink, with their triggers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.descriptors import SortedMapStateDescriptor, ValueStateDescriptor
from state_engine.operators.aggregates.accumulators import BIGINT
from state_engine.operators.idle_keys import ForgettableFunction
from state_engine.operators.windows.aligned_windows import SLICES, WINDOWS
from state_engine.operators.windows.assigners import CountWindow, GlobalWindow
from state_engine.operators.windows.contents import Contents
from state_engine.operators.windows.window_results import Emitter, WindowOperator, WindowSettings

SEEN = "seen"
"""Name of the state with the number of rows of a key."""


@dataclass(frozen=True)
class Counted:
    """Windows of ``size`` rows of a key, a new one every ``slide`` rows.

    Args:
        slide: not above the size; as many by default.
        grows: whether there is one window that keeps all rows, and fires every ``size`` rows.

    Raises:
        ConfigurationError: a number is below 1, or the slide above the size.

    Example:
        >>> [Counted(5, 3).full_at(number) for number in (3, 4, 7)]
        [None, (0, 5), (3, 8)]
    """

    size: int
    slide: int | None = None
    grows: bool = False

    def __post_init__(self) -> None:
        for name, number in (("size", self.size), ("slide", self.every)):
            if type(number) is not int or number < 1:
                raise ConfigurationError(
                    f"{name} of a count window must be a whole number above 0, not {number!r}"
                )
        if self.every > self.size:
            raise ConfigurationError(
                f"count_window({self.size}, {self.every}): rows between two windows would have none; use a longer "
                "size, or filter rows before"
            )

    @property
    def every(self) -> int:
        """How many rows lie between the starts of two windows."""
        return self.size if self.slide is None else self.slide

    @property
    def single_parts(self) -> bool:
        return self.grows or self.every == self.size

    @property
    def shape(self) -> str:
        """Size and slide as text, see ``Function.shape``."""
        return f"count {self.size} growing" if self.grows else f"count {self.size} every {self.every}"

    def part_of(self, number: int) -> int:
        """The first row of the part of a window with a row; rows are numbered from 0.

        A part is as long as a slide. The last part of a window that is just full has no row behind it yet.
        """
        return 0 if self.grows else number - number % self.every

    def full_at(self, number: int) -> tuple[int, int] | None:
        """First row and end of the window that a row makes full."""
        if self.grows:
            return None if (number + 1) % self.size else (0, number + 1)
        start = number + 1 - self.size
        return None if start < 0 or start % self.every else (start, number + 1)

    def goes(self, part: int) -> int:
        return part + self.size

    def window(self, start: int) -> CountWindow | GlobalWindow:
        return GlobalWindow() if self.grows else CountWindow(start // self.every)


class CountWindows(WindowOperator, ForgettableFunction):
    """Emits what comes of each window as its last row comes; a window that is not full never comes out.

    State: the rows or accumulators of windows that are not full, and the number of rows of each key, for ever or until
    the key is forgotten.
    """

    def __init__(
        self, windows: Counted, contents: Contents, emitter: Emitter, settings: WindowSettings
    ) -> None:
        super().__init__(windows.shape, contents, emitter, settings)
        self._windows = windows
        name = WINDOWS if windows.single_parts else SLICES
        self._descriptor = SortedMapStateDescriptor(name, BIGINT, contents.kept_type)
        self._seen_descriptor = ValueStateDescriptor(SEEN, BIGINT, default=0)

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self._parts = runtime_context.get_sorted_map_state(self._descriptor)
        self._seen = runtime_context.get_state(self._seen_descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """Add the row; the outputs of the window that it makes full."""
        number = self._seen.value()
        self._seen.update(number + 1)
        part = self._windows.part_of(number)
        self._parts.put(part, self._contents.added(self._parts.get(part), value, part, number))
        full = self._windows.full_at(number)
        if full is None:
            return []
        start, end = full
        parts = self._parts.sub_items(start, end)
        kept = self._contents.merged((entry for _, entry in parts), start, end)
        assert kept is not None
        window = self._windows.window(start)
        outputs = list(self._emitter.outputs(ctx, window, self._contents.elements(start, end, kept)))
        if not self._windows.grows:
            self._close(ctx, window, end)
        return outputs

    def forget(self, ctx: KeyedContext) -> Iterable[Any]:
        """Clear what is kept of the key: its next row is its first one. Windows that are not full never come out."""
        seen = self._seen.value()
        if self._windows.grows:
            self._emitter.cleared(ctx, self._windows.window(0))
        for part in list(self._parts.keys()):
            self._drop(part, seen)
        self._seen.clear()
        return []

    def _close(self, ctx: KeyedProcessFunction.Context, window: Any, end: int) -> None:
        self._emitter.cleared(ctx, window)
        while (first := self._parts.first_entry()) is not None and self._windows.goes(first[0]) <= end:
            self._drop(first[0], first[0] + self._windows.every)

    def _drop(self, part: int, end: int) -> None:
        self._parts.remove(part)
        self._contents.dropped(part, end)
