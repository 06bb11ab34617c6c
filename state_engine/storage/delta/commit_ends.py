"""The ends that a commit through Kernel can have besides success, as errors.

CommitFailedError              nothing was written
├── TransactionTakenError      this application committed that version, or a later one
├── InactiveFilesError         files to remove are not in the table any more
└── OvertakenError             another writer was faster: look again, then try again
CommitUnknownError             look the commit up before going on
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError

from state_engine.core.counted_nouns import counted
from state_engine.core.errors import CommitFailedError, CommitUnknownError, MissingFilesError, StatelakeError
from state_engine.storage.stores.failures import java_storage_error, store_failure
from state_engine.storage.stores.files import is_local, local_path


class TransactionTakenError(CommitFailedError):
    """The transaction version, or a later one, is in the log already; nothing was written now."""


class OvertakenError(CommitFailedError):
    """Another writer committed the version that this commit was made for."""


class InactiveFilesError(CommitFailedError):
    """Files to remove are not active any more: somebody rewrote or removed them."""

    def __init__(self, uri: str, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        super().__init__(
            f"table {uri} no longer has {counted(len(self.paths), 'file')} that the commit removes: "
            f"{shown(self.paths)}; "
            "nothing was written"
        )


def shown(paths: Sequence[str], *, most: int = 5) -> str:
    """The first of many names, for a message.

    Example:
        >>> shown(["a", "b", "c"], most=2)
        'a, b and 1 more'
    """
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(paths[:most]) + more


def class_name(error: Py4JJavaError) -> str:
    """The name of the class of a Java exception, without its package."""
    return str(error.java_exception.getClass().getSimpleName())


def classified(error: Py4JJavaError, uri: str, *, committing: bool) -> CommitFailedError | CommitUnknownError:
    """Which of the four ends of a commit a Java exception means."""
    kind, message = class_name(error), str(error.java_exception.getMessage())
    if kind == "ConcurrentTransactionException":
        return TransactionTakenError(f"table {uri}: {message}")
    if (refused := refusal(error.java_exception, uri)) is not None:
        # the log store writes aside and renames: what it could not write is mostly not there, but who knows
        text = f"the commit to table {uri} failed: {refused}"
        return CommitUnknownError(text) if committing else CommitFailedError(f"{text}. Nothing was written")
    if kind in ("ConcurrentWriteException", "MaxCommitRetryLimitReachedException"):
        return OvertakenError(
            f"another writer committed to table {uri} first ({message}); nothing was written"
        )
    certain = kind in (
        "MetadataChangedException",
        "ProtocolChangedException",
        "TableAlreadyExistsException",
    )
    if certain or not committing:
        return CommitFailedError(f"the commit to table {uri} failed ({kind}: {message}); nothing was written")
    return CommitUnknownError(
        f"it is not known whether the commit to table {uri} succeeded ({kind}: {message})"
    )


def refusal(java: Any, uri: str) -> StatelakeError | None:
    """What the storage refused, where that is behind a Java exception: a denied log, say, shows as a lost race."""
    text = _text_of(java)
    error = java_storage_error(text, uri)
    if error is None and "MaxCommitRetryLimitReached" in text.splitlines()[0] and is_local(uri):
        log = local_path(uri) / "_delta_log"
        if log.is_dir() and not os.access(log, os.W_OK | os.X_OK):
            error = java_storage_error(f"Permission denied: {log}", str(log))
    return error


def unreadable(java: Any, uri: str) -> StatelakeError:
    """Why a table cannot be opened, from the Java exception."""
    failed = refusal(java, uri) or store_failure(_text_of(java), uri)
    if failed is not None:
        return failed
    return MissingFilesError(
        f"table {uri} cannot be read ({java.getClass().getSimpleName()}: {java.getMessage()}). Nothing was written. "
        "Its log _delta_log is damaged or incomplete: put it back from a backup, or restore from a savepoint"
    )


@contextmanager
def reading_log(uri: str) -> Iterator[None]:
    """Look into the log of a table, whose files Kernel reads when it is asked for what they say."""
    try:
        yield
    except Py4JJavaError as error:
        raise unreadable(error.java_exception, uri) from error
    except Exception as error:
        if (java := getattr(error, "_origin", None)) is None:
            raise
        raise unreadable(java, uri) from error  # PySpark has translated it


def _text_of(java: Any) -> str:
    return "\n".join(f"{one.getClass().getName()}: {one.getMessage()}" for one in _causes(java))


def _causes(java: Any) -> Iterator[Any]:
    """An exception and its causes, outermost first, and what each of them suppressed."""
    for _ in range(20):
        if java is None:
            return
        yield java
        yield from java.getSuppressed()
        java = java.getCause()
