"""Translates infrastructure errors of engine calls: they name the job, what was kept, and what to do.

A storage that refuses, a process of Spark that died, a host name that does not resolve: ``storage.stores.failures`` and
``spark.failures`` know these errors. What nobody foresaw is an ``InternalError``, so that no exception of the engine
reaches a user but a ``StatelakeError``. Exceptions of the user's own functions, and interrupts, reach him as they are.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, TypeVar

from state_engine.core.argument_checks import check_arguments
from state_engine.machine.defects import unforeseen, with_methods
from state_engine.spark.failures import outside
from state_engine.storage.stores.failures import NOTHING_DONE, keeping

C = TypeVar("C", bound=type)

_WITH_ADVICE = ("job", "jobs", "spark", "states", "outputs")
"""Arguments that are refused with advice of their own: a name where the code is needed, a session of Spark Connect, one
name in place of a list, rows in place of a DataFrame, a policy that an operation does not have."""


def guarded(cls: C) -> C:
    """Class decorator for what users call: its instances have a ``context``, and methods or instances a job.

    Their arguments are checked before anything is done.
    """
    cls.__init__ = _checked(cls.__init__)  # type: ignore[misc]
    return with_methods(cls, _guarded)


def _checked(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def call(self: Any, *args: Any, **options: Any) -> None:
        check_arguments(init, (self, *args), options, but=_WITH_ADVICE)
        init(self, *args, **options)

    return call


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    takes_job = list(inspect.signature(method).parameters)[1:2] == ["job"]

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        job = options.get("job", next(iter(args), "")) if takes_job else getattr(self, "_job", "")
        name, handled = str(getattr(job, "name", job)), sys.exception()
        check_arguments(method, (self, *args), options, but=_WITH_ADVICE)
        try:
            kept = keeping(name, NOTHING_DONE, at=self.context.root) if name else nullcontext()
            with kept, self.context.call():
                return method(self, *args, **options)
        except Exception as error:
            if any(isinstance(one, KeyboardInterrupt) for one in _contexts(error, handled)):
                raise KeyboardInterrupt from error  # what was interrupted failed as it was cleaned up
            failure = outside(error, self.context.session, name) or unforeseen(error, name)
            if failure is None:
                raise
            raise failure from error

    return call


def _contexts(error: BaseException, handled: BaseException | None) -> Iterator[BaseException]:
    """What an exception was raised in the handling of, up to what the caller was handling."""
    seen, one = set[int](), error.__context__
    while one is not None and one is not handled and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__context__
