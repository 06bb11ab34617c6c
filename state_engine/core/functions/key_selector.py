"""``KeySelector``: gives the key of an element. Mirrors ``org.apache.flink.api.java.functions.KeySelector``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from state_engine.core.errors import ConfigurationError
from state_engine.core.function import Function


class KeySelector(Function):
    """Gives the key of an element: the same one for the same element, always.

    Example:
        >>> KeySelector.of(lambda pair: pair[0], what="key_by").get_key(("a", 1))
        'a'
    """

    def get_key(self, value: Any) -> Any:
        """The key of an element."""
        raise NotImplementedError(f"{type(self).__name__} must define get_key(self, value)")

    @staticmethod
    def of(function: KeySelector | Callable[[Any], Any], *, what: str) -> KeySelector:
        """The function itself, or a plain callable as one. Raises ConfigurationError, naming ``what``."""
        if isinstance(function, KeySelector):
            return function
        if isinstance(function, Function) or not callable(function):
            raise ConfigurationError(f"{what} takes a KeySelector or a callable, not {function!r}")
        return _PlainKeySelector(function)


class _PlainKeySelector(KeySelector):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.get_key = function  # type: ignore[method-assign, assignment]
