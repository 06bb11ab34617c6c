"""How commands print: as tables and sentences for people, as JSON or CSV for programs.

For programs a line is a record: one JSON object, or the cells of a CSV. So it is for each command. What
is for people only, such as progress or a remark about rows that are not shown, goes to standard error then. Each
command has the options for that, see ``cli.groups``.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import typer
from rich.table import Table

from state_engine.cli.form import for_people, form
from state_engine.cli.session import console, say
from state_engine.cli.tables import print_table
from state_engine.core.plain_values import plain

Record = Mapping[str, Any]
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""Those that JSON leaves as they are."""


def show(records: Sequence[Record], table: Callable[[], Table], *, columns: Sequence[str] = ()) -> None:
    """Print records, or the table that shows them to people."""
    if for_people():
        print_table(console, table())
    else:
        print_records(records, columns)


def report(record: object, lines: Iterable[str]) -> None:
    """Print what a command did.

    Args:
        lines: the same in sentences; not asked for where programs read.
    """
    if for_people():
        for line in lines:
            say(line)
    else:
        print_records([plain(record)])


def print_records(records: Sequence[Record], columns: Sequence[str] = ()) -> None:
    """Print records for programs; ``columns`` are names, for the header of a CSV without records."""
    if form() == "json":
        print_json(records)
    else:  # a record has nothing where only others have a name
        names = list(dict.fromkeys(name for one in records for name in one)) or columns
        print_csv(names, [[plain(one.get(name)) for name in names] for one in records])


def print_json(records: Iterable[Record]) -> None:
    for record in records:
        typer.echo(json_text(plain(record)))


def print_csv(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([text(cell) for cell in row] for row in rows)


def text(cell: Any) -> str:
    """A plain value as text: nothing for null, JSON for what has parts."""
    return "" if cell is None else cell if isinstance(cell, str) else json_text(cell)


def json_text(value: Any) -> str:
    r"""A plain value as JSON on one line, by whatever programs take for the end of a line.

    Example:
        >>> json_text({"name": "Zoë\u2028"})
        '{"name": "Zoë\\u2028"}'
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False).translate(_LINE_ENDS)
