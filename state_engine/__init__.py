"""Statelake: Flink's state model for scheduled, incremental PySpark batches, kept in Delta tables.

This module is the public API; everything else may change. ``__init__.pyi`` lists it. A name is imported when it is
first asked for, so that a job is described without Spark, and a command loads what it needs.
"""

import ast
import pkgutil
from importlib import import_module
from typing import Any

_STUB = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
_MODULES = {
    name.name: node.module for node in _STUB.body if isinstance(node, ast.ImportFrom) for name in node.names
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(import_module(str(_MODULES[name])), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
