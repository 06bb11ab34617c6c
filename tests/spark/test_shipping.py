"""The files that are sent to executors; ``test_local_cluster`` shows that executors work with them."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from state_engine.core.errors import SetupError
from state_engine.spark.shipping import archived, ship_code

pytestmark = pytest.mark.spark_tasks


def imported(archive: Path, statement: str) -> str:
    """The output of a Python that has the archive and the libraries, but no link to this repository."""
    added = [str(archive), sysconfig.get_path("purelib")]
    code = f"import sys; sys.path += {added}; {statement}"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_package_can_be_imported_from_its_archive(tmp_path: Path) -> None:
    archive = archived("state_engine", tmp_path)
    printed = imported(
        archive, "from state_engine.core.names import check_name as c; print(c.__module__, c('ab', what=''))"
    )
    assert printed == "state_engine.core.names ab"


def test_a_module_of_one_file_can_be_imported_from_its_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "myjobs.py").write_text("NAME = 'mine'\n")
    (tmp_path / "notes.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    archive = archived("myjobs", tmp_path)
    assert imported(archive, "import myjobs; print(myjobs.NAME)") == "mine"
    with pytest.raises(subprocess.CalledProcessError):
        imported(archive, "import notes")


def test_what_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no Python package 'nowhere' here"):
        archived("nowhere", tmp_path)


def package(directory: Path, files: dict[str, str]) -> Path:
    """A package ``mine`` with files."""
    for name, text in files.items():
        (file := directory / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return directory


CODE = {"__init__.py": "", "flows/__init__.py": "", "flows/clicks.py": "A = 1\n"}
OTHER = {
    ".env": "PASSWORD=x", "id_rsa": "key", "server.pem": "key", "prod.key": "key", "rates.json": "{}",
    "data/rows.csv": "1", "data/rates.json": "{}", ".venv/lib/other.py": "", ".git/hooks/x.py": "", "notes.pyc": "",
}  # fmt: skip


def test_only_code_and_declared_data_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(package(tmp_path / "src", CODE | OTHER)))
    code = {f"mine/{name}" for name in CODE}
    with zipfile.ZipFile(archived("mine", tmp_path)) as sent:
        assert set(sent.namelist()) == code
    with zipfile.ZipFile(archived("mine", tmp_path, ["mine/data/*.json"])) as sent:
        assert set(sent.namelist()) == code | {"mine/data/rates.json"}


class Context:
    """The used part of a SparkContext on a cluster."""

    master = "spark://elsewhere:7077"
    pythonExec = sys.executable

    def __init__(self, directory: Path) -> None:
        self._temp_dir, self._python_includes = str(directory), list[str]()

    def addPyFile(self, path: str) -> None:
        self._python_includes.append(Path(path).name)


def test_code_is_sent_again_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(package(tmp_path / "src", CODE)))
    session: Any = SimpleNamespace(sparkContext=Context(tmp_path))
    assert ship_code(session, ["mine.flows"]) == ["mine", "state_engine"]
    assert ship_code(session, ["mine.flows"]) == []
    package(tmp_path / "src", {"flows/clicks.py": "A = 2\n"})
    assert ship_code(session, ["mine.flows"]) == ["mine"]
    assert len(set(session.sparkContext._python_includes)) == 3


@pytest.mark.parametrize(
    ("master", "python", "sent"),
    [
        ("local[2]", sys.executable, []),
        ("local[2]", str(Path(sys.executable).with_name("python3")), []),
        ("local[2]", "/bin/sh", ["state_engine"]),  # any other program
        ("local-cluster[2,1,1024]", sys.executable, ["state_engine"]),
    ],
)
def test_the_engine_is_sent_to_tasks_elsewhere_and_in_another_python(
    tmp_path: Path, master: str, python: str, sent: list[str]
) -> None:
    context = Context(tmp_path)
    context.master, context.pythonExec = master, python
    session: Any = SimpleNamespace(sparkContext=context)
    assert ship_code(session) == sent


def test_threads_get_one_whole_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark serves what it was first given, and refuses the file for ever if it has changed since."""
    monkeypatch.syspath_prepend(str(tmp_path))
    package(tmp_path, {"__init__.py": "", **{f"m{n}.py": f"N = {n}\n" * 200 for n in range(40)}})
    directory, begin = tmp_path / "archives", threading.Barrier(8)
    directory.mkdir()

    def content(_: int) -> bytes:
        begin.wait()
        return archived("mine", directory).read_bytes()

    with ThreadPoolExecutor(8) as threads:
        contents = set(threads.map(content, range(8)))
    (archive,) = directory.iterdir()
    assert contents == {archive.read_bytes()}
    assert imported(archive, "from mine.m39 import N; print(N)") == "39"
