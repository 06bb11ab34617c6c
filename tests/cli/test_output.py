"""What commands list, for people and for programs."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from typer.testing import CliRunner, Result

from state_engine.cli.groups import Group
from state_engine.cli.output import plain, report, show
from state_engine.cli.session import progressed
from state_engine.cli.tables import table
from state_engine.core.errors import ConfigurationError
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


def test_both_at_once_is_refused() -> None:
    result = shown("listing", "--json", "--csv")
    assert isinstance(result.exception, ConfigurationError)


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
