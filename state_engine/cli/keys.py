"""How commands take keys: as JSON objects, or as the bare value where the key is one column."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.core.json_text import parsed_json
from state_engine.core.keys.key_schema import KeySchema

if TYPE_CHECKING:
    from state_engine.engine.engine import StateEngine


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


def with_bytes(key: Any, job: str, engine: StateEngine) -> Any:
    """A key whose bytes were given as base64, which is how commands print them."""
    parts = key if isinstance(key, dict) else {"": key}
    if not any(isinstance(part, str) for part in parts.values()):
        return key
    rows = engine.checkpoints(job)
    operators = rows[-1].operators if rows else []
    schemas = [KeySchema.recorded(one.key_schema, one.key_type) for one in operators]
    if not isinstance(key, dict):
        names = {schema.names for schema in schemas if len(schema.names) == 1}
        parts = {name: key for (name,) in names} if len(names) == 1 else parts
    fitting = [dict(zip(s.names, s.types, strict=True)) for s in schemas if {*s.names} == {*parts}]

    def typed(name: str, value: Any) -> Any:
        of_bytes = bool(fitting) and all(pa.types.is_binary(of[name]) for of in fitting)
        if not of_bytes or not isinstance(value, str):
            return value
        try:
            return b64decode(value, validate=True)
        except ValueError:
            raise ConfigurationError(
                f"job '{job}': the column '{name}' of its key holds bytes, and --key gives {value!r}: give bytes as "
                "base64, as commands print them"
            ) from None

    made = {name: typed(name, value) for name, value in parts.items()}
    return made if isinstance(key, dict) else next(iter(made.values()))


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
