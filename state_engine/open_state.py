"""Keyed state without Spark and without Java: the same entries as ``StateEngine.read_state``, as a pyarrow table.

Only the table of checkpoints is read as a Delta table, by its log: its rows name every file of the state, which pyarrow
reads and folds as a compaction does. Credentials are pyarrow's. The whole state must fit into memory. For notebooks,
services and other engines: ``polars.from_arrow(...)``, DuckDB and pandas take the result as it is.

Example::

    from state_engine import open_state

    last = open_state.read_state("state", "plane_delays", "plane_delays", "last_flight", as_of="2026-03-01")
"""

from __future__ import annotations

import os
from datetime import datetime

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.time_travel import path_as_of, why_missing
from state_engine.core.errors import MissingFilesError
from state_engine.core.names import check_name
from state_engine.machine.defects import guarded_function
from state_engine.monitoring.job_history import read_history
from state_engine.queries.state_table import read_state_table
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores.files import normal_uri


@guarded_function
def checkpoints(root: str | os.PathLike[str], job: str) -> list[CheckpointRow]:
    """All checkpoints of a job, newest last; empty where it never ran.

    Raises:
        RootError: the root is of another format, or is damaged.
    """
    history = read_history(normal_uri(root), check_name(job, what="job"))
    return list(history.checkpoints.values()) if history else []


@guarded_function
def read_state(
    root: str | os.PathLike[str],
    job: str,
    operator: str,
    state: str,
    *,
    checkpoint_id: int | None = None,
    as_of: datetime | str | None = None,
    include_expired: bool = False,
    metadata: bool = False,
) -> pa.Table:
    """A keyed state as of a checkpoint; arguments, columns and errors are those of ``StateEngine.read_state``."""
    history = History(checkpoints(root, job))
    layout = JobLayout(normal_uri(root), job)
    path = path_as_of(history, job=job, root=layout.root, checkpoint_id=checkpoint_id, as_of=as_of)
    try:
        return read_state_table(
            layout, path, operator, state, include_expired=include_expired, metadata=metadata
        )
    except MissingFilesError as error:
        raise why_missing(error, history, path) from error
