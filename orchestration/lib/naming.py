"""Names in Dagster: asset keys are ``<job>/<what>/…``, so that no name of a user can meet one of ours.

<job>/checkpoint            the commit point, one version a micro-batch
<job>/sinks/<sink>          a table or directory that the job publishes to
<job>/state/<operator>/<state>   a keyed state
<job>/sources/<source>      what the job reads; shown, not made
"""

from __future__ import annotations

import dagster as dg


def checkpoint_key(job: str) -> dg.AssetKey:
    """The checkpoints of a job."""
    return dg.AssetKey([job, "checkpoint"])


def sink_key(job: str, sink: str) -> dg.AssetKey:
    """A sink of a job."""
    return dg.AssetKey([job, "sinks", sink])


def state_key(job: str, operator: str, state: str) -> dg.AssetKey:
    """A keyed state of an operator."""
    return dg.AssetKey([job, "state", operator, state])


def source_key(job: str, source: str) -> dg.AssetKey:
    """A source of a job."""
    return dg.AssetKey([job, "sources", source])
