"""The digest that a row of ``checkpoints`` carries of itself: whoever loads a row knows that it is what was committed.

It is taken over the row's values by the names of their fields, so it does not depend on the file that holds the row:
merging and rewriting of files keep it. Plays the part of the checksums that Flink lacks in its ``_metadata`` files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

DIGEST = "digest"
"""The field that holds it, and that is left out of it."""


def row_digest(row: Any) -> str:
    """SHA-256, as hexadecimal text, of a row: a ``CheckpointRow``, or the same as dicts, lists and plain values.

    Example:
        >>> row_digest({"checkpoint_id": 1, "digest": ""}) == row_digest({"digest": "other", "checkpoint_id": 1})
        True
        >>> row_digest({"checkpoint_id": 1}) == row_digest({"checkpoint_id": 2})
        False
    """
    fields = row if isinstance(row, Mapping) else vars(row)
    content = {name: value for name, value in fields.items() if name != DIGEST}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=_plain)
    return sha256(text.encode()).hexdigest()


def is_intact(row: Any) -> bool:
    """Whether a row is what its digest was taken of."""
    digest = row.get(DIGEST) if isinstance(row, Mapping) else getattr(row, DIGEST)
    return bool(digest == row_digest(row))


def _plain(value: Any) -> Any:
    """Times and parts of a row as JSON has them."""
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else vars(value)
