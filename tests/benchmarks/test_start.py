"""The benchmark of a start: both engines begin in new processes and come to the same states."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks import start
from benchmarks.started import STATELAKE, TRANSFORM_WITH_STATE, WORK


def app() -> Typer:
    one = Typer()
    one.command()(start.run)
    return one


def test_every_work_of_a_process_is_known_by_its_engine() -> None:
    assert [name.split()[0] for name in WORK] == [STATELAKE, STATELAKE, *[TRANSFORM_WITH_STATE] * 2]


def test_a_process_that_fails_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="statelake failed"):
        start.started(STATELAKE, start.Path("nowhere"))


@pytest.mark.parametrize("engine", ["statelake", "transform_with_state"])
def test_a_process_loads_no_library_of_another_engine(engine: str) -> None:
    code = f"import benchmarks.contenders.{engine}, sys; print(sorted({{'polars', 'deltalake'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_it_compares_the_states_first_and_prints_a_ratio() -> None:
    done = CliRunner().invoke(app(), ["--keys", "500", "--events", "20", "--rounds", "1"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[-1].startswith("ratio transformWithState = ")
    assert sum(line.startswith("equal: the state of all keys") for line in lines) == 2
