"""JSON that somebody else may have written: bounded before it is parsed, and refused in one way.

A parser calls itself for each level of nesting, and so does whatever walks through what it gives. So text that is
nested more deeply than anything of Statelake's is refused as what it is, and does not end in a ``RecursionError``.
"""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 64
"""Levels of nesting; the deepest that Statelake writes is a row of ``checkpoints``, with less than 20."""

_NO_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[^\[\]{}"]+', re.DOTALL)


def parsed_json(text: str | bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    """The value that a JSON text says.

    Example:
        >>> parsed_json('{"a": [1, 2]}')
        {'a': [1, 2]}
    """
    if isinstance(text, bytes):
        text = text.decode()
    brackets = _NO_BRACKETS.sub("", text)
    for _ in range(max_depth):
        if not brackets:
            break
        brackets = brackets.replace("[]", "").replace("{}", "")
    if brackets:
        raise ValueError(f"it is nested more than {max_depth} levels deep, or its brackets do not match")
    return json.loads(text)


def has_form(value: Any, form: Any) -> bool:
    """Whether a value of JSON is built as a form says.

    Args:
        form: a type (of numbers, what fits 64 bits and is not negative); a function; None; a tuple of alternatives; the
            form of all elements, in a list; or forms of fields by name, where a name with ``?`` at its end is optional.

    Example:
        >>> form = {"end": (int, None), "files": [str], "lost?": int}
        >>> has_form({"end": 3, "files": []}, form), has_form({"end": "3", "files": []}, form)
        (True, False)
    """
    if isinstance(form, tuple):
        return any(has_form(value, one) for one in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(has_form(one, form[0]) for one in value)
    if isinstance(form, dict):
        forms = {name.removesuffix("?"): one for name, one in form.items()}
        return (
            isinstance(value, dict)
            and {name for name in form if not name.endswith("?")} <= value.keys() <= forms.keys()
            and all(has_form(one, forms[name]) for name, one in value.items())
        )
    if form is int:
        return is_long(value) and value >= 0
    if form is None or isinstance(form, type):
        return value is None if form is None else type(value) is form
    return bool(form(value))


def is_long(value: Any) -> bool:
    """Whether a value is a whole number of 64 bits."""
    return type(value) is int and -(2**63) <= value < 2**63
