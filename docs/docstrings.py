"""Examples of this repository stand under ``Example:`` in docstrings; the pages of the site show them as code."""

from __future__ import annotations

import re
from typing import Any

import griffe


class ExamplesAreCode(griffe.Extension):
    """Shows ``Example:`` as code, as ``Examples:`` is."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the heading of one docstring; griffe calls it for every class, function and module."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)
