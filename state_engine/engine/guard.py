"""What happens around a call of the engine and is no fault of the job: raised with the job, what was kept, what to do.

A storage that refuses, a process of Spark that died, a host name that does not resolve: ``storage_failures`` and
``lost_spark`` know these errors. What nobody foresaw is an ``InternalError``, so that no exception of the engine
reaches a user but a ``StatelakeError``. Exceptions of the user's own functions, and interrupts, reach him as they are.
"""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from traceback import walk_tb
from types import CodeType
from typing import Any, TypeVar

import state_engine
from state_engine.core.errors import InternalError, StatelakeError
from state_engine.spark.lost_spark import outside
from state_engine.storage.storage_failures import NOTHING_DONE, keeping

C = TypeVar("C", bound=type)

_OURS = str(Path(state_engine.__file__).parent)
_PYTHON, _PACKAGES = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")
_LIBRARIES = tuple(
    str(Path(_PACKAGES, name))
    for name in (
        "deltalake", "duckdb", "numpy", "pandas", "psutil", "psycopg", "py4j", "pyarrow", "pydantic", "pyspark",
        "rocksdict", "sqlalchemy",
    )
)  # fmt: skip
"""Packages that the engine calls; the code of jobs may be installed beside them."""


def guarded(cls: C) -> C:
    """Class decorator for what users call: its instances have a ``context``, and methods or instances a job."""
    for name, member in list(vars(cls).items()):
        if not name.startswith("_") and inspect.isfunction(member):
            setattr(cls, name, _guarded(member))
    return cls


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    takes_job = list(inspect.signature(method).parameters)[1:2] == ["job"]

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        job = options.get("job", next(iter(args), "")) if takes_job else getattr(self, "_job", "")
        name, handled = str(getattr(job, "name", job)), sys.exception()
        try:
            kept = keeping(name, NOTHING_DONE, at=self.context.root) if name else nullcontext()
            with kept, self.context.call():
                return method(self, *args, **options)
        except Exception as error:
            if any(isinstance(one, KeyboardInterrupt) for one in _contexts(error, handled)):
                raise KeyboardInterrupt from error  # what was interrupted failed as it was cleaned up
            failure = outside(error, self.context.session, name) or _unforeseen(error, name)
            if failure is None:
                raise
            raise failure from error

    return call


def _unforeseen(error: Exception, job: str) -> InternalError | None:
    """What an exception of the engine's own is; None for what is foreseen, or the user's."""
    if isinstance(error, StatelakeError):
        return None
    codes = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    is_of_call = all(code.co_name == "call" for code in codes)  # arguments that the method does not take
    if is_of_call or any(map(_is_users, codes)):
        return None
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


def _contexts(error: BaseException, handled: BaseException | None) -> Iterator[BaseException]:
    """What an exception was raised in the handling of, up to what the caller was handling."""
    seen, one = set[int](), error.__context__
    while one is not None and one is not handled and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__context__
