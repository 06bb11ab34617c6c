"""Kernel's engines: one for local tables, which creates files without processes, and one for tables in stores.

Both have Spark's own Hadoop configuration and the session's log stores. They are two because S3A collects what it
uploads in local files, by Hadoop's own class for these, which the configuration for local tables replaces.
Decision 0051.
"""

from __future__ import annotations

from typing import Any

from state_engine.storage.delta.kernel_classes import KernelClasses
from state_engine.storage.delta.local_file_system import use_plain_local_files
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
        """The engine for a table."""
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
