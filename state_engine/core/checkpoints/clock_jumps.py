"""Clocks that jump. Processing time never goes back, so a clock that was ahead once holds it for as long as it was.

A micro-batch with the clock ten years ahead would fire all timers of processing time and let everything expire, and
then time would stand still for ten years. So a jump beyond a bound is refused before it is recorded. Flink asks the
clock of each machine again and again, and has no counterpart.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.errors import SetupError

MAX_JUMP = timedelta(days=366)
"""By default. A job that nobody ran for longer is rarer than a machine whose clock is wrong."""
_DAY_MS = 86_400_000
BEHIND_MS = 3_600_000
"""How far a clock may be behind the recorded processing time before ``status`` and the log say so."""


def check_jump(
    clock_ms: int, parent: CheckpointRow | None, *, machine_ms: int, bound_ms: int, job: str
) -> None:
    """Refuse processing time too far ahead of the last checkpoint, or without one, of the machine's clock."""
    known_ms = max(parent.clock_ms, _ms(parent.created_at)) if parent else machine_ms
    if clock_ms - known_ms <= bound_ms:
        return
    before = f"checkpoint {parent.checkpoint_id} was made at" if parent else "the clock of this machine says"
    raise SetupError(
        f"job '{job}': the clock of this run says {shown_time(clock_ms)}, and {before} {shown_time(known_ms)}: that is "
        f"{(clock_ms - known_ms) // _DAY_MS:,} days later, and max_clock_jump of the job is "
        f"{bound_ms // _DAY_MS:,}. Nothing was run, because processing time could never go back. "
        "Correct the clock; or, if it is right, do this once with accept_clock=True (in statelake --accept-clock; in "
        "Dagster accept_clock: true in the configuration of the run), or give the job a larger max_clock_jump"
    )


def is_behind(clock_ms: int, parent: CheckpointRow | None) -> bool:
    """Whether a clock is so far behind the recorded processing time that this stands still.

    Example:
        >>> is_behind(0, None)
        False
    """
    return parent is not None and parent.clock_ms - clock_ms > BEHIND_MS


def standing_time(clock_ms: int, recorded_ms: int) -> str:
    """That processing time stands still, until when, and what to do."""
    return (
        f"processing time stands at {shown_time(recorded_ms)}, and the clock says {shown_time(clock_ms)}: until then "
        "no timer of processing time fires and nothing expires by it. Correct the clock of this machine; or, if an "
        "earlier run had a wrong one, restore the checkpoint before it, and run again"
    )


def shown_time(at_ms: int) -> str:
    """A time as text; in milliseconds where no calendar has it.

    Example:
        >>> shown_time(0), shown_time(10**18)
        ('1970-01-01 00:00:00 UTC', '1000000000000000000 ms')
    """
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
