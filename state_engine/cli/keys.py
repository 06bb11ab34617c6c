"""How commands take keys: as JSON objects, or as the bare value where the key is one column."""

from __future__ import annotations

from typing import Any

from state_engine.core.errors import ConfigurationError
from state_engine.core.json_text import parsed_json


def key_columns(text: str) -> dict[str, Any]:
    try:
        key = parsed_json(text)
    except ValueError as error:
        raise ConfigurationError(
            f"--key {text!r} is not JSON ({error}): give the columns of the key"
        ) from None
    if not isinstance(key, dict) or not key:
        raise ConfigurationError(f"--key {text!r} is not a JSON object with the columns of the key")
    return key


def key_of(text: str) -> Any:
    """A key: an object with its columns, or its only value, which is a text where it is no JSON.

    Example:
        >>> key_of('{"tailnum": "N1", "day": 3}'), key_of("N1"), key_of("17"), key_of('"17"')
        ({'tailnum': 'N1', 'day': 3}, 'N1', 17, '17')
    """
    if text.lstrip().startswith("{"):
        return key_columns(text)
    try:
        return parsed_json(text)
    except ValueError:
        return text
