"""Errors of storage, and Java exceptions of a commit: each has the path, the cause and a way out."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from state_engine.core.errors import (
    CommitFailedError,
    CommitUnknownError,
    MissingFilesError,
    StatelakeError,
    StorageError,
)
from state_engine.storage.delta.commit_ends import (
    OvertakenError,
    TransactionTakenError,
    classified,
    unreadable,
)
from state_engine.storage.stores.failures import java_storage_error, keeping, storage_error, storage_errors
from state_engine.storage.stores.files import open_location, write_csv, write_parquet
from state_engine.storage.stores.parquet_reading import read_parquet

ROWS = pa.table({"x": [1, 2, 3]})


@contextmanager
def limit(what: int, value: int) -> Iterator[None]:
    """A limit of this process, for as long as the block runs."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


@contextmanager
def no_more_files() -> Iterator[None]:
    """No file more can be opened: the limit is the lowest number that is free."""
    free = os.dup(0)
    os.close(free)
    with limit(resource.RLIMIT_NOFILE, free):
        yield


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(StorageError) as caught:
        act()
    assert isinstance(caught.value, StatelakeError)
    return str(caught.value)


def test_a_full_device_is_named_with_the_way_out() -> None:
    """``/dev/full`` answers every write as a full disk does."""
    full = open_location("file:///dev/full")
    shown = refused(lambda: full.write(b"x" * 100_000))
    assert shown.startswith("/dev/full cannot be written: the disk, or the quota on it, is full (ENOSPC")
    assert "Free space there" in shown


def test_a_file_that_grows_too_large_leaves_nothing(tmp_path: Path) -> None:
    noise = pa.table({"x": list(map(str, range(20_000)))})
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with limit(resource.RLIMIT_FSIZE, 1_000):
            for write in (write_parquet, write_csv):
                shown = refused(lambda write=write: write(noise, f"file://{tmp_path}/a"))  # type: ignore[misc]
                assert "the file would be larger than is allowed (EFBIG" in shown
    finally:
        signal.signal(signal.SIGXFSZ, ignored)
    assert os.listdir(tmp_path) == []


def test_too_many_open_files_are_reported_on_reading_and_writing(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/a.parquet"
    write_parquet(ROWS, uri)
    with no_more_files():
        shown = [
            refused(lambda: read_parquet(uri)),
            refused(lambda: write_parquet(ROWS, f"file://{tmp_path}/b.parquet")),
            refused(open_location(uri).read),
            refused(lambda: open_location(f"file://{tmp_path}/c").write_whole(b"1")),
        ]
    assert all("too many files are open (EMFILE" in text and "ulimit -n" in text for text in shown)
    assert sorted(os.listdir(tmp_path)) == ["a.parquet"]
    write_parquet(ROWS, f"file://{tmp_path}/b.parquet")
    assert read_parquet(f"file://{tmp_path}/b.parquet") == ROWS


@pytest.mark.parametrize(
    ("number", "cause", "way_out"),
    [
        (errno.ENOSPC, "is full", "Free space"),
        (errno.EDQUOT, "is full", "Free space"),
        (errno.ENFILE, "too many files", "ulimit"),
        (errno.EACCES, "the permission is denied", "Give the user"),
        (errno.EROFS, "is read-only", "Mount it for writing"),
        (errno.EIO, "does not answer as it should", "See to the storage"),
    ],
)
def test_each_refusal_has_a_cause_and_a_way_out(number: int, cause: str, way_out: str) -> None:
    error = storage_error(OSError(number, os.strerror(number), "/root/a"), "/root", "read")
    assert error is not None
    assert error.path == "/root/a"
    assert cause in str(error)
    assert way_out in str(error)
    assert errno.errorcode[number] in str(error)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY])
def test_answers_that_callers_ask_for_pass_as_they_are(number: int) -> None:
    with pytest.raises(OSError) as caught, storage_errors("/a", "read"):
        raise OSError(number, "as asked")
    assert not isinstance(caught.value, StatelakeError)


