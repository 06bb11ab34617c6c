"""Arguments are checked against their annotations: a wrong one is refused by its name.

Only what users call is checked, so that nobody pays for it in the calls of every row. What annotations cannot say (a
number above zero, a known name) is checked by what is called, and so is what deserves advice of its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from numbers import Integral, Real
from types import GenericAlias, NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from state_engine.core.errors import ConfigurationError, StatelakeError

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

_NAMES = {
    str: "text", int: "a whole number", float: "a number", bool: "True or False", NoneType: "None",
    Callable: "a function", Mapping: "a dict", dict: "a dict",
}  # fmt: skip


def check_arguments(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    *,
    but: Collection[str] = (),
) -> None:
    """Refuse an argument that its annotation does not allow. One that is missing, or too many, is left to the call.

    Args:
        but: names of arguments that are not checked.
    """
    try:
        given = _signature(function).bind(*args, **options).arguments
    except TypeError:
        return
    for name, hint in _hints(function).items():
        if name in given and name not in but and not _fits(given[name], hint):
            called = function.__qualname__.rpartition("<locals>.")[2].removesuffix(".__init__")
            raise ConfigurationError(f"{called}: {_refusal(name, given[name], hint)}")


def checked_function(function: F) -> F:
    """Decorator for what makes a value and changes nothing: its arguments are checked, its own refusals come first.

    Example:
        >>> @checked_function
        ... def wait(seconds: int) -> None: ...
        >>> try:
        ...     wait("7")
        ... except ConfigurationError as error:
        ...     print(error.args[0])
        wait: seconds must be a whole number, not '7'
    """

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            made = function(*args, **options)
        except StatelakeError:
            raise
        except Exception as error:
            failure: Exception | None = error
        else:
            failure = None
        check_arguments(function, args, options)
        if failure is not None:
            raise failure
        return made

    return cast("F", call)


def checked_class(cls: C) -> C:
    """Class decorator: the arguments of its own public methods are checked, and those that it is made of."""
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, staticmethod):
            setattr(cls, name, staticmethod(checked_function(member.__func__)))
        elif inspect.isfunction(member) and len(_signature(member).parameters) > 1:
            setattr(cls, name, checked_function(member))
    return cls


_signature = functools.cache(inspect.signature)


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of the parameters, but for named options of any name, and for what only type checkers can resolve."""
    function, hints = inspect.unwrap(function), dict[str, Any]()
    for name, parameter in _signature(function).parameters.items():
        if parameter.annotation is not parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            one = SimpleNamespace(__annotations__={name: parameter.annotation})
            with suppress(NameError):
                hint = get_type_hints(one, function.__globals__)[name]
                hints[name] = (
                    GenericAlias(tuple, (hint, ...)) if parameter.kind is parameter.VAR_POSITIONAL else hint
                )
    return hints


def _fits(value: Any, hint: Any) -> bool:
    """Whether an annotation allows a value; of forms that are none of these, any value."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if kind is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind is Callable:
        return callable(value)
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    return isinstance(value, kind) and (not issubclass(kind, Iterable) or _elements_fit(value, kind, parts))


def _elements_fit(value: Any, kind: type, parts: tuple[Any, ...]) -> bool:
    if isinstance(value, str | bytes):
        return issubclass(kind, str | bytes)
    if set(parts) <= {Any, ...} or (kind is tuple and parts[-1] is not ...):
        return True
    if issubclass(kind, Mapping):  # that of the environment may change meanwhile, in another thread
        return not isinstance(value, dict) or all(
            _fits(k, parts[0]) and _fits(v, parts[1]) for k, v in value.items()
        )
    return not isinstance(value, Collection) or all(_fits(one, parts[0]) for one in value)


def _refusal(name: str, value: Any, hint: Any) -> str:
    parts = _parts(hint)
    allowed = ["text such as '30 min'" if p is str and timedelta in parts else _named(p) for p in parts]
    listed = " or ".join(filter(None, [", ".join(allowed[:-1]), allowed[-1]]))
    example = f": [{value!r}]" if isinstance(value, str) and "a list of text" in allowed else ""
    return f"{name} must be {listed}, not {value!r}{example}"


def _parts(hint: Any) -> list[Any]:
    kind = get_origin(hint)
    if kind in (Union, UnionType):
        return [one for part in get_args(hint) for one in _parts(part)]
    return list(map(repr, get_args(hint))) if kind is Literal else [hint]


def _named(hint: Any) -> str:
    if isinstance(hint, str):
        return hint  # a word of Literal
    kind = get_origin(hint) or hint
    if kind in _NAMES:
        return _NAMES[kind]
    if isinstance(kind, type) and issubclass(kind, Iterable) and get_args(hint):
        elements = [_named(part).removeprefix("a ") for part in _parts(get_args(hint)[0])]
        return f"a list of {' or '.join(elements)}"
    name = "path" if kind.__name__ == "PathLike" else kind.__name__
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"
