"""A sampling profiler of a few lines: where the main thread of a process is, every few milliseconds, as a flame graph.

Samples are weighted by the time since the one before, so a call that holds the interpreter for long counts for all of
it. Only stacks inside the engine count: a worker that waits for its next task does not. Stacks are kept *collapsed*, a
line a stack with its microseconds, which other tools read, too.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from types import FrameType

RECORDING = "recording"
"""File in the directory of a profile; samples are taken while it is there."""
_EVERY_S = 0.004
_KEEP_S = 0.25
_PACKAGE = "state_engine"


class Sampler:
    """Samples this process while ``directory`` has the file ``recording``, and keeps the stacks in a file there.

    Args:
        directory: of the profile.
        name: what the process is.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._stacks: Counter[str] = Counter()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        """Sample in a thread, until ``stop`` or the end of the process."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        main, mark = threading.main_thread().ident, self._directory / RECORDING
        last = kept = time.perf_counter()
        while not self._stopped.wait(_EVERY_S):
            now = time.perf_counter()
            if mark.exists():
                stack = stack_of(sys._current_frames().get(main or 0))
                if f"{_PACKAGE}." in stack:
                    self._stacks[stack] += int((now - last) * 1e6)
            if self._stacks and now - kept > _KEEP_S:
                kept = now
                self._keep()
            last = now

    def _keep(self) -> None:
        file = self._directory / f"{self._name}-{os.getpid()}.folded"
        aside = file.with_suffix(".new")
        aside.write_text("".join(f"{stack} {us}\n" for stack, us in self._stacks.items()))
        aside.replace(file)


def stack_of(frame: FrameType | None) -> str:
    """A stack as text, outermost call first."""
    names: list[str] = []
    while frame is not None:
        names.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}")
        frame = frame.f_back
    return ";".join(reversed(names))


def read_stacks(files: Iterable[Path]) -> Counter[str]:
    """Stacks of several files, with their microseconds."""
    stacks: Counter[str] = Counter()
    for file in files:
        for line in file.read_text().splitlines():
            stack, us = line.rsplit(" ", 1)
            stacks[stack] += int(us)
    return stacks


def own_seconds(stacks: Mapping[str, int]) -> list[tuple[str, float, float]]:
    """Functions by the time inside them alone: name, that time, and the time with what they call; in seconds.

    Example:
        >>> own_seconds({"a;b": 1_000_000, "a": 2_000_000})
        [('a', 2.0, 3.0), ('b', 1.0, 1.0)]
    """
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for stack, us in stacks.items():
        calls = stack.split(";")
        own[calls[-1]] += us
        for call in set(calls):
            whole[call] += us
    return [(name, us / 1e6, whole[name] / 1e6) for name, us in own.most_common()]


_WIDTH, _ROW = 1400, 17


def flame_graph(stacks: Mapping[str, int], title: str) -> str:
    """Stacks as an SVG: a box a call, as wide as its time, under the call that made it.

    Example:
        >>> flame_graph({"a;b": 10, "a;c": 30}, "calls").count("<rect")
        4
    """
    boxes: dict[tuple[str, ...], int] = {(): sum(stacks.values())}
    for stack, us in stacks.items():
        calls = tuple(stack.split(";"))
        for depth in range(1, len(calls) + 1):
            boxes[calls[:depth]] = boxes.get(calls[:depth], 0) + us
    total, shapes, ends = max(boxes[()], 1), list[str](), dict[tuple[str, ...], float]()
    for calls in sorted(boxes):
        left = 0.0
        if calls:  # right of the calls of the same caller that came before
            left = ends.get(calls[:-1], 0.0)
            ends[calls[:-1]] = left + boxes[calls] * _WIDTH / total
        ends[calls] = left
        shapes.append(_box(calls, left, boxes[calls], total, title))
    height = (max(map(len, boxes)) + 1) * _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="monospace" '
        f'font-size="11">{"".join(shapes)}</svg>\n'
    )


def _box(calls: tuple[str, ...], left: float, us: int, total: int, title: str) -> str:
    width, top = us * _WIDTH / total, len(calls) * _ROW
    if width < 0.5:
        return ""
    name = calls[-1] if calls else title
    shown = name[-int(width / 7) :] if width > 14 else ""
    hue = sum(name.encode()) % 40 + 10
    return (
        f'<g><title>{escape(name)}: {us / 1e6:.3f} s, {100 * us / total:.1f} %</title><rect x="{left:.1f}" y="{top}" '
        f'width="{width:.1f}" height="{_ROW - 1}" fill="hsl({hue},70%,70%)"/>'
        f'<text x="{left + 2:.1f}" y="{top + 12}">{escape(shown)}</text></g>'
    )
