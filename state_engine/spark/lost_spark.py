"""Translates infrastructure errors of operations into errors that say what was kept and what to do.

A worker or an executor that died: ``SubtaskLostError``, the operation can be tried again. The JVM of this very process:
``SparkLostError``, another process has to go on. Memory that was refused: ``MemoryLimitError``. A Python of tasks that
lacks a library, a host name that does not resolve: ``SetupError``. A store that did not answer Spark or Kernel:
``StorageError``. Whatever an operation had committed stays; what it had not is seen by nobody. Plays the part of
Flink's ``TaskManagerLostException`` and of its ``JobManager``'s fail-over.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

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
)
from state_engine.spark.lost_subtasks import MORE_MEMORY, cause_of_death
from state_engine.spark.missing_modules import unfit_python
from state_engine.spark.read_failures import messages
from state_engine.storage.java_gateway import java_gateway
from state_engine.storage.stores.storage_errors import store_failure

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
_OURS = re.compile(r"\bstate_engine\.core\.errors\.(\w+): (.+)")
"""How Python prints an error of ours, as which it leaves a task."""
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
            or unfit_workers(error, session=session, job=job)
            or without_memory(error, job=job)
            or lost_process(error, session=session, job=job)
            or unresolved_host(error, job=job)
            or failed_store(error, job=job)
        )
    if isinstance(error, SourceError | SinkError | RootError) and "does not resolve" not in str(error):
        return unresolved_host(error, job=job)
    return None


def of_a_task(error: Exception, *, job: str) -> StatelakeError | None:
    """The error of ours that code in a Spark task raised; None for any other error."""
    for one in _causes(error):
        if isinstance(one, Py4JJavaError | CapturedException):
            sign = _OURS.search("\n".join(messages(one)))
            kind: Any = getattr(errors, sign[1], None) if sign else None
            if sign and getattr(kind, "__init__", None) is StatelakeError.__init__:
                where = f"job '{job}': " if job and f"job '{job}'" not in sign[2] else ""
                made: StatelakeError = kind(where + sign[2])
                return made
    return None


def without_memory(error: Exception, *, job: str) -> MemoryLimitError | None:
    """What could not get memory, where an error says so; None for any other error."""
    for one in _causes(error):
        where = "this process" if isinstance(one, MemoryError) else None
        if where is None and isinstance(one, Py4JJavaError | CapturedException):
            text = "\n".join([str(one), *messages(one)])
            where = next((who for who, sign in _NO_MEMORY.items() if sign.search(text)), None)
        if where is not None:
            prefix = f"job '{job}': " if job else ""
            return MemoryLimitError(
                f"{prefix}{where} had no memory left. Earlier commits are kept, nothing else is visible. "
                f"{MORE_MEMORY}"
            )
    return None


def unfit_workers(error: Exception, *, session: Any, job: str) -> SetupError | None:
    """What the Python of tasks lacks, where an error says so; None for any other error."""
    return None if session is None else unfit_python(_causes(error), session, job=job)


def lost_process(error: Exception, *, session: Any, job: str) -> StatelakeError | None:
    """The death that an error stands for; None for any other error.

    Args:
        session: of Spark; None where none was started.
        job: name; empty where the operation is of none.
    """
    causes, where = list(_causes(error)), f"job '{job}': " if job else ""
    for one in causes:
        if isinstance(one, Py4JJavaError | CapturedException) and (cause := cause_of_death(messages(one))):
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


def unresolved_host(error: Exception, *, job: str) -> SetupError | None:
    """The host that an error could not find; None for any other error."""
    texts = [text for one in _causes(error) for text in (str(one), getattr(one, "_stackTrace", None) or "")]
    match = next((m for text in texts if (m := _HOST.search(text))), None)
    if match is None and not any(isinstance(one, socket.gaierror) for one in _causes(error)):
        return None
    where = f"job '{job}': " if job else ""
    host = next(
        (f"'{name}'" for name in (match.groups() if match else ()) if name), "of a storage or a database"
    )
    return SetupError(
        f"{where}the host name {host} does not resolve on this machine. All commits are "
        "kept, and nothing else is visible. Correct it in the path or URL that names it, or repair "
        f"the machine's name resolution, and run again ({_first_line(error)})"
    )


def failed_store(error: Exception, *, job: str) -> StorageError | None:
    """That a store did not answer, where an error of Java's that nobody else explained says so; None for any other."""
    for one in _causes(error):
        if isinstance(one, Py4JJavaError | CapturedException):
            text = str(one)
            path = match.group() if (match := _STORE_PATH.search(text)) else "what a store holds"
            if (failure := store_failure(text, path)) is not None:
                kept = "All commits are kept, and the next run finishes the one in progress."
                return failure.placed_in(job, kept) if job else failure
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


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it came from, nearest first."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__
