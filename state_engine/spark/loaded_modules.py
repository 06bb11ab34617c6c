"""Modules as this process loaded them: which of them are a job's own, and a version of each.

A module is a job's own where it is not Python's, not the engine's, and not installed, unless the job's functions are
defined in it. Its version is a digest of its source as it was loaded, and of what was changed in memory since.
"""

from __future__ import annotations

import functools
import hashlib
import site
import struct
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import psutil

from state_engine.spark.code_digests import (
    ENGINE,
    assigned_globals,
    code_digest,
    nested_codes,
    value_text,
)

MAIN = "__main__"
_PYC = struct.Struct("<III")
"""Of a compiled file, after its magic number: flags, and when its source was changed, and the size of that."""
_PLAIN = (bool, int, float, str, bytes, type(None), tuple)


def modules_of(things: Iterable[Any]) -> frozenset[str]:
    """Top-level packages of the modules in which functions, or the classes of objects, are defined."""
    names = set[str]()
    for thing in things:
        kind = thing if isinstance(thing, type | types.FunctionType) else type(thing)
        names.add(str(kind.__module__).partition(".")[0])
    return frozenset(names)


def is_own(module: str, *, named: frozenset[str] = frozenset()) -> bool:
    """Whether a module is a job's own: neither Python's nor the engine's, and not installed unless it is named.

    Args:
        named: top-level packages that define functions of the job; an installed one of these is its own, too.
    """
    top = module.partition(".")[0]
    if top in (ENGINE, "builtins", "pyspark") or top in sys.stdlib_module_names:
        return module == MAIN
    return top in named or not _is_installed(module)


def _is_installed(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:  # typed, built into Python, or a name that stands for nothing here
        return module in sys.modules and module != MAIN
    return any(Path(file).is_relative_to(place) for place in _installed_places())


@functools.cache
def _installed_places() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    places = {paths[n] for n in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(Path(p) for p in {*places, *site.getsitepackages(), site.getusersitepackages()})


@dataclass
class _Loaded:
    """A module as it was when this process first asked after it was loaded.

    Attributes:
        spec: of that load; a reload makes another.
        source: digest of its file; empty where it has none.
        codes: digests of all code that its file holds.
    """

    spec: Any
    source: str = ""
    codes: frozenset[str] = frozenset()
    values: str = ""
    stored: frozenset[str] = field(default_factory=frozenset)


_LOADED: dict[str, _Loaded] = {}


def module_version(name: str) -> str:
    """The source of a module, and what of it is not as the source says; empty for what people type line by line."""
    module = sys.modules.get(name)
    if module is None or not getattr(module, "__file__", None):
        return ""
    spec = getattr(module, "__spec__", None)
    known = _LOADED.get(name)
    if known is None or known.spec is not spec:
        known = _LOADED[name] = _read(module, spec)
    live = {code_digest(f.__code__) for f in _functions(module)}
    strange = sorted(live - known.codes)
    values = _values(module, known.stored)
    return _version_text(known.source, strange, values if values != known.values else "")


def is_as_in_file(name: str) -> bool:
    """Whether a module is what its file says at this moment, so that who imports it now gets the same code."""
    version, module = module_version(name), sys.modules.get(name)
    if not version or module is None:
        return False
    try:
        source = hashlib.sha256(_source(module)).hexdigest()
    except (OSError, struct.error):
        return False
    return version == _version_text(source, [], "")


def _version_text(source: str, strange: list[str], values: str) -> str:
    return f"{source} {strange} {values}"


def _read(module: types.ModuleType, spec: Any) -> _Loaded:
    stored = frozenset(assigned_globals(module.__name__))
    values = _values(module, stored)
    try:
        data = _source(module)
        compiled = compile(data, str(module.__file__), "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError, struct.error):
        return _Loaded(spec, stored=stored)  # then all of it counts as it is in memory
    codes = frozenset(code_digest(code) for code in nested_codes(compiled))
    return _Loaded(spec, hashlib.sha256(data).hexdigest(), codes, values, stored)


def _source(module: types.ModuleType) -> bytes:
    """What the file of a module says; OSError where it is not what the module was loaded from any more."""
    file, spec = str(module.__file__), getattr(module, "__spec__", None)
    loader = getattr(spec, "loader", None)
    if isinstance(loader, SourceFileLoader):
        cached, facts = getattr(spec, "cached", None), Path(file).stat()
        if cached and Path(cached).exists():
            _, mtime_s, size = _PYC.unpack(Path(cached).read_bytes()[4:16])
            edited = (mtime_s, size) != (int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF)
        else:
            edited = facts.st_mtime >= _started_s()
        if edited:
            raise OSError(f"{file} may have been edited after it was loaded")
    if loader is not None and hasattr(loader, "get_data"):  # in an archive
        return bytes(loader.get_data(file))
    return Path(file).read_bytes()


@functools.cache
def _started_s() -> float:
    return float(psutil.Process().create_time())


def _functions(module: types.ModuleType) -> Iterator[types.FunctionType]:
    waiting: list[Any] = list(vars(module).values())
    seen = set[int]()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, type) and thing.__module__ == module.__name__:
            waiting += vars(thing).values()
        elif isinstance(thing, staticmethod | classmethod):
            waiting.append(thing.__func__)
        elif isinstance(thing, property):
            waiting += [thing.fget, thing.fset]
        elif isinstance(thing, types.FunctionType) and thing.__module__ == module.__name__:
            if thing.__code__.co_filename == "<string>":  # made by dataclass and the like
                continue
            yield thing


def _values(module: types.ModuleType, stored: frozenset[str]) -> str:
    values = {
        n: v
        for n, v in vars(module).items()
        if isinstance(v, _PLAIN) and n not in stored and not n.startswith(("__", "@"))
    }
    return value_text(values, lambda _: False)
