"""Up to which time a state's entries have expired for good, so that a new base leaves them out.

Told from what a checkpoint recorded of the state, as everything is that looks at stored state without the job's code.
"""

from __future__ import annotations

import json

from state_engine.core.checkpoint import CheckpointRow, StateSchema
from state_engine.core.ttl import TtlTime, TtlVisibility


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
    config = json.loads(state.ttl) if state.ttl else {}
    now = watermark_ms if config.get("time") == TtlTime.EventTime.name else clock_ms
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
    by_event_time = bool(state.ttl) and json.loads(state.ttl).get("time") == TtlTime.EventTime.name
    written_ms = since.watermark_ms if by_event_time else since.clock_ms
    return until_us is not None and written_ms is not None and written_ms * 1000 <= until_us
