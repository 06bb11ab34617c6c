"""The trace that a run continues, if its starter names one: in tags of a Dagster run, or in the environment.

Only kept for ``open_telemetry`` to find, so that nothing of OpenTelemetry is imported where it is off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

NAMES = ("traceparent", "tracestate", "baggage")
"""Of W3C's trace context; the first says which span is the parent."""
_CONTEXT: ContextVar[Mapping[str, str]] = ContextVar("trace_context")


@contextmanager
def continued_trace(carrier: Mapping[str, str]) -> Iterator[None]:
    """Have runs inside continue the trace that a carrier names, if it does.

    Args:
        carrier: with W3C's names, in capital letters or small ones; others are passed over.

    Example:
        >>> with continued_trace({"TRACEPARENT": "00-0af765…", "HOME": "/"}):
        ...     list(trace_context())
        ['traceparent']
        >>> trace_context()
        {}
    """
    token = _CONTEXT.set({name: text for key, text in carrier.items() if (name := key.lower()) in NAMES})
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def trace_context() -> Mapping[str, str]:
    """What was named; empty for nothing."""
    return _CONTEXT.get({})
