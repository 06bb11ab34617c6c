"""Translates infrastructure errors of operations into errors that say what was kept and what to do.

A worker or an executor that died: ``SubtaskLostError``, the operation can be tried again. The JVM of this very process:
``SparkLostError``, another process has to go on. Memory that was refused: ``MemoryLimitError``. A Python of tasks that
lacks a library, a host name that does not resolve: ``SetupError``. A store that did not answer Spark or Kernel:
``StorageError``. A value that DataFrame code of a job cannot take: ``UserFunctionError``. Whatever an operation had
committed stays; what it had not is seen by nobody. Plays the part of
Flink's ``TaskManagerLostException`` and of its ``JobManager``'s fail-over.
"""

from __future__ import annotations

import importlib.metadata
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors.exceptions.captured import CapturedException

from state_engine.core import errors
from state_engine.core.errors import (
    MemoryLimitError,
    RootError,
    SetupError,
    SinkError,
    SourceError,
    SparkLostError,
    StatelakeError,
    StorageError,
    SubtaskLostError,
    UserFunctionError,
)
from state_engine.spark.read_failures import messages
from state_engine.spark.shipping import ENGINE
from state_engine.storage.java_gateway import java_gateway
from state_engine.storage.stores.failures import store_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MORE_MEMORY = (
    "Take fewer rows at once (max_rows_per_batch, max_files_per_batch), spread them over more subtasks (parallelism), "
    "keep working state on the disk (EmbeddedRocksDBStateBackend), or give the machine more memory; then run again. "
    "A list, a value or an accumulator of a single key is in memory as a whole: keep it as a map state: a "
    "micro-batch writes only its changed entries"
)
"""What to do where memory did not suffice, for the end of a message."""

