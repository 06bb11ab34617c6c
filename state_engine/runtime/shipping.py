"""Sends the engine and the code of jobs to executors on other machines, which need not have them installed.

Only pure Python packages go, each as one archive: what they import from elsewhere (pyarrow, numpy, …) must be in the
Python that the executors run. Functions written in the main script or a notebook travel with the tasks anyway. Plays
the part of the job's JAR that Flink's client uploads.
"""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import SparkSession

from state_engine.core.errors import SetupError

ENGINE = "state_engine"


def ship_code(spark: SparkSession, modules: Iterable[str] = ()) -> list[str]:
    """Make packages importable on all executors; does nothing where those are threads of this very process.

    Args:
        modules: of jobs, by dotted name; the package or file that each belongs to goes as a whole.

    Returns:
        Names of what was sent now, and not before.

    Raises:
        SetupError: there is no such module here.
    """
    context = spark.sparkContext
    if is_in_process(str(context.master)):
        return []
    names = sorted({ENGINE, *(module.partition(".")[0] for module in modules)})
    # Spark serves the files as long as it runs, and removes this directory when it ends
    directory, path = Path(str(context._temp_dir)), list(sys.path)
    sent = [name for name in names if not archive_of(name, directory).exists()]
    for name in sent:
        context.addPyFile(str(archived(name, directory)))
    sys.path[:] = path  # Spark would have the driver, too, import from the archive
    return sent


def is_in_process(master: str) -> bool:
    """Whether tasks run on this machine in the driver's process.

    Example:
        >>> [is_in_process(m) for m in ("local", "local[*]", "local-cluster[2,1,1024]", "yarn")]
        [True, True, False, False]
    """
    return master == "local" or master.startswith("local[")


def archive_of(name: str, directory: Path) -> Path:
    """Where the archive of a package is made."""
    return directory / f"statelake-{name}.zip"


def archived(name: str, directory: Path) -> Path:
    """A ZIP archive of a package, or of a module of one file.

    Raises:
        SetupError: there is none.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SetupError(
            f"there is no Python package '{name}' here to send to the executors: correct the modules of jobs in the "
            "settings, or install it"
        )
    origin, target = Path(spec.origin), archive_of(name, directory)
    files = sorted(origin.parent.rglob("*")) if spec.submodule_search_locations else [origin]
    above = origin.parent.parent if spec.submodule_search_locations else origin.parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for file in files:
            if not file.is_file() or "__pycache__" in file.parts:
                continue
            made.write(file, file.relative_to(above))
            compiled = Path(importlib.util.cache_from_source(str(file))) if file.suffix == ".py" else file
            if compiled != file and compiled.exists():  # saves every worker the time to compile it
                made.write(compiled, file.relative_to(above).with_suffix(".pyc"))
    return target
