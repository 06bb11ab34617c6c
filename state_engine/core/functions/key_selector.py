"""``KeySelector``: gives the key of an element. Mirrors ``org.apache.flink.api.java.functions.KeySelector``."""

from __future__ import annotations

from typing import Any

from state_engine.core.function import SingleMethodFunction


class KeySelector(SingleMethodFunction, method="get_key"):
    """Gives the key of an element: the same one for the same element, always.

    Example:
        >>> KeySelector.of(lambda pair: pair[0], what="key_by").get_key(("a", 1))
        'a'
    """

    def get_key(self, value: Any) -> Any:
        """The key of an element."""
        raise NotImplementedError(f"{type(self).__name__} must define get_key(self, value)")
