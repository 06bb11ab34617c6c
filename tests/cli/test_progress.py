"""Long work shows how far it is, and how fast it goes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from itertools import count

import pytest
from rich.console import Console
from rich.progress import Progress

from state_engine.cli.progress import _Reports
from state_engine.microbatch.reports import BatchReport
from state_engine.spark.task_progress import TaskProgress


@dataclass
class File:
    path: str


@pytest.fixture
def bar() -> Progress:
    return Progress(console=Console(file=io.StringIO()), disable=True)


def reports(bar: Progress) -> _Reports:
    """Two seconds pass between any two looks at the clock."""
    seconds = count(0.0, 2.0)
    return _Reports("Compacting", bar, now_s=lambda: next(seconds))


def test_tasks_fill_the_bar(bar: Progress) -> None:
    show = reports(bar)
    assert bar.tasks[0].description == "Compacting …"
    show(TaskProgress(3, 80))
    show(TaskProgress(40, 80))
    assert bar.tasks[0].description == "Compacting: 40 of 80 tasks, 10 tasks/s"
    assert bar.tasks[0].percentage == 50


def test_micro_batches_add_up(bar: Progress, capsys: pytest.CaptureFixture[str]) -> None:
    show = reports(bar)
    for i in (1, 2):
        show(BatchReport(i, 6_000, 0, {}, 0, {}, 1.5, {}, 3))
    assert bar.tasks[0].description == "2 micro-batches, 12,000 rows, 3,000 rows/s"
    assert bar.tasks[0].total is None
    assert capsys.readouterr().out.splitlines() == [
        f"checkpoint {i}: 6,000 rows in (1.5 s, 4,000 rows/s)" for i in (1, 2)
    ]


def test_files_are_counted(bar: Progress) -> None:
    show = reports(bar)
    show(File("a.parquet"))
    assert bar.tasks[0].description == "Compacting: 1 file, a.parquet, 0.5 files/s"
