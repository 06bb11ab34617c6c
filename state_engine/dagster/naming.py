"""Asset keys as they are by default: the one place where their spelling is decided.

<job>/checkpoint            the commit point of every micro-batch
<job>/sinks/<sink>          a sink
<job>/tables/<table>        a published table
<job>/state/<operator>/<state>   a keyed state
<job>/sources/<source>      what the job reads; shown, not made
<job>/operations/<name>     what is done between micro-batches; see ``concepts``

A translator may give an asset another key: ``DagsterJob.key`` finds it by the one that is decided here.
"""

from __future__ import annotations

from typing import Literal

import dagster as dg

from state_engine.core.names import stored_name

Operation = Literal["base", "head", "layout", "savepoints", "retention", "tables"]
"""What an asset of an operation shows: the present state of one thing that is operated."""
DEAD_LETTERS = "dead_letters"
GATES = "gates"
"""The check that only a job with gates has."""
PLAN = "plan"
"""The check of the deployed code."""
MOVES_ON = "moves_on"
LATE_ROWS = "late_rows"
"""The check that only a job in time partitions has."""
TABLES = "tables"
"""The operation and the checks that only a job with published tables has."""
SHOWS_STATE = "shows_state"
"""The check of a published table."""


def checkpoint_key(job: str) -> dg.AssetKey:
    return dg.AssetKey([job, "checkpoint"])


def sink_key(job: str, sink: str) -> dg.AssetKey:
    return dg.AssetKey([job, "sinks", sink])


def table_key(job: str, table: str) -> dg.AssetKey:
    return dg.AssetKey([job, "tables", table])


def state_key(job: str, operator: str, state: str) -> dg.AssetKey:
    """A keyed state of an operator; both as their names are stored, since Dagster takes some characters for others."""
    return dg.AssetKey([job, "state", stored_name(operator), stored_name(state)])


def source_key(job: str, source: str) -> dg.AssetKey:
    return dg.AssetKey([job, "sources", source])


def operation_key(job: str, name: Operation) -> dg.AssetKey:
    return dg.AssetKey([job, "operations", name])


def operations_group(job: str) -> str:
    """The group of a job's operations; its micro-batches are in the group of its own name."""
    return f"{job}_operations"


def pool_of(job: str) -> str:
    """The pool of what moves a job's head; one at a time."""
    return f"{job}_head"