_DEAD = ("Python worker exited unexpectedly", "Python worker failed to connect back", "ExecutorLostFailure")
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
_HOST = re.compile(
    r"UnknownHostException: (?:Invalid host name: .*?destination host is: \"([^\" :]+)|([\w.-]+))"
    r"|could not translate host name \"([^\"]+)\""
    r"|[Cc](?:ould not|ouldn't) resolve host(?: name)?:? '?([\w.-]+)?"
    r"|failed to resolve host '([^']+)'"
)
_NO_MEMORY = {
    "Spark's Java (spark.driver_memory)": re.compile(r"java\.lang\.OutOfMemoryError"),
    "a task that read or routed rows": re.compile(r"^(?:pyarrow\.lib\.Arrow)?MemoryError\b", re.MULTILINE),
}
"""Who asked for memory in vain, and what Spark says then."""
_OURS = re.compile(r"\bstate_engine\.core\.errors\.(\w+): (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
"""How Python prints an error of ours, as which it leaves a task, and how an expression raises one."""
_OF_A_VALUE = re.compile(r"SQLSTATE: (22\w{3}|P0001)")
"""How Spark says that an expression cannot take a value: a text that is no number, a sum that is too large."""
_NO_ANSI = re.compile(r' If necessary set "?spark\.sql\.ansi\.enabled"? to "?false"?[^.]*\.')
"""Advice of Spark's that is none in a session of the engine, which has ANSI on."""
_OF_PYTHON = re.compile(r"Traceback \(most recent call last\):.*?\n(\w[^\n]*)", re.DOTALL)
"""The traceback of a Python of tasks, and its last line."""
_ENGINE_CODE = re.compile(r'File "[^"]*/state_engine/(?!spark/frame_code\.py)')
_STORE_PATH = re.compile(r"\bs3a?://[^\s:]+")
_REAPED_S = 5.0
"""The time in which the exit of a JVM that hung up is known. One that answers with an exception has not hung up."""
_STOPPED = "SparkContext was shut down"
"""What a JVM that is about to end still answers."""


def outside(error: Exception, session: Any, job: str) -> StatelakeError | None:
    """What an error of an operation stands for; None where it says that itself."""
    if not isinstance(error, StatelakeError):
        return (
            of_a_task(error, job=job)
            or unfit_python(error, session=session, job=job)
            or without_memory(error, job=job)
            or lost_process(error, session=session, job=job)
            or unresolved_host(error, job=job)
            or failed_store(error, job=job)
            or failed_frame_code(error, job=job)
        )
    if isinstance(error, SourceError | SinkError | RootError) and "does not resolve" not in str(error):
        return unresolved_host(error, job=job)
    return None


def of_a_task(error: Exception, *, job: str) -> StatelakeError | None:
    """The error of ours that code in a Spark task raised; None for any other error."""
    for one in _of_spark(error):
        sign = _OURS.search("\n".join(messages(one)))
        kind: Any = getattr(errors, sign[1], None) if sign else None
        if sign and getattr(kind, "__init__", None) is StatelakeError.__init__:
            where = "" if f"job '{job}'" in sign[2] else _prefix(job)
            made: StatelakeError = kind(where + sign[2])
            return made
    return None


def without_memory(error: Exception, *, job: str) -> MemoryLimitError | None:
    """What could not get memory, where an error says so; None for any other error."""
    text = "\n".join(line for one in _of_spark(error) for line in (str(one), *messages(one)))
    where = next((who for who, sign in _NO_MEMORY.items() if sign.search(text)), None)
    if any(isinstance(one, MemoryError) for one in _causes(error)):
        where = "this process"
    if where is None:
        return None
    return MemoryLimitError(
        f"{_prefix(job)}{where} had no memory left. Earlier commits are kept, nothing else is visible. {MORE_MEMORY}"
    )


def lost_process(error: Exception, *, session: Any, job: str) -> StatelakeError | None:
    """The death that an error stands for; None for any other error.

    Args:
        session: of Spark; None where none was started.
        job: name; empty where the operation is of none.
    """
    causes, where = list(_causes(error)), _prefix(job)
    for one in _of_spark(error):
        if cause := cause_of_death(messages(one)):
            return SubtaskLostError(
                f"{where}a process that Spark ran tasks in died ({cause}). Mostly the machine had no memory left: give "
                "it more, or run fewer rows a micro-batch (max_rows_per_batch); else a library crashed: see the "
                "log of Spark. Earlier commits are kept, nothing else is visible; run again"
            )
    signs = [one for one in causes if isinstance(one, Py4JError | ConnectionError)]
    if session is None or not signs:
        return None
    how = _exit_of(java_gateway(session), within_s=0 if all(map(_is_answer, signs)) else _REAPED_S)
    if how is None and not any(isinstance(one, Py4JNetworkError) for one in causes):
        return None
    return SparkLostError(
        f"{where}the Java process of Spark that belongs to this process died ({how or 'it hung up'}). Mostly the "
        "machine had no memory left: give the driver more (spark.driver_memory), or run fewer rows a micro-batch "
        "(max_rows_per_batch). All commits are kept; the one in progress happened as a whole or not at all, which "
        "the next run finds out. Start this process again, and run"
    )


@contextmanager
def translating_worker_loss(*, job: str, operator: str) -> Iterator[None]:
    """Run a Spark action whose tasks are subtasks; other failures pass as they are."""
    try:
        yield
    except (Py4JJavaError, CapturedException) as error:
        if (cause := cause_of_death(messages(error))) is None:
            raise
        raise SubtaskLostError(
            f"job '{job}', operator '{operator}': the process of a subtask died ({cause}). Mostly the "
            "machine had no memory left: run fewer rows a micro-batch (max_rows_per_batch), or more subtasks, or use "
            "EmbeddedRocksDBStateBackend; else a library crashed: see the log of Spark. Nothing of this "
            "micro-batch was committed, and what was before is kept; run again"
        ) from error


def cause_of_death(texts: list[str]) -> str | None:
    """What messages of Spark say of a task whose process died; None where they are about something else."""
    dead = any(sign in text for text in texts for sign in _DEAD)
    return _short(texts[-1]) if dead else None


def _short(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else "no message"


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


def unfit_python(error: Exception, *, session: SparkSession | None, job: str) -> SetupError | None:
    """The error that says what the Python of tasks lacks, where one of Spark's errors does; None for any other.

    Args:
        job: name; empty where there is none.
    """
    if session is None:
        return None
    for one in _of_spark(error):
        text = "\n".join(messages(one))
        where = place_of_task(text, session)
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
    names = importlib.metadata.packages_distributions().get(top)
    return f"{names[0]}=={importlib.metadata.version(names[0])}" if names else f"'{top}'"


def _prefix(job: str) -> str:
    return f"job '{job}': " if job else ""


def unresolved_host(error: Exception, *, job: str) -> SetupError | None:
    """The host that an error could not find; None for any other error."""
    texts = [text for one in _causes(error) for text in (str(one), getattr(one, "_stackTrace", None) or "")]
    match = next((m for text in texts if (m := _HOST.search(text))), None)
    if match is None and not any(isinstance(one, socket.gaierror) for one in _causes(error)):
        return None
    host = next(
        (f"'{name}'" for name in (match.groups() if match else ()) if name), "of a storage or a database"
    )
    return SetupError(
        f"{_prefix(job)}the host name {host} does not resolve on this machine. All commits are "
        "kept, and nothing else is visible. Correct it in the path or URL that names it, or repair "
        f"the machine's name resolution, and run again ({_first_line(error)})"
    )


def failed_store(error: Exception, *, job: str) -> StorageError | None:
    """That a store did not answer, where an error of Java's that nobody else explained says so; None for any other."""
    for text in map(str, _of_spark(error)):
        path = match.group() if (match := _STORE_PATH.search(text)) else "what a store holds"
        if (failure := store_failure(text, path)) is not None:
            kept = "All commits are kept, and the next run finishes the one in progress."
            return failure.placed_in(job, kept) if job else failure
    return None


def failed_frame_code(error: Exception, *, job: str) -> UserFunctionError | None:
    """What failed in DataFrame code of a job, where an error of Spark says so; None for any other error."""
    for text in (text for one in _of_spark(error) for text in messages(one)):
        raised = _OF_PYTHON.search(text)
        if raised and not _ENGINE_CODE.search(text):
            cause, trace = raised[1], raised[0]
        elif _OF_A_VALUE.search(text):
            cause, trace = _NO_ANSI.sub("", text.partition("\n==")[0]), ""
        else:
            continue
        return UserFunctionError(
            job=job, operator="transform", cause=cause, traceback_text=trace, can_be_set_aside=False
        )
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def _is_answer(error: BaseException) -> bool:
    """Whether a JVM that goes on raised it."""
    return isinstance(error, Py4JJavaError) and not any(_STOPPED in text for text in messages(error))


def _exit_of(gateway: Any, *, within_s: float) -> str | None:
    """How the JVM ended that PySpark started; None where it goes on for so long, or somebody else started it."""
    process = getattr(gateway, "proc", None)
    if process is None:
        return None
    try:
        code = process.wait(timeout=within_s)
    except subprocess.TimeoutExpired:
        return None
    return f"by signal {-code}" if code < 0 else f"with exit code {code}"


def _of_spark(error: BaseException) -> Iterator[Any]:
    """The errors of Spark and Java among an error and what it came from, nearest first."""
    return (one for one in _causes(error) if isinstance(one, Py4JJavaError | CapturedException))


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__
