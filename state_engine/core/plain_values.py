"""Values as what JSON can hold, for those who read what the engine says; and keys, as commands take them."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from typing import Any

from state_engine.core.types.durations import Instant

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def plain(value: Any) -> Any:
    """What JSON can hold.

    Instants are ISO 8601 in UTC, with ``Z``; dates, times and timestamps without a zone are ISO 8601. Spans of time are
    seconds, decimals and floats that are no number are text, binary is base64. Reports are objects.

    Example:
        >>> plain({"at": datetime(2026, 3, 1, 12, tzinfo=UTC), "took": timedelta(minutes=1), "ids": (1, 2)})
        {'at': '2026-03-01T12:00:00Z', 'took': 60.0, 'ids': [1, 2]}
        >>> from decimal import Decimal
        >>> plain([Decimal("0.10"), date(2026, 3, 1), b"ab", float("nan")])
        ['0.10', '2026-03-01', 'YWI=', 'nan']
    """
    if isinstance(value, Instant):
        return plain(_EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000))
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.repr}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    is_json = (
        value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    )
    return value if is_json else str(value)


def key_text(names: Sequence[str], key: Any) -> str:
    """A key as JSON: an object with its columns, as the commands take it.

    Args:
        names: of its columns.
        key: as functions see it.

    Example:
        >>> key_text(["k"], "a"), key_text(["day", "at"], (date(2026, 3, 1), time(9, 30)))
        ('{"k": "a"}', '{"day": "2026-03-01", "at": "09:30:00"}')
    """
    if len(names) == 1:
        parts = [key]
    else:
        parts = list(key) if isinstance(key, tuple) else [getattr(key, name) for name in names]
    return json.dumps(dict(zip(names, map(_part, parts), strict=True)), ensure_ascii=False)


def _part(value: Any) -> Any:
    """A part of a key, whose records have names."""
    named = getattr(value, "_asdict", None) or getattr(value, "as_dict", None)
    return plain(value if named is None else named())
