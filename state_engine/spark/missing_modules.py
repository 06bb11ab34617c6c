"""What the Python that runs tasks lacks, as an error that names it, where that was, and what to do.

The code of jobs and the engine are sent to executors (``shipping``, ``shipped_code``). Libraries are not: pyarrow and
what else a job imports must be in their Python. Plays the part of Flink's ``NoClassDefFoundError`` of a user's JAR,
whose message leaves the reader alone. Decision 0020.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from state_engine.core.errors import SetupError
from state_engine.spark.read_failures import messages
from state_engine.spark.shipping import ENGINE

_NO_MODULE = re.compile(r"No module named '?([\w.]+)'?|\[PACKAGE_NOT_INSTALLED\] (\w+) >=")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_PYTHON = re.compile(r"\[PYTHON_VERSION_MISMATCH\] ([^\n]+)")
_WHERE = re.compile(r"\(TID \d+\) \((.+?) executor (\S+?)\)")
_PLACED = re.compile(r"No module named '[\w.]+' \((.+)\)")
_NOTHING = "Nothing of this run is visible, and all commits are kept."
_ITS_PYTHON = (
    "That Python is named by spark.pyspark.python of [spark.options] for sessions that the engine starts, else by the "
    "environment variable PYSPARK_PYTHON of this process"
)


def missing_module(text: str) -> str | None:
    """The module that a message says is not there.

    Example:
        >>> missing_module("workers cannot import it: No module named 'lib.part'")
        'lib.part'
        >>> missing_module("/usr/bin/python3: No module named pyspark.daemon")
        'pyspark.daemon'
        >>> missing_module("[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed")
        'pyarrow'
    """
    match = _NO_MODULE.search(text)
    return None if match is None else match.group(1) or match.group(2).lower()


def unfit_python(errors: Iterable[BaseException], spark: SparkSession, *, job: str) -> SetupError | None:
    """The error that says what the Python of tasks lacks, where one of Spark's errors does; None for any other.

    Args:
        job: name; empty where there is none.
    """
    for error in errors:
        if isinstance(error, Py4JJavaError | CapturedException):
            text = "\n".join(messages(error))
            where = place_of_task(text, spark)
            if (module := missing_module(text)) is not None:
                return module_error(module, where, job=job)
            if (match := _NO_PYTHON.search(text)) is not None:
                problem = f"there is no Python {match.group(1)}, which tasks are to run in"
            elif (match := _OTHER_PYTHON.search(text)) is not None:
                problem = f"the Python that runs tasks ({where}) is another: {match.group(1)}"
            else:
                continue
            return SetupError(
                f"{_prefix(job)}{problem}. {_NOTHING} Name one of the version that this process runs, with pyarrow and "
                f"what else the engine needs installed. {_ITS_PYTHON}"
            )
    return None


def module_error(module: str, where: str, *, job: str) -> SetupError:
    """That a library is not in the Python of tasks.

    Args:
        module: that cannot be imported.
    """
    top = module.partition(".")[0]
    if top == ENGINE:
        what, remedy = "the engine itself", "Install statelake there, of this process' version"
    else:
        what = "which is a library: the code of jobs is sent to executors, libraries are not"
        remedy = f"Install {_distribution(top)} there"
    return SetupError(
        f"{_prefix(job)}the Python that runs tasks ({where}) has no module '{module}', {what}. {_NOTHING} {remedy}, "
        f"or send executors an environment that has it (spark.archives); docs/guides/clusters.md shows both. "
        f"{_ITS_PYTHON}"
    )


def placed(text: str) -> str:
    """The Python and the machine that a message names after the missing module."""
    match = _PLACED.search(text)
    return match.group(1) if match else "of an executor"


def place_of_task(text: str, spark: SparkSession) -> str:
    """The Python that Spark starts for tasks, and where the one was that a message of Spark is about."""
    python, match = str(spark.sparkContext.pythonExec), _WHERE.search(text)
    return f"{python}, of executor {match.group(2)} on {match.group(1)}" if match else python


def _distribution(top: str) -> str:
    """What to install, of the version that is here."""
    names = importlib.metadata.packages_distributions().get(top)
    return f"{names[0]}=={importlib.metadata.version(names[0])}" if names else f"'{top}'"


def _prefix(job: str) -> str:
    return f"job '{job}': " if job else ""
