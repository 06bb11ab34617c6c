"""Sends the engine and the code of jobs to executors, whose Python need not have them installed.

Only pure Python packages go, each as one archive: what they import from elsewhere (pyarrow, numpy, …) must be in the
Python that the executors run. Of a package its ``*.py`` and ``*.pyi`` files go and what the settings declare as its
data, nothing else: what happens to lie beside the code (``.env``, keys, data) stays here. An archive is named after
its content, so changed code is sent again. Functions written in the main script or a notebook travel with the tasks
anyway. Plays the part of the job's JAR that Flink's client uploads. Decision 0020.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock

from pyspark.sql import SparkSession

from state_engine.core.errors import SetupError

ENGINE = "state_engine"


def ship_code(
    spark: SparkSession, modules: Iterable[str] = (), *, package_data: Sequence[str] = ()
) -> list[str]:
    """Make packages importable in tasks; does nothing where those run on this machine, in the Python of this process.

    Args:
        modules: of jobs, by dotted name; the package or file that each belongs to goes as a whole.
        package_data: patterns of further files of these packages that go, such as ``jobs/models/*.json``.

    Returns:
        Names of what was sent now: what is new, or has changed since it was sent.
    """
    context = spark.sparkContext
    if is_in_process(str(context.master)) and _is_this_python(str(context.pythonExec)):
        return []
    names = sorted({ENGINE, *(module.partition(".")[0] for module in modules)})
    # Spark serves the files as long as it runs, and removes this directory when it ends
    directory, path, sent = Path(str(context._temp_dir)), list(sys.path), []
    for name in names:
        archive = archived(name, directory, package_data)
        if archive.name not in (context._python_includes or ()):
            context.addPyFile(str(archive))
            sent.append(name)
    sys.path[:] = path  # Spark would have the driver, too, import from the archive
    return sent


def is_in_process(master: str) -> bool:
    """Whether tasks run on this machine in the driver's process.

    Example:
        >>> [is_in_process(m) for m in ("local", "local[*]", "local-cluster[2,1,1024]", "yarn")]
        [True, True, False, False]
    """
    return master == "local" or master.startswith("local[")


def _is_this_python(program: str) -> bool:
    """Whether a program that Spark starts for tasks has what is installed for this process."""
    path = shutil.which(program)
    return (
        path is None or Path(path).parent == Path(sys.executable).parent
    )  # links would lead out of an environment


def archived(name: str, directory: Path, package_data: Sequence[str] = ()) -> Path:
    """A ZIP archive of a package, or of a module of one file; the same content has the same file name."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SetupError(
            f"there is no Python package '{name}' here to send to the executors: correct the modules of jobs in the "
            "settings, or install it"
        )
    origin = Path(spec.origin)
    above = origin.parent.parent if spec.submodule_search_locations else origin.parent
    files = _files_of(origin.parent, above, package_data) if spec.submodule_search_locations else [origin]
    target = directory / f"statelake-{name}-{_digest(files, above)}.zip"
    with _ARCHIVES:  # Spark refuses a file for ever that has changed since it was first sent
        if not target.exists():
            draft = target.with_suffix(".draft")
            _write_archive(draft, files, above)
            draft.replace(target)
    return target


_ARCHIVES = Lock()


def _write_archive(archive: Path, files: Sequence[Path], above: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        for file in files:
            made.write(file, file.relative_to(above))
            compiled = Path(importlib.util.cache_from_source(str(file))) if file.suffix == ".py" else file
            if compiled != file and compiled.exists():  # saves every worker the time to compile it
                made.write(compiled, file.relative_to(above).with_suffix(".pyc"))


def _files_of(package: Path, above: Path, package_data: Sequence[str]) -> list[Path]:
    files = set[Path]()
    for file in package.rglob("*"):
        parts = file.relative_to(above).parts
        if not file.is_file() or "__pycache__" in parts:
            continue
        is_code = file.suffix in (".py", ".pyi") and not any(part.startswith(".") for part in parts)
        if is_code or any(file.relative_to(above).match(pattern) for pattern in package_data):
            files.add(file)
    return sorted(files)


def _digest(files: Sequence[Path], above: Path) -> str:
    total = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        total.update(f"{file.relative_to(above)} {len(content)}\n".encode() + content)
    return total.hexdigest()[:12]
