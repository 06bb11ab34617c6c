"""``debug --write-test``: a file for pytest, without Spark; it passes as recorded, and fails on changed code."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from state_engine import StateEngine
from state_engine.cli import session
from state_engine.cli.main import app
from state_engine.machine.settings import LoadedSettings, Settings
from state_engine.registry import RegisteredJob
from state_engine.replay.key_debug import KeyDebug
from state_engine.testing import subtasks_in_process
from tests.replay import written_project

REPOSITORY = Path(__file__).parents[2]
BATCHES: tuple[dict[str, list[dict[str, Any]]], ...] = (
    {
        "payments": [
            {"user": "ann@mail", "amount": 10, "at": 0},
            {"user": "bob@mail", "amount": 30, "at": 1},
            {"user": "ann@mail", "amount": 25, "at": 1},
        ],
        "back": [{"user": "ann@mail", "back": 3, "at": 0}],
        "limits": [{"limit": 20}],
    },
    {
        "payments": [{"user": "bob@mail", "amount": 5, "at": 3}],
        "back": [{"user": "ann@mail", "back": 4, "at": 4}],
    },
    {"payments": [{"user": "ann@mail", "amount": 40, "at": 5}], "limits": [{"limit": 30}]},
)
OPERATORS = ("features", "first", "judge", "refunds", "sums", "windows")


def write_rows(directory: Path, number: int) -> None:
    for name, rows in BATCHES[number].items():
        (directory / name).mkdir(exist_ok=True)
        timed = [{**row, "at": f"1970-01-01T00:00:0{row['at']}Z"} if "at" in row else row for row in rows]
        (directory / name / f"{number}.json").write_text("\n".join(map(json.dumps, timed)))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    """A project whose job ran three micro-batches."""
    directory = tmp_path_factory.mktemp("project")
    shutil.copy(written_project.__file__, directory / "shop.py")
    (directory / "statelake.toml").write_text(f'root = "{directory}/root"\n[jobs]\nmodules = ["shop"]\n')
    with subtasks_in_process(spark), StateEngine(directory / "root", spark) as engine:
        for number in range(len(BATCHES)):
            write_rows(directory, number)
            engine.run(written_project.build(directory), clock=1000 * number)
    return directory


def debugged(project: Path, key: Any = "ann@mail", *, factor: int = 1, **options: Any) -> KeyDebug:
    with StateEngine(project / "root") as engine:
        job = written_project.build(project, factor)
        done = engine.debug(job, key, **{"from_checkpoint": 1, **options})
        assert engine.context.session is None
        return done


def run_of(project: Path, file: Path, module: str = "") -> subprocess.CompletedProcess[str]:
    """Pytest on a file, in the project, where there is no Java; with another text of its module where one is given."""
    source = project / "shop.py"
    before = source.read_text()
    try:
        source.write_text(module or before)
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)],
            cwd=project,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        source.write_text(before)


def environment() -> dict[str, str]:
    """Without Java."""
    return {
        "PATH": "/nowhere",
        "JAVA_HOME": "/nowhere",
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def passes(project: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the tests of a file here, in the project; how many they are."""
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", list(sys.path))
    names: dict[str, Any] = {}
    try:
        exec(compile(file.read_text(), str(file), "exec"), names)
        tests = [one for name, one in names.items() if name.startswith("test_")]
        for one in tests:
            one()
    finally:
        sys.modules.pop("shop", None)
    return len(tests)


