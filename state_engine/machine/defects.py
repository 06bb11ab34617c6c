"""Defects: exceptions of the engine's own code that nobody foresaw. Those of the user's functions are none."""

from __future__ import annotations

import functools
import inspect
import sysconfig
from collections.abc import Callable
from pathlib import Path
from traceback import walk_tb
from types import CodeType
from typing import Any, TypeVar, cast

from state_engine.core.argument_checks import check_arguments
from state_engine.core.errors import InternalError, StatelakeError

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

_OURS = str(Path(__file__).parents[1])
_PYTHON, _PACKAGES = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")
_LIBRARIES = tuple(
    str(Path(_PACKAGES, name))
    for name in (
        "click", "deltalake", "duckdb", "numpy", "pandas", "psutil", "psycopg", "py4j", "pyarrow", "pydantic",
        "pyspark", "rich", "rocksdict", "sqlalchemy", "typer",
    )
)  # fmt: skip
"""Packages that the engine calls; the code of jobs may be installed beside them."""


def guarded_function(function: F) -> F:
    """Decorator for functions that users call without an engine; where they fail, a wrong argument may be why."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except Exception as error:
            if not _is_defect(error):
                raise
            check_arguments(function, args, options)
            raise _internal(error) from error

    return cast("F", call)


def guarded_class(cls: C) -> C:
    """Class decorator for what users call without an engine: its own methods are guarded, and how it is made."""
    return with_methods(cls, guarded_function, "__init__")


def with_methods(cls: C, wrap: Callable[[Any], Any], *also: str) -> C:
    """A class whose own public methods, and those that are named, are wrapped."""
    for name, member in list(vars(cls).items()):
        if inspect.isfunction(member) and (name in also or not name.startswith("_")):
            setattr(cls, name, wrap(member))
    return cls


def unforeseen(error: Exception, job: str = "") -> InternalError | None:
    """What an exception of the engine's own is; None for what is foreseen, or the user's."""
    return _internal(error, job) if _is_defect(error) else None


def _is_defect(error: Exception) -> bool:
    """Whether an exception is of the engine's own, and nobody foresaw it."""
    if isinstance(error, StatelakeError | NotImplementedError):  # the latter: the user's class lacks a method
        return False
    codes = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    is_of_call = all(code.co_name == "call" for code in codes)  # arguments that the method does not take
    return not is_of_call and not any(map(_is_users, codes))


def _internal(error: Exception, job: str = "") -> InternalError:
    where = f"job '{job}': " if job else ""
    return InternalError(
        f"{where}{type(error).__name__}: {error}. This is a defect of Statelake, or of something that it works with. "
        "Committed rows stay, and nothing else is visible. Run again; if it stays so, report it with this "
        "traceback"
    )


def _is_users(code: CodeType) -> bool:
    """Whether code belongs neither to the engine nor to a library, nor was made by one."""
    file = code.co_filename
    if file.startswith((_OURS, *_LIBRARIES)):
        return False
    if file.startswith("<"):
        return file.startswith("<ipython")
    return file.startswith(_PACKAGES) or not file.startswith(_PYTHON)
