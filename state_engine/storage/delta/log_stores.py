"""Which log store commits to a table, by the scheme of its URI, and whether commits are safe with it.

A log store creates the entry of a version unless there is one: only then does one of two writers win. Spark's writers
and Kernel must use the same one. Allowed are those that do so by the store's own means; what else is configured is
refused, and so are schemes that nobody has looked at.
"""

from __future__ import annotations

from typing import Any

from state_engine.core.errors import UnsafeStoreError
from state_engine.storage.stores.object_stores import S3_SCHEMES

PUT_IF_ABSENT = "statelake.delta.PutIfAbsentLogStore"
"""Ours, for stores with S3's interface."""

_HDFS, _AZURE = "io.delta.storage.HDFSLogStore", "io.delta.storage.AzureLogStore"
_LOCAL, _GCS = "io.delta.storage.LocalLogStore", "io.delta.storage.GCSLogStore"

DEFAULTS = {
    "file": _LOCAL,
    "hdfs": _HDFS,
    "viewfs": _HDFS,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "gs": _GCS,
    **dict.fromkeys(S3_SCHEMES, PUT_IF_ABSENT),
}
"""The log store of each scheme that is safe, and is used where nothing else is configured."""

_SPARK_KEY = "spark.delta.logStore.{}.impl"
_SPARK_OPTIONS = "spark.io.delta."


def spark_options() -> dict[str, str]:
    """Options of a Spark session by which its own Delta writers use our log store."""
    return {_SPARK_KEY.format(scheme): PUT_IF_ABSENT for scheme in S3_SCHEMES}


def kernel_options(java_context: Any) -> dict[str, str]:
    """Kernel's options: the log stores of a session under the keys that Kernel reads, and its options for Delta."""
    configured = _with_prefix(java_context, "spark.delta.logStore.")
    # Kernel's default for local files starts a process for every look at a file; we hold a lock, so this is as safe
    stores = {"file.impl": _LOCAL} | configured
    return {
        **{f"io.delta.kernel.logStore.{key}": value for key, value in stores.items()},
        **{f"io.delta.{key}": value for key, value in _with_prefix(java_context, _SPARK_OPTIONS).items()},
    }


def log_store_of(uri: str, java_context: Any) -> str:
    """Class of the log store that commits to a table; empty for schemes of which nobody knows."""
    scheme = uri.split(":", 1)[0]
    configured = _with_prefix(java_context, _SPARK_KEY.format(scheme)).get("", "")
    if scheme in S3_SCHEMES:
        return configured or "io.delta.storage.S3SingleDriverLogStore"  # what Delta takes
    return configured or DEFAULTS.get(scheme, "")


def is_allowed(uri: str, log_store: str) -> bool:
    """Whether a log store is known to keep the commits of two writers to a table apart."""
    return DEFAULTS.get(uri.split(":", 1)[0]) == log_store


def check_log_store(uri: str, log_store: str, *, single_writer: bool) -> None:
    """Refuse a table whose log store loses commits of two writers.

    Args:
        single_writer: the caller vouches that nobody else writes.
    """
    if single_writer or is_allowed(uri, log_store):
        return
    scheme = uri.split(":", 1)[0]
    safe = DEFAULTS.get(scheme)
    if safe is None:
        raise UnsafeStoreError(
            f"{uri}: whether commits of two runners meet safely on {scheme}:// is not known. Use "
            f"{', '.join(f'{name}://' for name in DEFAULTS)}; or pass single_writer=True if only one process will ever "
            "write there"
        )
    raise UnsafeStoreError(
        f"{uri}: the log store {log_store} is not known to keep commits of two runners apart. Set "
        f"{_SPARK_KEY.format(scheme)}={safe} (docs/guides/object_stores.md says where ours comes from); or "
        "pass single_writer=True if only one process will ever write there"
    )


def _with_prefix(java_context: Any, prefix: str) -> dict[str, str]:
    pairs = java_context.sc().conf().getAllWithPrefix(prefix)
    return {str(pair._1()): str(pair._2()) for pair in pairs}
