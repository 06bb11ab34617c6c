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
