"""``progress``: what a terminal shows of long work, with a bar where its end is known, and rates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from state_engine.cli.session import errors, opened, progressed
from state_engine.core.counted_nouns import counted
from state_engine.microbatch.reports import BatchReport
from state_engine.spark.task_progress import TaskProgress, task_progress

if TYPE_CHECKING:
    from state_engine.engine.engine import StateEngine


@contextmanager
def progress(doing: str) -> Iterator[Callable[[Any], None]]:
    """What long work is given as ``on_progress``: a line for every micro-batch, and below them how far the work is."""
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )
    with bar:
        yield _Reports(doing, bar)


@contextmanager
def opened_in_view(doing: str) -> Iterator[StateEngine]:
    """An engine whose Spark jobs are shown, task by task."""
    with opened() as engine, progress(doing) as on_progress, task_progress(engine.spark, on_progress):
        yield engine


class _Reports:
    """Shows the reports of one piece of work.

    Args:
        now_s: gives seconds of a clock that only goes forward.
    """

    def __init__(self, doing: str, bar: Progress, now_s: Callable[[], float] = time.monotonic) -> None:
        self._doing, self._bar, self._now_s = doing, bar, now_s
        self._task = bar.add_task(f"{doing} …", total=None)
        self._began_s = now_s()
        self._files = self._batches = self._rows = 0

    def __call__(self, at: Any) -> None:
        if isinstance(at, BatchReport):
            progressed(batch_line(at))
            self._batches += 1
            self._rows += at.rows_in
            self._show(
                f"{counted(self._batches, 'micro-batch')}, {counted(self._rows, 'row')}", self._rows, "rows"
            )
        elif isinstance(at, TaskProgress):
            self._bar.update(self._task, completed=at.done, total=at.of)
            self._show(f"{self._doing}: {at.done:,} of {counted(at.of, 'task')}", at.done, "tasks")
        else:
            self._files += 1
            self._show(f"{self._doing}: {counted(self._files, 'file')}, {at.path}", self._files, "files")

    def _show(self, text: str, count: int, of: str) -> None:
        rate = rate_text(count, self._now_s() - self._began_s, of)
        self._bar.update(self._task, description=f"{text}{rate}")


def rate_text(count: int, seconds: float, of: str) -> str:
    """So many a second, to be put behind a number; nothing where there is nothing to divide.

    Example:
        >>> rate_text(9_000, 2.0, "rows"), rate_text(3, 2.0, "files"), rate_text(0, 2.0, "rows")
        (', 4,500 rows/s', ', 1.5 files/s', '')
    """
    if not count or seconds <= 0:
        return ""
    rate = count / seconds
    return f", {rate:,.0f} {of}/s" if rate >= 10 else f", {rate:.1f} {of}/s"


def batch_line(batch: BatchReport) -> str:
    """One committed micro-batch.

    Example:
        >>> batch_line(BatchReport(7, 9_000, 0, {"out": 12}, 0, {}, 2.0, {}, 3))
        'checkpoint 7: 9,000 rows in, 12 to out (2.0 s, 4,500 rows/s)'
        >>> batch_line(BatchReport(8, 9, 0, {}, 0, {}, 0, {}, 3, behind_watermark={"rides": 2}))
        'checkpoint 8: 9 rows in, 2 behind the watermark (0.0 s)'
        >>> from state_engine.core.checkpoints.checkpoint import ExpectationCount
        >>> rule = ExpectationCount("amount_positive", "amount > 0", "drop", 9, 3)
        >>> batch_line(BatchReport(9, 9, 0, {}, 0, {}, 0, {}, 3, expectations=[rule]))
        'checkpoint 9: 9 rows in, 3 break amount_positive (drop) (0.0 s)'
    """
    partition = f"{batch.partition}, " if batch.partition else ""
    late = f", {batch.late_rows:,} late" if batch.late_rows else ""
    behind = f", {count:,} behind the watermark" if (count := sum(batch.behind_watermark.values())) else ""
    refused = f", {batch.rows_refused:,} refused" if batch.rows_refused else ""
    rules = "".join(
        f", {one.broken:,} {'breaks' if one.broken == 1 else 'break'} {one.name} ({one.otherwise})"
        for one in batch.expectations
        if one.broken
    )
    out = "".join(f", {rows:,} to {sink}" for sink, rows in batch.rows_out.items())
    return (
        f"{partition}checkpoint {batch.checkpoint_id}: {counted(batch.rows_in, 'row')} in{late}{behind}{refused}{rules}"
        f"{out} ({batch.seconds:.1f} s{rate_text(batch.rows_in, batch.seconds, 'rows')})"
    )