def test_a_host_that_does_not_resolve_is_named() -> None:
    error = OSError("When reading information for key 'a' in bucket 'b': AWS Error NETWORK_CONNECTION during "
                    "HeadObject operation: curlCode: 6, Couldn't resolve host name")  # fmt: skip
    assert "a host name does not resolve" in str(storage_error(error, "s3://b/a", "read"))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("java.io.FileNotFoundException: /r/_delta_log/.0.json.tmp (Permission denied)", "the permission is denied"),
        ("java.io.IOException: No space left on device", "is full"),
        ("java.nio.file.FileSystemException: /r: Too many open files", "too many files are open"),
        ("java.net.UnknownHostException: no.such.host", "a host name does not resolve"),
    ],
)  # fmt: skip
def test_what_java_says_is_reported_alike(text: str, cause: str) -> None:
    assert cause in str(java_storage_error(text, "/r"))


def test_other_java_errors_are_none_of_ours() -> None:
    assert java_storage_error("java.lang.IllegalStateException: no", "/r") is None


def test_the_job_and_what_was_kept_are_added_once() -> None:
    error = StorageError("/a cannot be read: x. Mend it")
    placed = error.placed_in("totals", "Nothing was committed.")
    assert str(placed) == "job 'totals': /a cannot be read: x. Mend it. Nothing was committed."
    assert placed.placed_in("other", "All is lost.") is placed


# -- whole or not at all -----------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_written_whole_leaves_the_one_before(tmp_path: Path) -> None:
    at = open_location(f"file://{tmp_path}/note.json")
    at.write_whole(b"before")
    with no_more_files():
        refused(lambda: at.write_whole(b"after"))
    assert at.read() == b"before"
    assert os.listdir(tmp_path) == ["note.json"]


def test_a_spark_that_hung_up_is_no_storage_that_refused() -> None:
    with pytest.raises(ConnectionRefusedError), keeping("sums", "Nothing was done", at="/root"):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


URI = "file:///state/totals/checkpoints"


@dataclass
class Java:
    name: str
    message: str
    cause: Java | None = None

    def getClass(self) -> Any:
        short = self.name.rpartition(".")[2]
        return SimpleNamespace(getName=lambda: self.name, getSimpleName=lambda: short)

    def getMessage(self) -> str:
        return self.message

    def getCause(self) -> Java | None:
        return self.cause

    def getSuppressed(self) -> list[Java]:
        return []


def raised(*chain: tuple[str, str]) -> Any:
    """An error of py4j; outermost exception first."""
    cause: Java | None = None
    for name, message in reversed(chain):
        cause = Java(name, message, cause)
    return SimpleNamespace(java_exception=cause)


DENIED = (
    ("io.delta.kernel.exceptions.MaxCommitRetryLimitReachedException", "Commit attempt 200 failed"),
    ("java.io.IOException", "cannot write"),
    ("java.io.FileNotFoundException", "/state/_delta_log/.7.json.tmp (Permission denied)"),
)


def test_a_denied_log_is_no_lost_race() -> None:
    error = classified(raised(*DENIED), URI, committing=True)
    assert type(error) is CommitUnknownError
    assert "the permission is denied" in str(error)
    assert "Give the user" in str(error)
    assert "another writer" not in str(error)


@pytest.mark.parametrize("said", ["No space left on device", "Too many open files", "Read-only file system"])
def test_what_is_refused_before_the_commit_failed_for_certain(said: str) -> None:
    error = classified(raised(("java.io.IOException", said)), URI, committing=False)
    assert type(error) is CommitFailedError
    assert "Nothing was written" in str(error)
    assert said in str(error)


def test_races_are_what_they_were() -> None:
    lost = classified(raised(DENIED[0]), "s3a://bucket/t", committing=True)
    assert isinstance(lost, OvertakenError)
    taken = raised(("io.delta.kernel.exceptions.ConcurrentTransactionException", "seen"))
    assert isinstance(classified(taken, URI, committing=True), TransactionTakenError)


def test_a_table_that_cannot_be_read_is_named() -> None:
    assert isinstance(
        unreadable(raised(("java.io.IOException", "Too many open files")).java_exception, URI), StorageError
    )
    silent = unreadable(
        raised(
            ("io.delta.kernel.exceptions.KernelEngineException", "Error reading JSON file"),
            ("software.amazon.awssdk.core.exception.SdkClientException", "Unable to execute HTTP request"),
        ).java_exception,
        URI,
    )
    assert isinstance(silent, StorageError)
    assert "does not answer" in str(silent)
    damaged = unreadable(raised(("java.lang.RuntimeException", "Could not parse")).java_exception, URI)
    assert isinstance(damaged, MissingFilesError)
    assert URI in str(damaged)
    assert "backup" in str(damaged)
