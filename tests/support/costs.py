"""What a micro-batch costs, counted from the records of Spark, of Delta and of the file system; no times."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.clientserver import ClientServerConnection
from py4j.protocol import MEMORY_COMMAND_NAME
from pyspark.sql import SparkSession

from tests.faults.file_plane import Plane, installed


class SparkRecords:
    """Spark jobs by description, their stages and what these moved, since this was made; as Spark itself keeps them."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._context = context._jsc.sc()
        self._store = self._context.statusStore()
        self._bus = self._context.listenerBus()
        self._before = {int(j.jobId()) for j in self._all()}

    def _all(self) -> list[Any]:
        self._bus.waitUntilEmpty()
        return _listed(self._store.jobsList(None))

    def new(self) -> list[Any]:
        """The jobs."""
        return [j for j in self._all() if int(j.jobId()) not in self._before]

    def descriptions(self) -> Counter[str]:
        """How many jobs have each description."""
        texts = (str(j.description().get()) if j.description().isDefined() else "" for j in self.new())
        return Counter(texts)

    def stages(self) -> dict[str, int]:
        """How many stages ended in which way, and how many tasks failed."""
        new = self.new()
        return {
            "completed": sum(int(j.numCompletedStages()) for j in new),
            "skipped": sum(int(j.numSkippedStages()) for j in new),
            "failed": sum(int(j.numFailedStages()) for j in new),
            "failed tasks": sum(int(j.numFailedTasks()) for j in new),
        }

    def moved(self) -> dict[str, int]:
        """Bytes that stages shuffled, spilled to the disk, and read by Spark's own readers of files."""
        stages = [
            self._store.lastStageAttempt(int(n)) for j in self.new() for n in _listed(j.stageIds().toSeq())
        ]
        return {
            "shuffled": sum(int(s.shuffleWriteBytes()) for s in stages),
            "spilled": sum(int(s.diskBytesSpilled()) for s in stages),
            "read by Spark": sum(int(s.inputBytes()) for s in stages),
        }

    def persisted(self) -> int:
        """How many data sets Spark keeps at the moment."""
        return int(self._context.getPersistentRDDs().size())


def _listed(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


@dataclass
class JavaCalls:
    """Calls of Java from this process: how many there were, and how long the longest reply was."""

    number: int = 0
    longest_reply: int = 0


@contextmanager
def counting_java_calls() -> Iterator[JavaCalls]:
    """Count the calls of Java that any thread makes inside."""
    calls, send = JavaCalls(), ClientServerConnection.send_command

    def counted(connection: ClientServerConnection, command: str) -> str:
        reply = str(send(connection, command))
        calls.number += not command.startswith(MEMORY_COMMAND_NAME)  # what was freed, whenever that was
        calls.longest_reply = max(calls.longest_reply, len(reply))
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientServerConnection, "send_command", counted)
        yield calls


def delta_commits(*directories: Path) -> int:
    """Log entries of all Delta tables below these directories."""
    return sum(1 for d in directories for _ in d.rglob("_delta_log/*.json"))


class FileRecords(Plane):
    """Files that the engine opens in this process to read them, with the bytes that it takes from each.

    Delta's logs are Kernel's: Java reads them.
    """

    def __init__(self, at: Path) -> None:
        super().__init__(str(at))
        self._below = str(at)
        self.bytes_read = Counter[str]()

    @property
    def opened(self) -> Counter[str]:
        """How often files were opened to be read, by directory: below that of the test, without partitions."""
        return self._files("read")

    @property
    def written(self) -> Counter[str]:
        """How often files were written, by directory."""
        return self._files("write")

    def bytes_of(self, directory: str) -> int:
        """Bytes read of the files in a directory and its partitions."""
        return sum(n for path, n in self.bytes_read.items() if _directory(path) == directory)

    def _files(self, kind: str) -> Counter[str]:
        return Counter(_directory(a.path) for a in self.accesses if a.kind == kind)

    def reading(self, path: str, file: pa.NativeFile) -> pa.NativeFile:
        return pa.PythonFile(_Counted(file, path.removeprefix(self._below).lstrip("/"), self.bytes_read), "r")


@contextmanager
def counting_files(at: Path) -> Iterator[FileRecords]:
    """Count the files below a directory that the engine reads inside."""
    with installed(FileRecords(at)) as records:
        assert isinstance(records, FileRecords)
        yield records


def _directory(path: str) -> str:
    """
    Example:
        >>> _directory("root/tiny/operators/sums/base/base_id=1/key_group=3/part-0.parquet")
        'root/tiny/operators/sums/base'
    """
    return "/".join(part for part in path.split("/")[:-1] if "=" not in part)


class _Counted(io.RawIOBase):
    """A file that counts what is read of it."""

    def __init__(self, file: pa.NativeFile, name: str, counts: Counter[str]) -> None:
        self._file, self._name, self._counts = file, name, counts

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def seek(self, offset: int, whence: int = 0) -> int:
        self._file.seek(offset, whence)
        return int(self._file.tell())

    def tell(self) -> int:
        return int(self._file.tell())

    def read(self, size: int | None = -1) -> bytes:
        content: bytes = self._file.read(None if size is None or size < 0 else size)
        self._counts[self._name] += len(content)
        return content

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
