"""Tables for people: at the width of a terminal nothing is cut, and in a pipe a row is a line."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from state_engine.cli.tables import Cell, print_table, table

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
