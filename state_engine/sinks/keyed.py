"""Keyed sinks: a ``DeltaSink`` or ``SqlSink`` with ``key=`` says which table shows the last row of each key.

Nothing is staged for such a sink: building the job puts an operator before it, which keeps the rows, and publishes its
state. So all that a key adds to a sink is what it is given, checked here. Plays the part of the primary key of a sink's
table in Flink SQL. Decision 0065.
"""

from __future__ import annotations

from typing import Any

from state_engine.core.choices import columns_of
from state_engine.core.errors import ConfigurationError
from state_engine.core.state.ttl import StateTtlConfig


def check_keyed(sink: Any) -> None:
    """Check what a frozen sink was given about keys, and keep columns as tuples.

    Args:
        sink: with ``key``, ``sequence``, ``ttl``, ``adopt``, ``lineage`` and ``shared``.
    """
    of = type(sink).__name__
    for name in ("key", "sequence"):
        object.__setattr__(sink, name, columns_of(getattr(sink, name), f"{of}: {name}="))
    if sink.ttl is not None and not isinstance(sink.ttl, StateTtlConfig):
        raise ConfigurationError(f"{of}: ttl= takes a StateTtlConfig, not {sink.ttl!r}")
    if not sink.key:
        idle = [name for name in ("sequence", "ttl", "adopt") if getattr(sink, name)]
        idle += ["deletion_vectors"] if not getattr(sink, "deletion_vectors", True) else []
        if idle:
            raise ConfigurationError(
                f"{of}: {idle[0]}= is about the last row of each key: add key=[…], or leave it out; outputs are "
                "appended without a key"
            )
        return
    twice = [name for name in sink.key if sink.key.count(name) > 1]
    if twice:
        raise ConfigurationError(f"{of}: key= names the column '{twice[0]}' twice")
    in_key = [name for name in sink.sequence if name in sink.key]
    if in_key:
        raise ConfigurationError(
            f"{of}: sequence= names '{in_key[0]}', which is part of the key: it is the same in all rows of a key"
        )
    if sink.lineage:
        raise ConfigurationError(
            f"{of}: lineage=True does not go with key=: the table shows a state, and a restore moves it as it moves "
            "the state, so no row needs the mark of an attempt. Leave it out"
        )
    if sink.shared:
        raise ConfigurationError(
            f"{of}: shared=True does not go with key=: the table shows the rows of one job and no others. Give each "
            "root its own table; if this job takes over from another root, say adopt=True"
        )
