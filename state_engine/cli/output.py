"""How commands print what they list: as a table for people, as JSON or CSV for programs.

For programs a line is a record: one JSON object, or the cells of a CSV. What is for people only, such as a remark about
rows that are not shown, goes to standard error then.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from state_engine.cli.session import console
from state_engine.core.errors import ConfigurationError

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")]

Record = Mapping[str, Any]


def show(
    records: Sequence[Record],
    table: Callable[[], Table],
    *,
    as_json: bool = False,
    as_csv: bool = False,
    columns: Sequence[str] = (),
) -> None:
    """Print records, or the table that shows them to people.

    Args:
        records: names and plain values; all have the same names.
        columns: names, for the header of a CSV without records.

    Raises:
        ConfigurationError: both JSON and CSV are asked for.
    """
    if as_json and as_csv:
        raise ConfigurationError("give --json or --csv, not both")
    if as_json:
        for record in records:
            typer.echo(json.dumps(plain(record), ensure_ascii=False))
    elif as_csv:
        print_csv(list(records[0]) if records else columns, [list(plain(r).values()) for r in records])
    else:
        console.print(table())


def print_csv(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print plain values as CSV."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([text(cell) for cell in row] for row in rows)


def text(cell: Any) -> str:
    """A plain value as text: nothing for null, JSON for what has parts."""
    return "" if cell is None else cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)


def plain(value: Any) -> Any:
    """What JSON can hold: instants are ISO 8601 in UTC, spans of time are seconds, reports are objects.

    Example:
        >>> plain({"at": datetime(2026, 3, 1, 12, tzinfo=UTC), "took": timedelta(minutes=1), "ids": (1, 2)})
        {'at': '2026-03-01T12:00:00Z', 'took': 60.0, 'ids': [1, 2]}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.repr}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    return value


def remark(words: str) -> None:
    """Print a line for people to standard error."""
    Console(stderr=True).print(words, soft_wrap=True, highlight=False, markup=False)
