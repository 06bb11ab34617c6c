"""What commands list, for people and for programs."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
import typer
from rich.table import Table
from typer.main import get_command
from typer.testing import CliRunner, Result

from state_engine.cli.main import app
from state_engine.cli.output import plain, show
from state_engine.core.errors import ConfigurationError

LISTS = (
    "jobs", "status", "checkpoints", "partitions", "sql", "branch list", "savepoint list", "dead-letters list",
    "config show", "doctor",
)  # fmt: skip
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
RECORDS: list[dict[str, Any]] = [
    {"job": "a", "sinks": ["x", "y"], "at": AT, "parent": None},
    {"job": "b, c", "sinks": [], "at": AT, "parent": 1},
]


def shown(*, as_json: bool = False, as_csv: bool = False) -> Result:
    one = typer.Typer()

    @one.command()
    def listing() -> None:
        def table() -> Table:
            made = Table("job")
            for record in RECORDS:
                made.add_row(str(record["job"]))
            return made

        show(RECORDS, table, as_json=as_json, as_csv=as_csv)

    return CliRunner().invoke(one)


def test_json_is_an_object_a_line() -> None:
    records = [json.loads(line) for line in shown(as_json=True).stdout.splitlines()]
    assert records[0] == {"job": "a", "sinks": ["x", "y"], "at": "2026-03-01T12:00:00Z", "parent": None}
    assert records[1]["job"] == "b, c"


def test_csv_has_a_header_and_one_cell_a_name() -> None:
    header, *rows = csv.reader(io.StringIO(shown(as_csv=True).stdout))
    assert header == ["job", "sinks", "at", "parent"]
    assert rows == [
        ["a", '["x", "y"]', "2026-03-01T12:00:00Z", ""],
        ["b, c", "[]", "2026-03-01T12:00:00Z", "1"],
    ]


def test_people_get_the_table() -> None:
    assert "b, c" in shown().stdout


def test_both_at_once_is_refused() -> None:
    result = shown(as_json=True, as_csv=True)
    assert isinstance(result.exception, ConfigurationError)


def commands() -> dict[str, Any]:
    root: Any = get_command(app)
    groups = {name: one for name, one in root.commands.items() if hasattr(one, "commands")}
    inside = {f"{name} {of}": one for name, group in groups.items() for of, one in group.commands.items()}
    return {name: one for name, one in root.commands.items() if name not in groups} | inside


@pytest.mark.parametrize("name", LISTS)
def test_every_list_can_be_read_by_programs(name: str) -> None:
    options = {option for parameter in commands()[name].params for option in parameter.opts}
    assert {"--json", "--csv"} <= options


def test_no_list_is_forgotten_here() -> None:
    assert {name for name in commands() if name.endswith((" list", " show"))} <= set(LISTS)


def test_reports_are_objects() -> None:
    @dataclass
    class Report:
        at: datetime
        ids: tuple[int, ...]

    assert plain(Report(AT, (1, 2))) == {"at": "2026-03-01T12:00:00Z", "ids": [1, 2]}
