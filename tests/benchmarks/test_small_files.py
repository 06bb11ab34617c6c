"""The benchmark of small files: both sides read the same rows."""

from __future__ import annotations

from typing import Any

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks import small_files
from benchmarks.unequal import UnequalResultsError


def app() -> Typer:
    one = Typer()
    one.command()(small_files.run)
    return one


def test_an_unknown_format_is_refused() -> None:
    done = CliRunner().invoke(app(), ["--format", "xml"])
    assert done.exit_code == 2
    assert "no format ['xml']; there are json, csv, parquet" in done.output


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_it_compares_the_rows_first_and_prints_a_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app(), ["--files", "5", "--rounds", "1", "--format", "csv"])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1].startswith("ratio to spark = ")

    read = small_files._read_plainly

    def twice(*arguments: Any) -> None:
        read(*arguments)
        read(*arguments)

    monkeypatch.setattr(small_files, "_read_plainly", twice)
    with pytest.raises(UnequalResultsError, match="spark: 0 rows are missing, 5 are wrong or too many"):
        small_files.measure(5, rounds=1, warm_up=0)
