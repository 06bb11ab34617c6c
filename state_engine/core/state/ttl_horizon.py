"""Up to which time a state's entries have expired for good, so that a new base leaves them out.

Told from what a checkpoint recorded of the state, as everything is that looks at stored state without the job's code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from state_engine.core.checkpoints.checkpoint import CheckpointRow, StateSchema
from state_engine.core.state.ttl import TtlTime, TtlVisibility


def expired_until_us(
    state: StateSchema, *, clock_ms: int, watermark_ms: int | None, full_snapshot: bool = False
) -> int | None:
    """The time of the newest entry that a base leaves out, in microseconds since 1970; None where all stay.

    Args:
        clock_ms, watermark_ms: of the checkpoint that the base stands for.
        full_snapshot: whether it is a snapshot for itself, and not background clean-up.

    Example:
        >>> expired_until_us(StateSchema("total", "value", "bigint"), clock_ms=0, watermark_ms=None) is None
        True
    """
    config = _config(state)
    now = watermark_ms if _by_event_time(config) else clock_ms
    hidden = config.get("visibility") == TtlVisibility.NeverReturnExpired.name
    if full_snapshot:
        cleaned = hidden or config.get("full_snapshot")
    else:  # a compaction, which is background clean-up
        cleaned = hidden and config.get("compaction")
    if now is None or not cleaned:
        return None
    return max(min((now - int(config["ttl_ms"])) * 1000, 2**63 - 1), -(2**63))


def has_passed(state: StateSchema, since: CheckpointRow, now: CheckpointRow) -> bool:
    """Whether everything that a state held as of a checkpoint, and that was not renewed, has expired by another one."""
    until_us = expired_until_us(state, clock_ms=now.clock_ms, watermark_ms=now.watermark_ms)
    if until_us is None:
        return False
    written_ms = since.watermark_ms if _by_event_time(_config(state)) else since.clock_ms
    return written_ms is not None and written_ms * 1000 <= until_us


def _config(state: StateSchema) -> Mapping[str, Any]:
    """As recorded; empty where nothing expires."""
    return json.loads(state.ttl) if state.ttl else {}


def _by_event_time(config: Mapping[str, Any]) -> bool:
    return bool(config.get("time") == TtlTime.EventTime.name)
