"""Tables for people: as wide as the terminal, and plain text in a pipe.

A cell is never cut. A terminal that is too narrow for a table shows a line for every cell instead, as ``psql`` does in
its expanded display. In a pipe a row is a line, however long, without boxes and colours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Cell = str | Text
_READABLE = 16
"""Characters that a folded column has at least."""
_EDGES = 2
"""The blanks left and right of a table."""


def table(
    names: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    folds: Collection[str] = (),
    right: Collection[str] = (),
    usual: Mapping[str, str] | None = None,
) -> Table:
    """A table of plain texts.

    Args:
        rows: a cell a column; a ``Text`` may have a style.
        folds: columns of sentences and lists, which may be folded.
        usual: what a column says where nothing happened; a column that says nothing else is left out.
    """
    made = Table(box=box.SIMPLE)
    cells = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    shown = [i for i, name in enumerate(names) if not _says_nothing(cells[i], (usual or {}).get(name))]
    for i in shown:
        name = names[i]
        widest = max(map(len, (name, *cells[i])))
        made.add_column(
            Text(name),
            justify="right" if name in right else "left",
            overflow="fold",
            min_width=min(widest, _READABLE) if name in folds else widest,
        )
    for row in rows:
        made.add_row(*(_text(row[i]) for i in shown))
    return made


def print_table(console: Console, shown: Table) -> None:
    """Print a table as the output takes it: see this module."""
    if not console.is_terminal:
        for line in _aligned(shown):
            console.print(line, soft_wrap=True, highlight=False, markup=False)
    elif _narrowest(shown) <= console.width:
        console.print(shown)
    else:
        _print_expanded(console, shown)


def _text(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)


def _says_nothing(cells: Sequence[Cell], usual: str | None) -> bool:
    return bool(cells) and usual is not None and all(str(cell) == usual for cell in cells)


def _narrowest(shown: Table) -> int:
    """Characters that a line takes where folded columns are as narrow as they may be."""
    between = sum(shown.padding[1::2]) if isinstance(shown.padding, tuple) else 0
    return sum((column.min_width or 0) + between for column in shown.columns) + _EDGES


def _texts(shown: Table) -> tuple[list[str], list[tuple[str, ...]]]:
    names = [_line(column.header) for column in shown.columns]
    return names, list(zip(*(map(_line, column.cells) for column in shown.columns), strict=True))


def _line(cell: object) -> str:
    return " ".join(str(cell).splitlines())


def _aligned(shown: Table) -> list[str]:
    names, rows = _texts(shown)
    lines = [tuple(names), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = [column.justify != "right" for column in shown.columns]
    return [
        "  ".join(
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(line, widths, left, strict=True)
        ).rstrip()
        for line in lines
    ]


def _print_expanded(console: Console, shown: Table) -> None:
    names, rows = _texts(shown)
    for row in rows:
        block = Table.grid(padding=(0, 2))
        block.add_column(style="bold", no_wrap=True)
        block.add_column(overflow="fold")
        for name, cell in zip(names, row, strict=True):
            if cell:
                block.add_row(Text(name), Text(cell))
        console.print(block)
        console.print()
