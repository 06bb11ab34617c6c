"""Python values as the text of expressions that give them again, for files of tests."""

from __future__ import annotations

import datetime
import keyword
import math
import pickle
import re
import sys
import zoneinfo
from base64 import b64encode
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

from state_engine.core.errors import ConfigurationError
from state_engine.core.operator.element_kinds import ElementChange
from state_engine.core.state.ttl import Stamped
from state_engine.core.types.row import Row, RowKind

_TIMES = (datetime.date, datetime.time, datetime.datetime, datetime.timedelta)
_ANY_NAN = "approx(nan, nan_ok=True)"


class Literals:
    """Makes the texts of expressions, and knows what they import.

    Attributes:
        imports: lines of code.

    Example:
        >>> literals = Literals()
        >>> literals.text([Row(user="ann", at=datetime.date(2026, 3, 1)), {1: float("inf")}])
        "[Row(user='ann', at=datetime.date(2026, 3, 1)), {1: float('inf')}]"
        >>> sorted(literals.imports)
        ['from state_engine import Row', 'import datetime']
    """

    def __init__(self) -> None:
        self.imports: set[str] = set()

    def text(self, value: Any, *, compared: bool = False) -> str:
        """The expression.

        Args:
            compared: it is compared with something: then NaN equals NaN.

        Raises:
            ConfigurationError: nothing gives the value again.
        """
        kind, part = type(value), partial(self.text, compared=compared)
        if value is None or kind in (bool, int, str, bytes):
            return repr(value)
        if kind is float:
            return self._number(value, compared)
        if kind in _TIMES:
            return self._time(value)
        if kind in (Decimal, UUID):
            return f"{self._name(kind)}({str(value)!r})"
        if kind is dict:
            return f"{{{', '.join(f'{self.text(k)}: {part(v)}' for k, v in value.items())}}}"
        if kind is list:
            return f"[{', '.join(map(part, value))}]"
        if kind is tuple:
            return f"({', '.join(map(part, value))}{',' if len(value) == 1 else ''})"
        if kind in (set, frozenset):
            inside = f"{{{', '.join(sorted(map(part, value)))}}}" if value else "set()"
            return inside if kind is set else f"frozenset({inside})"
        return self._record(value, part)

    def _record(self, value: Any, part: Callable[[Any], str]) -> str:
        kind = type(value)
        if isinstance(value, Row):
            return self._row(value, part)
        if isinstance(value, ElementChange):
            return f"({part(value.kind)}, {part(value.value)})"
        if isinstance(value, Enum):
            return f"{self._name(kind)}[{value.name!r}]"
        given = fields_of(value) if _is_importable(kind) else None
        if given is None:
            return self._pickled(value)
        return f"{self._name(kind)}({', '.join(f'{name}={part(one)}' for name, one in given.items())})"

    def _row(self, row: Row, part: Callable[[Any], str]) -> str:
        self.imports.add("from state_engine import Row")
        names, values = row._fields, list(map(part, row))
        kind = row.get_row_kind()
        if not all(name.isidentifier() and not keyword.iskeyword(name) for name in names):
            return f"Row({', '.join(map(repr, names))})({', '.join(values)})"
        given = ", ".join(f"{name}={one}" for name, one in zip(names, values, strict=True))
        return f"Row({given})" if kind is RowKind.INSERT else f"Row.of_kind({part(kind)}, {given})"

    def _number(self, value: float, compared: bool) -> str:
        if math.isnan(value) and compared:
            self.imports |= {"from math import nan", "from pytest import approx"}
            return _ANY_NAN
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"

    def _time(self, value: Any) -> str:
        zone = getattr(value, "tzinfo", None)
        if zone is not None and type(zone) not in (datetime.timezone, zoneinfo.ZoneInfo):
            return self._pickled(value)
        self.imports.add("import datetime")
        if isinstance(zone, zoneinfo.ZoneInfo):
            self.imports.add("import zoneinfo")
        return repr(value)

    def _name(self, kind: type) -> str:
        public = sys.modules["state_engine"]
        if kind is Stamped:
            self.imports.add("from state_engine.testing import Stamped")
        elif getattr(public, kind.__name__, None) is kind:
            self.imports.add(f"from state_engine import {kind.__name__}")
        elif kind in (Decimal, UUID):
            self.imports.add(f"from {kind.__module__} import {kind.__name__}")
        else:
            self.imports.add(f"import {kind.__module__}")
            return f"{kind.__module__}.{kind.__qualname__}"
        return kind.__name__

    def _pickled(self, value: Any) -> str:
        try:
            there = b64encode(pickle.dumps(value)).decode()
        except Exception as error:
            raise ConfigurationError(
                f"a {type(value).__name__} cannot be written to a file of tests ({error}): give its class a place in "
                "a module, as a dataclass for instance"
            ) from error
        self.imports |= {"import pickle", "from base64 import b64decode"}
        return f"pickle.loads(b64decode({there!r}))"


def fields_of(value: Any) -> dict[str, Any] | None:
    """The fields of a row, a named tuple or a dataclass by name; None where a call with them does not make it again."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if is_dataclass(value) and not isinstance(value, type) and all(one.init for one in fields(value)):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    return None


def _is_importable(kind: type) -> bool:
    module: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        module = getattr(module, name, None)
    return (
        module is kind
        and kind.__module__ != "__main__"
        and re.fullmatch(r"[\w.]+", kind.__qualname__) is not None
    )
