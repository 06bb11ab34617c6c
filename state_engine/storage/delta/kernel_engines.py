"""Kernel's engines: one for local tables, which creates files without processes, and one for tables in stores.

Both have Spark's own Hadoop configuration and the session's log stores. They are two because S3A collects what it
uploads in local files, by Hadoop's own class for these, which the configuration for local tables replaces.
Decision 0051.

Hadoop starts a process, ``chmod``, for every local file that it creates, unless its native library is there, which no
wheel brings: eight a micro-batch, 3 ms of processor time each. The one method that does so is replaced by a class of
ten lines, which Janino, the compiler that Spark itself uses at run time, makes beside the first commits. Only Kernel's
configuration names it; Spark's stays as it is. Where it cannot be made, Hadoop's own class serves.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from py4j.protocol import Py4JError

from state_engine.storage.delta.kernel_classes import KernelClasses
from state_engine.storage.delta.log_stores import kernel_options
from state_engine.storage.java_gateway import background_thread, java_class, java_context, jvm_of
from state_engine.storage.stores.files import is_local


class KernelEngines:
    """See the module docstring."""

    def __init__(self, spark: Any, classes: KernelClasses) -> None:
        self._spark, self._classes = spark, classes
        configuration = self._new_configuration()
        self._local = classes.default_engine.create(configuration)
        background_thread().submit(use_plain_local_files, jvm_of(spark), configuration)
        self._in_stores: Any = None
        self._configuration: Any = None

    def of(self, uri: str) -> Any:
        if is_local(uri):
            return self._local
        if self._in_stores is None:
            self._in_stores = self._classes.default_engine.create(self.configuration)
        return self._in_stores

    @property
    def configuration(self) -> Any:
        """Hadoop's configuration for tables in stores."""
        if self._configuration is None:
            self._configuration = self._new_configuration()
        return self._configuration

    def _new_configuration(self) -> Any:
        context = java_context(self._spark)
        made = java_class(jvm_of(self._spark), "org.apache.hadoop.conf.Configuration")
        configuration = made(context.hadoopConfiguration())
        for key, value in kernel_options(context).items():
            configuration.set(key, value)
        return configuration


_NAME = "statelake.PlainLocalFileSystem"
_SOURCE = """
package statelake;

public class PlainLocalFileSystem extends org.apache.hadoop.fs.RawLocalFileSystem {
    public void setPermission(
        org.apache.hadoop.fs.Path path, org.apache.hadoop.fs.permission.FsPermission permission
    ) throws java.io.IOException {
        java.nio.file.Files.setPosixFilePermissions(
            pathToFile(path).toPath(),
            java.nio.file.attribute.PosixFilePermissions.fromString(permission.toString())
        );
    }
}
"""


def use_plain_local_files(jvm: Any, configuration: Any) -> None:
    """Have a Hadoop configuration open ``file:`` without processes, where files have Posix permissions.

    The first call of a process takes some tenths of a second, others nothing. What has a file open goes on as it began.
    """
    loader = _class_loader(jvm)
    if loader is not None:
        configuration.setClassLoader(loader)
        configuration.set("fs.file.impl", _NAME)
        configuration.set("fs.file.impl.disable.cache", "true")  # the cache holds Spark's


@lru_cache(maxsize=1)
def _class_loader(jvm: Any) -> Any:
    """What knows the class; None where it cannot be made."""
    files = java_class(jvm, "java.nio.file.FileSystems").getDefault()
    if not files.supportedFileAttributeViews().contains("posix"):
        return None
    try:
        compiler = java_class(jvm, "org.codehaus.janino.SimpleCompiler")()
        thread = java_class(jvm, "java.lang.Thread").currentThread()
        compiler.setParentClassLoader(thread.getContextClassLoader())
        compiler.cook(_SOURCE)
    except (Py4JError, TypeError):
        return None
    return compiler.getClassLoader()
