"""What commands list, for people and for programs: tables, progress, late rows."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner, Result

from state_engine.cli.groups import Group
from state_engine.cli.history import history, records
from state_engine.cli.output import plain, report, show
from state_engine.cli.progress import _Reports
from state_engine.cli.session import progressed
from state_engine.cli.tables import Cell, print_table, table
from state_engine.core.checkpoints.checkpoint import CheckpointRow, ExpectationCount, SourceProgress
from state_engine.microbatch.reports import BatchReport
from state_engine.queries.history_views import sources_table
from state_engine.spark.task_progress import TaskProgress
from tests.core.checkpoints.rows import checkpoint, tree
from tests.support.commands import every_command

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
RECORDS: list[dict[str, Any]] = [
    {"job": "a", "sinks": ["x", "y"], "at": AT, "parent": None},
    {"job": "b, c", "sinks": [], "at": AT, "parent": 1},
]


def shown(*options: str) -> Result:
    app = Group("Commands.")

    @app.command()
    def listing() -> None:
        """List."""
        show(RECORDS, lambda: table(("job",), [(str(one["job"]),) for one in RECORDS]))

    @app.command()
    def doing() -> None:
        """Do something."""
        progressed("half of it")
        report({"job": "a", "expired": (1, 2), "at": AT}, ["a: 1 and 2 are expired"])

    return CliRunner().invoke(app, options)


def test_json_is_an_object_a_line() -> None:
    records = [json.loads(line) for line in shown("listing", "--json").stdout.splitlines()]
    assert records[0] == {"job": "a", "sinks": ["x", "y"], "at": "2026-03-01T12:00:00Z", "parent": None}
    assert records[1]["job"] == "b, c"


def test_csv_has_a_header_and_one_cell_a_name() -> None:
    header, *rows = csv.reader(io.StringIO(shown("listing", "--csv").stdout))
    assert header == ["job", "sinks", "at", "parent"]
    assert rows == [
        ["a", '["x", "y"]', "2026-03-01T12:00:00Z", ""],
        ["b, c", "[]", "2026-03-01T12:00:00Z", "1"],
    ]


def test_people_get_the_table() -> None:
    assert "b, c" in shown("listing").stdout


def test_every_command_can_be_read_by_programs() -> None:
    for name, command in every_command().items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--json", "--csv"} <= options, name


def test_a_report_is_sentences_for_people_and_one_record_for_programs() -> None:
    assert shown("doing").stdout.splitlines() == ["half of it", "a: 1 and 2 are expired"]
    as_json = shown("doing", "--json")
    assert json.loads(as_json.stdout) == {"job": "a", "expired": [1, 2], "at": "2026-03-01T12:00:00Z"}
    assert as_json.stderr == "half of it\n"
    as_csv = list(csv.reader(io.StringIO(shown("doing", "--csv").stdout)))
    assert as_csv == [["job", "expired", "at"], ["a", "[1, 2]", "2026-03-01T12:00:00Z"]]


def test_one_command_does_not_change_how_the_next_one_prints() -> None:
    assert shown("doing", "--json").stdout != shown("doing").stdout


def test_reports_are_objects() -> None:
    @dataclass
    class Report:
        at: datetime
        ids: tuple[int, ...]

    assert plain(Report(AT, (1, 2))) == {"at": "2026-03-01T12:00:00Z", "ids": [1, 2]}


NAMES = ("job", "is", "rows", "about")
LONG = "every value of a key that came within an hour of the one before it"
ROWS: list[tuple[Cell, ...]] = [
    ("flights", Text("ok", "green"), "1,200", LONG),
    ("a_job_with_a_long_name", "stuck", "7", ""),
]


def printed(shown: Table, *, width: int, terminal: bool = True) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    print_table(console, shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_nothing_is_cut_at_any_width(width: int) -> None:
    lines = printed(table(NAMES, ROWS, folds=("about",), right=("rows",)), width=width)
    assert max(map(len, lines)) <= width
    text = "".join("".join(lines).split())
    assert "…" not in text
    for cell in ("flights", "stuck", "1,200", "a_job_with_a_long_name"):
        assert cell in text
    assert all(word in text for word in LONG.split())


def test_a_sentence_is_folded_where_that_is_enough() -> None:
    lines = printed(table(NAMES, ROWS, folds=("about",), right=("rows",)), width=80)
    assert [name in lines[1] for name in NAMES] == [True] * 4
    assert any("a_job_with_a_long_name" in line and "stuck" in line for line in lines)


def test_a_narrow_terminal_shows_a_line_for_every_cell() -> None:
    lines = printed(table(NAMES, ROWS, right=("rows",)), width=80)
    assert [line.split() for line in lines[:3]] == [["job", "flights"], ["is", "ok"], ["rows", "1,200"]]
    assert not any(line.startswith("about") and LONG not in line for line in lines)


def test_in_a_pipe_a_row_is_a_line_without_boxes() -> None:
    lines = printed(table(NAMES, ROWS, folds=("about",), right=("rows",)), width=30, terminal=False)
    assert lines == [
        "job                     is      rows  about",
        f"flights                 ok     1,200  {LONG}",
        "a_job_with_a_long_name  stuck      7",
    ]


def test_cells_are_no_markup_and_stay_in_their_line() -> None:
    lines = printed(table(("value",), [("[red]a\nb[/]",)]), width=80, terminal=False)
    assert lines == ["value", "[red]a b[/]"]


def test_columns_in_which_nothing_happened_are_left_out() -> None:
    rows = [("a", "0", ""), ("b", "0", "late")]
    lines = printed(
        table(("job", "refused", "note"), rows, usual={"refused": "0", "note": ""}), width=80, terminal=False
    )
    assert [line.split() for line in lines] == [["job", "note"], ["a"], ["b", "late"]]


def test_without_rows_all_names_stand_there() -> None:
    shown = table(("job", "refused"), [], usual={"refused": "0"})
    assert printed(shown, width=80, terminal=False) == ["job  refused"]


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


def with_late_rows(*late: int) -> list[CheckpointRow]:
    """Checkpoints with so many late rows of each of two sources."""
    return [
        checkpoint(
            i,
            i - 1 or None,
            rows_in=9,
            sources=[SourceProgress(s, "", "", 9, None, behind_watermark=n) for s in "ab"],
        )
        for i, n in enumerate(late, 1)
    ]


def shown_history(late: list[CheckpointRow]) -> str:
    console = Console(width=200, record=True)
    console.print(history(late, last=9))
    return console.export_text()


def test_checkpoints_show_how_many_rows_were_late() -> None:
    listed = with_late_rows(0, 2)
    assert [one["behind_watermark"] for one in records(listed, last=9)] == [0, 4]
    assert "behind watermark" in shown_history(listed)
    assert "behind watermark" not in shown_history(with_late_rows(0, 0))


def test_checkpoints_show_how_many_rows_broke_rules() -> None:
    counts = [ExpectationCount(name, "v > 0", "drop", 9, broken) for name, broken in (("a", 2), ("b", 0))]
    rows = [checkpoint(1), checkpoint(2, 1, expectations=counts)]
    assert [one["break_rules"] for one in records(rows, last=9)] == [{}, {"a": 2, "b": 0}]
    assert "break rules" in shown_history(rows)
    assert "break rules" not in shown_history(rows[:1])


def test_sources_show_their_own() -> None:
    table = sources_table(tree(with_late_rows(0, 2)), [])
    assert table.select(["checkpoint_id", "source", "behind_watermark"]).to_pylist() == [
        {"checkpoint_id": i, "source": source, "behind_watermark": n}
        for i, n in ((1, 0), (2, 2))
        for source in "ab"
    ]
