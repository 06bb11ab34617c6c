"""Unreadable input: damaged files, and errors of storage, which do not mean a damaged file."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError

from state_engine.core.errors import BadFileError, SourceError, StorageError
from state_engine.sources.parquet.parquet_files import parquet_row_count
from state_engine.spark.read_failures import UnreadFileError, reading, reading_file
from state_engine.storage.stores.files import Location, normal_uri


class _Java:
    def __init__(self, *messages: str) -> None:
        self.messages = messages

    def getMessage(self) -> str:
        return self.messages[0]

    def getClass(self) -> _Java:
        return self

    def getName(self) -> str:
        return "java.lang.RuntimeException"

    def getCause(self) -> _Java | None:
        return _Java(*self.messages[1:]) if self.messages[1:] else None


class _Raised(Py4JJavaError):
    def __init__(self, *messages: str) -> None:
        self.java_exception = _Java(*messages)


def spark_raises(cause: str) -> None:
    failed = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///feed/a.parquet. SQLSTATE: KD001"
    with reading("events", job="sums", into="operator 'sum'"):
        raise _Raised("Job aborted", failed, cause)


def test_of_what_spark_cannot_read_the_storage_may_be_the_cause() -> None:
    with pytest.raises(BadFileError, match="could not read page") as bad:
        spark_raises("could not read page PageHeader in col [id] required int64 id")
    assert bad.value.uri == "file:///feed/a.parquet"
    with pytest.raises(StorageError, match=r"/feed/a\.parquet .*the permission is denied") as refused:
        spark_raises("/feed/a.parquet (Permission denied)")
    assert not isinstance(refused.value, SourceError)
    with pytest.raises(StorageError, match="too many files are open"):
        spark_raises("/feed/a.parquet (Too many open files)")


@pytest.mark.parametrize(
    "error",
    [
        StorageError("/feed/a.parquet cannot be read: the permission is denied"),
        OSError(errno.EAGAIN, "not now", "/feed/a.parquet"),
    ],
)
def test_of_what_arrow_cannot_read_the_storage_may_be_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    uri = normal_uri(tmp_path / "a.parquet")
    (tmp_path / "a.parquet").write_bytes(b"no footer of Parquet")
    with pytest.raises(BadFileError, match=r"a\.parquet cannot be read as Parquet"):
        parquet_row_count(uri)

    @contextmanager
    def refused(self: Location) -> Iterator[Any]:
        raise error
        yield

    monkeypatch.setattr(Location, "parquet", refused)
    with pytest.raises(OSError, match=r"a\.parquet") as raised:
        parquet_row_count(uri)
    assert raised.value is error


def on_the_driver(error: Exception) -> None:
    """What becomes of an error that a task met as it read a file."""
    uri = "file:///feed/a b.parquet"
    with pytest.raises(UnreadFileError) as unread, reading_file(uri):
        raise error
    name = f"{UnreadFileError.__module__}.{UnreadFileError.__qualname__}"
    with reading("events", job="sums", into="operator 'sum'"):
        raise _Raised(f"Job aborted: Traceback:\n  File x\n{name}: {unread.value}\n\tat org.apache.spark")


def test_of_what_a_task_cannot_read_the_storage_may_be_the_cause() -> None:
    with pytest.raises(BadFileError, match=r"job 'sums', source 'events'.*a b\.parquet: Unexpected") as bad:
        on_the_driver(pa.ArrowInvalid("Unexpected\nend of stream"))
    assert bad.value.uri == "file:///feed/a b.parquet"
    with pytest.raises(BadFileError):
        on_the_driver(FileNotFoundError(2, "No such file", "/feed/a b.parquet"))
    for error in (PermissionError(13, "Permission denied", "/feed/a b.parquet"), StorageError("it is gone")):
        with pytest.raises(StorageError, match=r"permission is denied|is gone"):
            on_the_driver(error)