@pytest.mark.more
def test_the_file_passes_without_spark_and_fails_with_another_function(project: Path, tmp_path: Path) -> None:
    done = debugged(project)
    assert done.same
    done.write_test(tmp_path / "test_ann.py")
    ran = run_of(project, tmp_path / "test_ann.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(OPERATORS)} passed" in ran.stdout
    changed = written_project_text().replace("factor: int = 1", "factor: int = 2")
    failed = run_of(project, tmp_path / "test_ann.py", changed)
    assert failed.returncode == 1
    assert "1 failed, 5 passed" in failed.stdout
    assert "test_sums_from_checkpoint_1" in failed.stdout


def written_project_text() -> str:
    return Path(written_project.__file__).read_text()


@pytest.mark.parametrize("first", [2, 3])
def test_it_starts_from_the_state_that_the_key_had(
    project: Path, tmp_path: Path, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = debugged(project, from_checkpoint=first)
    done.write_test(tmp_path / "test_ann.py")
    text = (tmp_path / "test_ann.py").read_text()
    assert "'total': 35" in text
    assert "Stamped(value=10, at=0)" in text
    assert "subtask_states={'limits': ('broadcast'" in text
    assert passes(project, tmp_path / "test_ann.py", monkeypatch) == len(OPERATORS)


def test_a_column_is_replaced_everywhere(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    debugged(project).write_test(tmp_path / "test_ann.py", replace=["user"])
    text = (tmp_path / "test_ann.py").read_text()
    assert "ann" not in text.replace("ann.py", "")
    assert "'user-1'" in text
    assert "'user-1:25'" in text  # a text that the function made of it
    assert passes(project, tmp_path / "test_ann.py", monkeypatch) == len(OPERATORS)


def test_what_is_recorded_is_written_where_the_function_is_another_one(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = debugged(project, operator="sums", factor=2)
    assert not done.same
    done.write_test(tmp_path / "test_ann.py")
    assert (
        passes(project, tmp_path / "test_ann.py", monkeypatch) == 1
    )  # of the recorded function, in the project


def test_the_command_writes_the_file(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = LoadedSettings(settings=Settings(root=str(project / "root")), origins={}, file=None)
    monkeypatch.setattr(session, "loaded_settings", lambda: settings)
    monkeypatch.setattr(
        "state_engine.cli.debug.declared", lambda _: RegisteredJob(job=written_project.build(project))
    )
    file = tmp_path / "tests" / "test_ann.py"
    of_key = ["debug", "shop", "--key", "ann@mail", "--from", "1"]
    command = ["debug", "--replace", "user", "--replace", "amount", "--write-test", str(file), *of_key[1:]]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "amount=10" in file.read_text()
    assert "amount=11" in file.read_text()  # 25
    again = CliRunner().invoke(app, command)
    assert again.exit_code != 0
    assert "there is a file" in str(again.exception) + again.output
    alone = CliRunner().invoke(app, [*of_key, "--replace", "user"])
    assert "--replace is about the file" in str(alone.exception) + alone.output


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal."""
    ours, theirs = pty.openpty()
    try:
        yield ours, theirs
    finally:
        os.close(ours)


@pytest.mark.more
def test_a_breakpoint_stops_in_the_function(project: Path, terminal: tuple[int, int]) -> None:
    source = project / "shop.py"
    stops = written_project_text().replace(
        "        self.left.update(self.left.value() - value.back)\n",
        "        breakpoint()\n        self.left.update(self.left.value() - value.back)\n",
    )
    ours, theirs = terminal
    try:
        source.write_text(stops)
        process = subprocess.Popen(
            [sys.executable, "-c", "from state_engine.cli.main import main; main()", "debug", "shop",
             "--key", "ann@mail", "--operator", "refunds", "--checkpoint", "2"],
            cwd=project, env=environment() | {"TERM": "dumb"}, stdin=theirs, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        shown = read_until(ours, "(Pdb) ")
        assert "process_element2" in shown
        os.write(ours, b"p value.back, self.left.value()\n")
        assert "(4, 32)" in read_until(ours, "(Pdb) ")
        os.write(ours, b"continue\n")
        shown = read_until(ours, "as recorded")
        assert "state left: 32 -> 28" in shown
        assert process.wait(timeout=60) == 0
    finally:
        source.write_text(written_project_text())


def read_until(terminal: int, text: str) -> str:
    """What a terminal shows up to a text."""
    shown = ""
    while text not in shown:
        try:
            shown += os.read(terminal, 4096).decode()
        except OSError:  # the other end is closed
            pytest.fail(f"{text!r} does not come: {shown}")
    return shown
