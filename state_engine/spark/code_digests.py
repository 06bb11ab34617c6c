"""Digests of user code as a process holds it: functions, classes, and the module values that they use.

What is compared is what would run: bytecode, constants, defaults and globals, not files. So a module that was reloaded,
or changed by hand in a notebook, has other digests although its name is the same, and one whose file was edited but
that was not reloaded has the same ones. What is pickled with a function (its attributes, what a closure holds) is data
and does not count. The driver and a worker compute the same digests for the same code. Decision 0020.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any
from uuid import UUID

from state_engine.core.types.type_information import TypeInformation

ENGINE = "state_engine"
_SCALARS = (bool, int, float, complex, str, bytes, type(None), type(...))
_PLAIN = (Decimal, date, datetime, time, timedelta, Fraction, PurePath, UUID, range)
_MOST_ITEMS = 10_000
"""So many items of a value count, and so many items of data are looked through for code."""
# fmt: off
_NO_CODE = frozenset((
    "__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__", "__qualname__",
    "__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__", "__slotnames__", "__dataclass_fields__",
    "__dataclass_params__",
))
# fmt: on
_FIRST_TEXTS: dict[str, tuple[Any, str]] = {}

Owns = Callable[[str], bool]
"""Whether the module of a name is the job's own: the code of others only counts by its name."""
Classes = tuple[type, ...]


class CodeDigests:
    """Follows code from what it is given, and keeps a digest of each function, class and module value on its way.

    Args:
        passed_by: classes whose objects are not looked into.
    """

    def __init__(self, owns: Owns, passed_by: Classes = ()) -> None:
        self.owns, self._passed_by = owns, passed_by
        self._seen: dict[int, Any] = {}  # keeps what it has seen, so that no id is used twice
        self._left = _MOST_ITEMS
        self._assigned: dict[str, Set[str]] = {}
        self.by_name: dict[str, str] = {}
        self.modules: set[str] = set()

    @property
    def reached(self) -> Iterable[Any]:
        """All functions, classes and objects that were followed."""
        return self._seen.values()

    def visit(self, thing: Any) -> None:
        """Follow a function, a class, or an object that holds some."""
        if isinstance(thing, (*_SCALARS, *_PLAIN, *self._passed_by)) or id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        if isinstance(thing, types.FunctionType):
            self._function(thing)
        elif isinstance(thing, type):
            self._class(thing)
        elif isinstance(thing, types.MethodType):
            self.visit(thing.__func__)
            self.visit(thing.__self__)
        elif isinstance(thing, functools.partial):
            self._all((thing.func, *thing.args, *thing.keywords.values()))
        elif isinstance(thing, dict):
            self._data(thing.values())
        elif isinstance(thing, list | tuple | Set):
            self._data(thing)
        elif not isinstance(thing, types.ModuleType):
            self._object(thing)

    def _all(self, things: Iterable[Any]) -> None:
        for thing in things:
            self.visit(thing)

    def _data(self, things: Iterable[Any]) -> None:
        for thing in things:
            if self._left <= 0:
                return
            self._left -= 1
            self.visit(thing)

    def _object(self, thing: Any) -> None:
        """Of a wrapper what it wraps; of an object of ours, or of the user's, its attributes."""
        for name in ("__wrapped__", "func", "fget", "fset", "__func__"):
            inner = getattr_static(thing, name)
            if isinstance(inner, types.FunctionType):
                self.visit(inner)
        kind = type(thing)
        self.visit(kind)
        if self.owns(kind.__module__) or kind.__module__.partition(".")[0] == ENGINE:
            self._all(_attributes(thing).values())

    def _function(self, function: types.FunctionType) -> None:
        module = str(function.__module__)
        self._all(_cells(function))
        self._all([*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()])
        if (wrapped := function.__dict__.get("__wrapped__")) is not None:
            self.visit(wrapped)
        if not self.owns(module):
            return
        digest = hashlib.sha256(code_digest(function.__code__).encode())
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
        texts = [self._value(f"{module}.{function.__qualname__}", v) for v in defaults]
        digest.update(repr(texts).encode())
        self._keep(module, function.__qualname__, digest.hexdigest())
        names = _names_used(function.__code__)
        for name in names.globals:
            if name in function.__globals__:
                self._global(module, name, function.__globals__[name], names.attributes)

    def _global(self, module: str, name: str, value: Any, attributes: frozenset[str]) -> None:
        if isinstance(value, types.ModuleType):
            if self.owns(value.__name__):
                inside = vars(value)
                for attribute in sorted(attributes & inside.keys()):
                    self._global(value.__name__, attribute, inside[attribute], attributes)
            return
        self.visit(value)
        if module not in self._assigned:
            self._assigned[module] = assigned_globals(module)
        if not isinstance(value, (type, types.FunctionType)) and name not in self._assigned[module]:
            self._keep(module, f"{name}=", self._value(f"{module}.{name}", value))

    def _class(self, kind: type) -> None:
        if not self.owns(kind.__module__):
            return
        members = {n: v for n, v in vars(kind).items() if n not in _NO_CODE}
        text = [kind.__qualname__, *(f"{b.__module__}.{b.__qualname__}" for b in kind.__bases__)]
        where = f"{kind.__module__}.{kind.__qualname__}"
        text += [f"{n}={self._value(f'{where}.{n}', v)}" for n, v in sorted(members.items())]
        self._keep(kind.__module__, kind.__qualname__, "\n".join(text))
        self._all(kind.__bases__)
        for value in members.values():
            self.visit(value)

    def _value(self, where: str, value: Any) -> str:
        """The text of a value; of one that can change, as it was when first seen: a cache fills, and is no new code."""
        if isinstance(value, (*_SCALARS, *_PLAIN)):
            return value_text(value, self.owns)
        known = _FIRST_TEXTS.get(where)
        if known is None or known[0] is not value:
            known = _FIRST_TEXTS[where] = (value, value_text(value, self.owns))
        return known[1]

    def _keep(self, module: str, name: str, text: str) -> None:
        self.modules.add(module)
        # two lambdas of one line have one name
        before = self.by_name.get(f"{module}.{name}", "")
        self.by_name[f"{module}.{name}"] = hashlib.sha256((before + text).encode()).hexdigest()[:16]


