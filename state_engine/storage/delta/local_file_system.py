"""Hadoop's local file system without processes: it sets a file's permissions by a call, not by starting ``chmod``.

Hadoop starts a process for every local file that it creates, unless its native library is there, which no wheel brings:
eight a micro-batch, 3 ms of processor time each. The one method that does so is replaced by a class of ten lines, which
Janino, the compiler that Spark itself uses at run time, makes beside the first commits. Only Kernel's configuration
names it; Spark's stays as it is. Where it cannot be made, Hadoop's own class serves.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from py4j.protocol import Py4JError

from state_engine.storage.java_gateway import java_class

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
