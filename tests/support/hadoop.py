"""HDFS for tests: Hadoop's own small cluster, in a process of its own, and a way of pyarrow to it.

pyarrow reaches HDFS by ``libhdfs``, a part of Hadoop that is in no package: it calls Java's ``FileSystem``. So does
``HadoopFiles``, through the session's Java, with the same calls and the same answers.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.fs as pafs
import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from state_engine.machine.jars import JarSet, jars_of
from state_engine.machine.java import find_java_home
from tests.support.hdfs_like import OnlyWhatIsUsed, Written
from tests.support.waiting import until

_PINS = Path(__file__).with_name("hdfs_jars.txt")
HDFS_JARS = JarSet(
    name="the jars of Hadoop's cluster for tests",
    directory="hdfs-3.5.0",
    pinned=dict(line.split() for line in _PINS.read_text().splitlines() if not line.startswith("#")),
    # Spark has the rest.
    excludes=(
        "ch.*:*",
        "com.*:*",
        "commons-*:*",
        "io.*:*",
        "jakarta.*:*",
        "javax.*:*",
        "junit:*",
        "net.*:*",
        "org.apache.hadoop:hadoop-client-api",
        "org.apache.hadoop:hadoop-client-runtime",
        "org.apiguardian:*",
        "org.eclipse*:*",
        "org.mockito:*",
        "org.slf4j:*",
        "org.xerial*:*",
    ),
    setup="make test-stores",
)


@contextmanager
def hdfs(directory: Path) -> Iterator[str]:
    """A cluster of one name node and one data node on this machine only; its URI."""
    java = find_java_home(environ=os.environ)
    details, spark = directory / "details.json", Path(pyspark.__file__).parent / "jars" / "*"
    classpath = os.pathsep.join([*map(str, jars_of(HDFS_JARS, java=java)), str(spark)])
    command = [
        str(java.path / "bin" / "java"), "-Xmx512m", "-XX:+UseSerialGC", f"-Dtest.build.data={directory}/data",
        "-cp", classpath, "org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-nnport", "0", "-datanodes", "1",
        "-writeDetails", str(details),
    ]  # fmt: skip
    with (
        (directory / "log").open("wb") as log,
        subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as server,
    ):
        try:
            until(lambda: details.is_file() or server.poll() is not None, "HDFS", within_s=120)
            assert server.poll() is None, (directory / "log").read_text()
            until(lambda: bool(details.read_text()), "its address", within_s=10)
            yield f"hdfs://127.0.0.1:{json.loads(details.read_text())['namenode_port']}"
        finally:
            server.kill()


class HadoopFiles(OnlyWhatIsUsed):
    """A file system of Hadoop's for pyarrow."""

    def __init__(self, spark: SparkSession, uri: str, write_new: Callable[[str, str], bool]) -> None:
        self.around: Callable[[str, str, Callable[[], Any]], Any] = lambda _, __, act: act()
        self._jvm = cast("Any", spark._jvm)
        self._uri, self._write_new = uri, write_new
        at = self._jvm.java.net.URI(uri)
        self._fs = self._jvm.org.apache.hadoop.fs.FileSystem.get(at, spark._jsc.hadoopConfiguration())

    def location(self, uri: str) -> tuple[pafs.FileSystem, str]:
        """In place of ``files._remote``."""
        return pafs.PyFileSystem(self), uri.removeprefix(self._uri)

    def write_new(self, uri: str, text: str) -> bool:
        return bool(self.around("create", uri, partial(self._write_new, uri, text)))

    def below(self, uri: str) -> list[str]:
        """Files by their path from a directory."""
        at = self.location(uri)[1]
        try:
            infos = self._listed(pafs.FileSelector(at, allow_not_found=True, recursive=True))
        except FileNotFoundError:
            return []
        return [i.path.removeprefix(at + "/") for i in infos if i.type == pafs.FileType.File]

    def _call(self, name: str, path: str, *arguments: Any) -> Any:
        try:
            return getattr(self._fs, name)(self._path(path), *arguments)
        except Py4JJavaError as error:
            java = error.java_exception
            if java.getClass().getSimpleName() == "FileNotFoundException":
                raise FileNotFoundError(errno.ENOENT, java.getMessage(), path) from None
            raise OSError(errno.EIO, f"{java.getClass().getName()}: {java.getMessage()}", path) from None

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._uri + path)

    def _must(self, done: bool, what: str, path: str) -> None:
        """As ``libhdfs`` does: an operation that Java says did nothing has failed, and the cause is not known."""
        if not done:
            raise OSError(errno.EIO, f"{what} is refused", path)

    def move(self, src: str, dest: str) -> None:
        def move() -> None:
            self._must(self._call("rename", src, self._path(dest)), f"rename to {dest}", src)

        self.around("rename", src, move)

    def create_dir(self, path: str, recursive: bool) -> None:
        self.around("mkdirs", path, lambda: self._must(self._call("mkdirs", path), "mkdirs", path))

    def delete_file(self, path: str) -> None:
        self.around("delete", path, partial(self._delete, path, recursive=False))

    def delete_dir(self, path: str) -> None:
        self.around("delete all", path, partial(self._delete, path, recursive=True))

    def _delete(self, path: str, *, recursive: bool) -> None:
        if not self._call("delete", path, recursive):
            raise FileNotFoundError(errno.ENOENT, "nothing to delete", path)

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        def write(content: bytes) -> None:
            stream = self._call("create", path, True)
            stream.write(bytearray(content))
            stream.close()

        return pa.PythonFile(
            Written(lambda content: self.around("write", path, partial(write, content))), mode="w"
        )

    def open_input_stream(self, path: str) -> pa.NativeFile:
        def read() -> bytes:
            stream = self._call("open", path)
            content = self._jvm.org.apache.hadoop.io.IOUtils.readFullyToByteArray(stream)
            stream.close()
            return bytes(content)

        return pa.BufferReader(self.around("read", path, read))

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        return [self.around("look", path, partial(self._info, path)) for path in paths]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        infos: list[pafs.FileInfo] = self.around("list", selector.base_dir, partial(self._listed, selector))
        return infos

    def _info(self, path: str) -> pafs.FileInfo:
        try:
            return _info_of(path, self._call("getFileStatus", path))
        except FileNotFoundError:
            return pafs.FileInfo(path, pafs.FileType.NotFound)

    def _listed(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        try:
            statuses = list(self._call("listStatus", selector.base_dir))
        except FileNotFoundError:
            if selector.allow_not_found:
                return []
            raise
        infos = [_info_of(f"{selector.base_dir.rstrip('/')}/{s.getPath().getName()}", s) for s in statuses]
        for info in list(infos):
            if selector.recursive and info.type == pafs.FileType.Directory:
                infos += self._listed(pafs.FileSelector(info.path, recursive=True))
        return infos


def _info_of(path: str, status: Any) -> pafs.FileInfo:
    if status.isDirectory():
        return pafs.FileInfo(path, pafs.FileType.Directory)
    changed_ns = status.getModificationTime() * 1_000_000
    return pafs.FileInfo(path, pafs.FileType.File, size=status.getLen(), mtime_ns=changed_ns)
