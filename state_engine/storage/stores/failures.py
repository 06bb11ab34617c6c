"""What an operating system or a store refuses, as a ``StorageError``: the path, the cause, and the way out.

That a file or a directory is not there passes as ``FileNotFoundError``: many callers count on it, and those who do not
say themselves what is missing. What a library says of damaged content has no error number and passes as it is.
Decision 0021.
"""

from __future__ import annotations

import errno
import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from state_engine.core.errors import CommitError, CommitFailedError, CommitUnknownError, StorageError

NOTHING_DONE = "Earlier commits are unchanged, and you can run it again"

_PASSES = (
    errno.ENOENT,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENOTEMPTY,
    errno.EINTR,
    errno.EAGAIN,
)
"""Answers that callers ask for."""

_FULL = "the disk, or the quota on it, is full"
_FREE = "Free space there (statelake vacuum removes what no checkpoint needs), then run again"
_HANDLES = "too many files are open"
_RAISE = (
    "Raise the limit (ulimit -n, or LimitNOFILE of the service) or run fewer jobs at once, then run again"
)
_DENIED = "the permission is denied"
_NO_ANSWER = "the storage does not answer as it should"
_READ_ONLY = "the file system is read-only"
_CAUSES = {
    errno.ENOSPC: (_FULL, _FREE),
    errno.EDQUOT: (_FULL, _FREE),
    errno.EFBIG: ("the file would be larger than is allowed", "Raise the limit (ulimit -f), then run again"),
    errno.EMFILE: (_HANDLES, _RAISE),
    errno.ENFILE: (_HANDLES, _RAISE),
    errno.EROFS: (_READ_ONLY, "Mount it for writing, or use another root or path, then run again"),
}
_HOST = ("resolve host", "Name or service not known", "Temporary failure in name resolution", "UnknownHostException",
         "nodename nor servname")  # fmt: skip
_REMOTE = ("AWS Error", "curlCode", "HTTP", "Azure", "google")
_STORES = ("software.amazon.awssdk.", "org.apache.hadoop.fs.s3a.AWS")
"""Begin the names of what Java's clients of stores raise."""
_DENIED_BY_STORE = ("ACCESS_DENIED", "Status Code: 403", "HTTP status 403", "INVALID_ACCESS_KEY_ID",
                    "SIGNATURE_DOES_NOT_MATCH")  # fmt: skip


@contextmanager
def storage_errors(path: str, doing: str) -> Iterator[None]:
    """Raise what the storage refuses inside as a ``StorageError``; everything else passes as it is.

    Args:
        path: that is touched; the error's own, where it names one, is more exact.
        doing: what is done to it, for "cannot be …".

    Example:
        >>> try:
        ...     with storage_errors("/state/a", "written"):
        ...         raise OSError(errno.ENOSPC, "No space left on device")
        ... except StorageError as error:
        ...     print(str(error)[:56])
        /state/a cannot be written: the disk, or the quota on it
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        refused = storage_error(error, path, doing)
        if refused is None:
            raise
        raise refused from error


def storage_error(error: OSError, path: str, doing: str) -> StorageError | None:
    """The refusal that an error stands for; None where it is none."""
    named = error.filename if isinstance(error.filename, str) else path
    cause_and_way_out = cause_of(str(error), error.errno, named)
    if cause_and_way_out is None:
        return None
    cause, way_out = cause_and_way_out
    number = errno.errorcode.get(error.errno or 0, "")
    detail = f"{number}: {error.strerror}" if number and error.strerror else str(error)
    return StorageError(f"{named} cannot be {doing}: {cause} ({detail.strip()[:300]}). {way_out}", path=named)


def cause_of(text: str, number: int | None, path: str) -> tuple[str, str] | None:
    """Cause and way out of a refusal, as text; None where it is none."""
    if isinstance(number, int) and number in _CAUSES:
        return _CAUSES[number]
    if any(sign in text for sign in _DENIED_BY_STORE):
        return (
            _DENIED,
            "Give the keys of the store the right to it (see the policies of its bucket and user), or use other keys "
            "(section [storage] of the settings, or stores= of the engine), then run again",
        )
    if number in (errno.EACCES, errno.EPERM):
        return (
            _DENIED,
            f"Give {_user()} the right to it (see its owner and mode, and those above it), then run again",
        )
    if any(sign in text for sign in _HOST):
        return "a host name does not resolve", "Correct the location, or repair the network, then run again"
    if (number is None and any(sign in text for sign in _REMOTE)) or (number and number not in _PASSES):
        return _NO_ANSWER, f"See to the storage of {path}, then run again"
    return None


_JAVA_NUMBERS = {
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Too many open files": errno.EMFILE,
    "Permission denied": errno.EACCES,
    "AccessDeniedException": errno.EACCES,
    "Operation not permitted": errno.EPERM,
    "Read-only file system": errno.EROFS,
    "Input/output error": errno.EIO,
}


def java_storage_error(text: str, path: str) -> StorageError | None:
    """The refusal that the text of a Java exception stands for; None where it is none."""
    number = next((n for sign, n in _JAVA_NUMBERS.items() if sign in text), None)
    if number is None and not any(sign in text for sign in _HOST):
        return None
    cause_and_way_out = cause_of(text, number, path)
    assert cause_and_way_out is not None
    cause, way_out = cause_and_way_out
    line = text.strip().splitlines()[0][:300]
    return StorageError(f"{path} cannot be written or read: {cause} ({line}). {way_out}", path=path)


_ABSENT = ("FileNotFoundException", "NoSuchKeyException")


def store_failure(text: str, path: str) -> StorageError | None:
    """That a store did not answer as it should, where a Java exception of a read says so; None where it does not.

    Not for commits: there the same exceptions stand behind a lost race.

    Args:
        text: class and message of the exception and of its causes.
    """
    if not any(sign in text for sign in _STORES) or any(sign in text for sign in _ABSENT):
        return None
    line = next(line for line in text.splitlines() if any(sign in line for sign in _STORES))
    cause, way_out = cause_of(text, None, path) or (
        _NO_ANSWER,
        f"See to the storage of {path}, then run again",
    )
    return StorageError(f"{path} cannot be read: {cause} ({line.strip()[:300]}). {way_out}", path=path)


def _user() -> str:
    try:
        return f"the user {getpass.getuser()!r}"
    except (OSError, KeyError):
        return f"the user {os.getuid()} on {socket.gethostname()}"


@contextmanager
def keeping(job: str, kept: str, *, at: str) -> Iterator[None]:
    """Raise refusals of the storage with the job and what was kept; an outer one adds nothing.

    Args:
        kept: a sentence, without its full stop.
        at: path for refusals that name none.

    Raises:
        CommitError: a commit did not certainly succeed.
    """
    try:
        yield
    except StorageError as error:
        raise error.placed_in(job, f"{kept}.") from error
    except CommitError as error:
        if type(error) not in (CommitFailedError, CommitUnknownError) or f"job '{job}'" in str(error):
            raise
        raise type(error)(f"job '{job}': {str(error).rstrip('.')}. {kept}.") from error
    except ConnectionError:  # the process of Spark hung up, which ``spark.failures`` explains
        raise
    except OSError as error:
        refused = storage_error(error, at, "read or written")
        if refused is None:
            raise
        raise refused.placed_in(job, f"{kept}.") from error
