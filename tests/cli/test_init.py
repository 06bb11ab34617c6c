"""``statelake init``: projects that run at once, of every template."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from state_engine.cli.init import Template, project_files
from state_engine.cli.main import app
from state_engine.core.errors import ConfigurationError

ASKED = {
    Template.MINIMAL: (
        "totals",
        "SELECT shop FROM total ORDER BY shop",
        ["Bergen", "Lyon", "Osaka", "Porto"],
    ),
    Template.SESSIONS: ("sessions", "SELECT count(*) > 5 FROM sessions", ["true"]),
    Template.LEDGER: ("ledger", "SELECT min(value) >= 0 FROM balance", ["true"]),
    Template.DEDUP: ("dedup", "SELECT count(*) > 200 FROM seen", ["true"]),
}
"""By template: its job, a query, and the answer after the first run."""
TESTS = {Template.MINIMAL: 2, Template.SESSIONS: 4, Template.LEDGER: 2, Template.DEDUP: 4}
"""How many tests each project has."""


def init(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["init", *arguments])


@pytest.fixture
def own_modules(tmp_path: Path) -> Iterator[None]:
    """The modules of a project are imported from its directory: nothing of them stays."""
    before, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
    sys.path[:] = path


@pytest.mark.parametrize("template", Template)
def test_the_tests_of_a_new_project_pass(template: Template, tmp_path: Path) -> None:
    assert init(str(tmp_path / "shop"), "--template", template).exit_code == 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "shop",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{TESTS[template]} passed" in done.stdout


@pytest.mark.parametrize(
    "template",
    [
        Template.MINIMAL,
        Template.LEDGER,
        *(pytest.param(t, marks=pytest.mark.long) for t in (Template.SESSIONS, Template.DEDUP)),
    ],
)
def test_a_new_project_runs_and_is_asked(
    template: Template,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own_modules: None,
) -> None:
    job, query, answer = ASKED[template]
    assert init(str(tmp_path), "--template", template).exit_code == 0
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, ["run", job])
    assert f"{job}: " in ran.output, ran.output
    assert "caught up, head 1" in ran.output
    asked = CliRunner().invoke(app, ["sql", job, query, "--format", "csv"])
    assert asked.output.splitlines()[1:] == answer


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / ".git").mkdir()
    result = init(str(tmp_path))
    assert isinstance(result.exception, ConfigurationError)
    assert "README.md" in str(result.exception)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".git", "README.md"]
    assert (tmp_path / "README.md").read_text() == "mine"


def test_it_goes_beside_what_is_there(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    result = init(str(tmp_path), "--template", "ledger")
    assert result.exit_code == 0
    assert "statelake run ledger" in result.stdout
    assert (tmp_path / "ledger.py").is_file()


@pytest.mark.parametrize(
    ("directory", "name"), [("My Shop", "my-shop"), ("été_2026", "t-2026"), ("___", "statelake-project")]
)
def test_the_project_is_named_like_its_directory(directory: str, name: str, tmp_path: Path) -> None:
    init(str(tmp_path / directory))
    assert tomllib.loads((tmp_path / directory / "pyproject.toml").read_text())["project"]["name"] == name


@pytest.mark.parametrize("template", Template)
def test_names_are_filled_in_everywhere(template: Template) -> None:
    for name, text in project_files(template, "shop").items():
        assert "$" not in text, name
        compiled = name.endswith(".py") and compile(text, name, "exec")
        assert compiled or not name.endswith(".py")