def value_text(value: Any, owns: Owns, passed_by: Classes = ()) -> str:
    """A text that differs where plain data differs; of what is no plain data, the type and no more."""
    return _Text(owns, passed_by).of(value, frozenset())


class _Text:
    """Writes one value down, up to so many items."""

    def __init__(self, owns: Owns, passed_by: Classes) -> None:
        self._owns, self._passed_by, self._left = owns, passed_by, _MOST_ITEMS

    def of(self, value: Any, above: frozenset[int]) -> str:
        self._left -= 1
        if isinstance(value, Enum):
            return f"{type(value).__qualname__}.{value.name}"
        if isinstance(value, (*_SCALARS, *_PLAIN)):
            return f"{type(value).__name__}:{value!r}"
        if isinstance(value, types.FunctionType | type | types.ModuleType):
            return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
        if isinstance(value, re.Pattern):
            return f"re:{value.pattern!r}:{value.flags}"
        if isinstance(value, TypeInformation):
            return str(value)
        if id(value) in above or isinstance(value, self._passed_by):
            return "…"
        above |= {id(value)}
        if isinstance(value, dict):  # not os.environ and the like
            pairs = [(self.of(k, above), self.of(v, above)) for k, v in self._some(value.items())]
            return f"{len(value)}{sorted(pairs)}"
        if isinstance(value, Set):
            return f"{len(value)}{sorted(self.of(v, above) for v in self._some(value))}"
        if isinstance(value, list | tuple):
            return f"{type(value).__name__}{len(value)}{[self.of(v, above) for v in self._some(value)]}"
        named = f"{type(value).__module__}.{type(value).__qualname__}"
        return (
            f"{named}({self.of(_attributes(value), above)})" if self._owns(type(value).__module__) else named
        )

    def _some(self, things: Iterable[Any]) -> Iterator[Any]:
        for thing in things:
            if self._left <= 0:
                return
            yield thing


@functools.lru_cache(maxsize=10_000)
def code_digest(code: types.CodeType) -> str:
    """A digest of what a function does; where it stands in its file does not count.

    Example:
        >>> code_digest((lambda v: v * 100).__code__) == code_digest((lambda v: v * 10).__code__)
        False
    """
    return hashlib.sha256(_code_text(code).encode()).hexdigest()


def _code_text(code: types.CodeType) -> str:
    facts = (
        code.co_name, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags,
        code.co_code, code.co_exceptiontable, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
    )  # fmt: skip
    return repr(facts) + repr([_constant_text(c) for c in code.co_consts])


def _constant_text(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _code_text(value)
    if isinstance(value, tuple):
        return repr([_constant_text(v) for v in value])
    if isinstance(value, frozenset):
        return repr(sorted(_constant_text(v) for v in value))
    return f"{type(value).__name__}:{value!r}"


class _Names:
    """Global names that a code object and those inside it read, and names of attributes."""

    def __init__(self, code: types.CodeType) -> None:
        used, attributes = set[str](), set[str]()
        for one in nested_codes(code):
            for step in dis.get_instructions(one):
                if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                    used.add(str(step.argval))
                elif step.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")):
                    attributes.add(str(step.argval))
        self.globals, self.attributes = sorted(used), frozenset(attributes)


@functools.lru_cache(maxsize=10_000)
def _names_used(code: types.CodeType) -> _Names:
    return _Names(code)


def nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_codes(constant)


def assigned_globals(module: str) -> Set[str]:
    """Names that functions of a module assign (``global``): they hold what happened, not what was written."""
    names = set[str]()
    for value in list(vars(sys.modules[module]).values()) if module in sys.modules else ():
        holders = vars(value).values() if isinstance(value, type) and value.__module__ == module else [value]
        for function in holders:
            if isinstance(function, types.FunctionType) and function.__module__ == module:
                names |= _stored_names(function.__code__)
    return names


@functools.lru_cache(maxsize=10_000)
def _stored_names(code: types.CodeType) -> frozenset[str]:
    steps = (s for one in nested_codes(code) for s in dis.get_instructions(one))
    return frozenset(str(s.argval) for s in steps if s.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"))


def getattr_static(thing: Any, name: str) -> Any:
    """An attribute that is there, without running code that would make it."""
    try:
        return object.__getattribute__(thing, name)
    except Exception:  # a descriptor of the user's may raise anything
        return None


def _attributes(thing: Any) -> dict[str, Any]:
    own = getattr_static(thing, "__dict__")
    return dict(own) if isinstance(own, dict) else {}


def closure_values(function: types.FunctionType) -> list[Any]:
    """What the closure of a function holds.

    Example:
        >>> def above(least): return lambda value: value > least
        >>> closure_values(above(3))
        [3]
    """
    return list(_cells(function))


def _cells(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
