"""Which changes of a table's schema a running job can go on with.

Compares schemas in Spark's JSON form, as Delta's log holds them. Added columns and fields, wider numbers and
dates, and fewer NOT NULLs are fine; everything else is named.
"""

from __future__ import annotations

import re
from typing import Any

_INTEGERS = ("byte", "short", "integer", "long")
_WIDER = {
    ("float", "double"),
    ("byte", "double"),
    ("short", "double"),
    ("integer", "double"),
    ("date", "timestamp_ntz"),
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def incompatible_change(old: dict[str, Any], new: dict[str, Any], inside: str = "") -> str:
    """What of ``old`` is not in ``new`` any more, as text; empty where nothing is missing.

    Args:
        inside: name of the column that holds them, with a dot.

    Example:
        >>> column = lambda kind: {"type": "struct", "fields": [{"name": "k", "type": kind}]}
        >>> incompatible_change(column("integer"), column("long"))
        ''
        >>> incompatible_change(column("long"), column("string"))
        "column 'k' changed from long to string"
    """
    after = {f["name"]: f["type"] for f in new["fields"]}
    for field in old["fields"]:
        name = inside + field["name"]
        if field["name"] not in after:
            return f"column '{name}' was dropped or renamed"
        problem = _type_change(name, field["type"], after[field["name"]])
        if problem:
            return problem
    return ""


def _type_change(name: str, old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict) and old["type"] == new["type"]:
        if old["type"] == "struct":
            return incompatible_change(old, new, f"{name}.")
        parts = [p for p in ("elementType", "keyType", "valueType") if p in old]
        return next((p for part in parts if (p := _type_change(f"{name}.{part}", old[part], new[part]))), "")
    if old == new or (isinstance(old, str) and isinstance(new, str) and _is_wider(old, new)):
        return ""
    return f"column '{name}' changed from {_shown(old)} to {_shown(new)}"


def _is_wider(old: str, new: str) -> bool:
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS.index(new) > _INTEGERS.index(old)
    before, after = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if before and after:
        (p, s), (q, t) = map(int, before.groups()), map(int, after.groups())
        return t >= s and q - t >= p - s
    return (old, new) in _WIDER


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])
