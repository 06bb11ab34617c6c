"""Packages that not every project needs: each comes with an extra of the distribution, and is imported on first use."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from state_engine.core.errors import MissingPackageError

EXTRAS = {
    "dagster": "dagster",
    "dagster_pipes": "pipes",
    "great_expectations": "expectations",
    "psycopg": "postgres",
    "opentelemetry": "otel",
    "rocksdict": "rocksdb",
}
"""The extra that brings a package, by the name that the package is imported under."""


def optional(package: str, *, needed_by: str) -> ModuleType:
    """A package of an extra, imported now.

    Raises:
        MissingPackageError: it is not installed; the message names the extra.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # it is there, and what it imports is not
        raise missing(package, needed_by=needed_by) from error


def missing(package: str, *, needed_by: str) -> MissingPackageError:
    """The error for a package that is not installed.

    Example:
        >>> print(missing("rocksdict", needed_by="EmbeddedRocksDBStateBackend"))
        EmbeddedRocksDBStateBackend needs the package rocksdict: pip install "statelake[rocksdb]"
    """
    extra = EXTRAS.get(package)
    install = f'pip install "statelake[{extra}]"' if extra else f"pip install {package}"
    return MissingPackageError(f"{needed_by} needs the package {package}: {install}")
