"""``ttl=`` of operators: what it means on a stream."""

from __future__ import annotations

from state_engine.core.errors import ConfigurationError
from state_engine.core.state.ttl import StateTtlConfig
from state_engine.core.types.durations import Span
from state_engine.job.graph import Node, has_event_time
from state_engine.operators.idle_keys import IdleTime


def idle_time(node: Node, ttl: Span | StateTtlConfig | None, *, method: str) -> IdleTime | None:
    """How long an operator keeps a key behind its last row; None where it keeps it for ever.

    Raises:
        ConfigurationError: it is not a time to live of keys; or it is of event time, and the stream has none.
    """
    idle = IdleTime.of(ttl)
    if idle is not None and idle.by_event_time and not has_event_time(node):
        raise ConfigurationError(
            f"ttl of {method} is by event time, and none of the sources of the stream has it: give "
            "source(event_time=…), or leave use_event_time() out of the StateTtlConfig"
        )
    return idle
