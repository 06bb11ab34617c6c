"""Code of users as bytes for subtasks; what cannot travel is refused by its place in the code.

A lock, a connection, a socket, a generator, an open file or a Spark session belongs to the process that made it. The
same refusal comes where subtasks run in this process, for they get copies there as well. Decision 0020.
"""

from __future__ import annotations

import functools
import io
import re
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from pyspark import cloudpickle
from pyspark.cloudpickle.cloudpickle import Pickler, list_registry_pickle_by_value

from state_engine.core.errors import ConfigurationError
from state_engine.spark.loaded_modules import MAIN

_DEEPEST = 20


def _open_file(file: io.TextIOWrapper) -> Any:
    raise TypeError(f"the file {file.name} is open in this process")


class _Pickler(Pickler):
    """That of cloudpickle, but for open files: it would send the text that is left of one instead of the file."""

    dispatch_table: ClassVar = Pickler.dispatch_table.new_child({io.TextIOWrapper: _open_file})  # type: ignore[misc]


def sent_by_value(name: str) -> bool:
    """Whether code of a dotted name is in a module that is sent by value, or in a package that is."""
    registered, parts = {MAIN, *list_registry_pickle_by_value()}, name.split(".")
    return any(".".join(parts[:n]) in registered for n in range(1, len(parts) + 1))


def pickled(thing: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(thing)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def copied(thing: Any, *, what: str) -> Any:
    """A copy of an object with code in it, as a subtask gets it."""
    with _sending(thing, what):
        return cloudpickle.loads(pickled(thing))


def check_it_travels(things: list[Any], *, what: str) -> None:
    """Check that objects with code in them can be sent to subtasks."""
    with _sending(things, what):
        pickled(things)


@contextmanager
def _sending(thing: Any, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # an object's own code runs here, and may raise anything
        raise not_sendable(thing, error, what=what) from error


def not_sendable(thing: Any, error: Exception, *, what: str) -> ConfigurationError:
    """Why an object cannot be sent to subtasks: what in it cannot, and where that is.

    Args:
        thing: the object, or a list of those with code of the user.
        what: has the object, for messages: an operator, a source.
    """
    path, culprit, cause = _culprit(thing, error)
    path = re.sub(r"^\[\d+\]\.?", "", path)
    reason = str(cause).split("\n")[0][:200]
    return ConfigurationError(
        f"{what}: {path or 'it'} is a {type(culprit).__name__}, which cannot be sent to subtasks "
        f"({type(cause).__name__}: {reason}). Make it in open() of the function, where each subtask makes its own, and "
        "keep it out of attributes, closures and global names"
    )


def _culprit(thing: Any, error: Exception) -> tuple[str, Any, Exception]:
    """The innermost part that cannot be pickled, its path, and what is raised."""
    path, at, cause = "", thing, error
    for _ in range(_DEEPEST):
        inner = next(
            ((step, part, e) for step, part in _parts(at) if (e := _problem(part)) is not None), None
        )
        if inner is None:
            break
        step, at, cause = inner
        path += step
    return path.lstrip("."), at, cause


def _problem(part: Any) -> Exception | None:
    try:
        pickled(part)
    except Exception as error:
        return error
    return None


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, list | tuple | set | frozenset):
        names = getattr(thing, "_fields", None) or [f"[{at}]" for at in range(len(thing))]
        yield from (
            (name if name.startswith("[") else f".{name}", p) for name, p in zip(names, thing, strict=True)
        )
    elif isinstance(thing, dict):
        yield from ((f"[{key!r}]", value) for key, value in thing.items())
    elif isinstance(thing, functools.partial):
        yield ".partial.func", thing.func
        yield from ((f".partial.args[{at}]", argument) for at, argument in enumerate(thing.args))
        yield from ((f".partial.{name}", value) for name, value in thing.keywords.items())
    elif isinstance(thing, types.MethodType):
        yield f".{type(thing.__self__).__name__}", thing.__self__
    elif isinstance(thing, types.FunctionType):
        yield from _of_function(thing)
    elif isinstance(thing, type):
        yield from ((f".{name}", value) for name, value in vars(thing).items() if not name.startswith("__"))
    else:
        yield from _of_object(thing)


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    name = function.__qualname__.rpartition(".")[2]
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell.cell_contents is not function:
            yield f".{name}.{variable}", cell.cell_contents
    for place, default in enumerate(
        [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    ):
        yield f".{name}.default[{place}]", default
    for attribute, value in vars(function).items():
        yield f".{name}.{attribute}", value
    if sent_by_value(function.__module__) or "<" in function.__qualname__:
        used = [n for n in function.__code__.co_names if n in function.__globals__]
        yield from ((f".{name}.{n}", function.__globals__[n]) for n in used)


def _of_object(thing: Any) -> Iterator[tuple[str, Any]]:
    name = type(thing).__name__
    slots = [s for kind in type(thing).__mro__ for s in getattr(kind, "__slots__", ()) if hasattr(thing, s)]
    for attribute, value in {
        **{s: getattr(thing, s) for s in slots},
        **getattr(thing, "__dict__", {}),
    }.items():
        yield f".{name}.{attribute}", value
    if sent_by_value(type(thing).__module__):
        yield f".{name}", type(thing)
