"""PySpark's functions as ``F`` and its types as ``T``, imported when one of them is first used.

Jobs and their sources are described without Spark, so that Dagster loads its definitions, and commands show their
help, before PySpark is imported. Modules that a description needs take ``F`` and ``T`` from here.

Examples:
    >>> F.lit
    <function lit at ...>
    >>> T.LongType().simpleString()
    'bigint'
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import functions as F
    from pyspark.sql import types as T
else:

    class _Later(ModuleType):
        """A module that is imported when a name of it is asked for."""

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self.__name__), name)

    F = _Later("pyspark.sql.functions")
    T = _Later("pyspark.sql.types")

__all__ = ["F", "T"]
