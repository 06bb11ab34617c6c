"""The metrics of a job as of now: what its rows say, and what its status sees beside them; without Spark or Java.

Rows of checkpoints know the size of files, which hold all states of an operator. The footer of a file knows the sizes
of its columns, and each state has a column of its own: the bytes of a file are divided by these. So all states of an
operator, timers included, add up to the size of its files. Only footers are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import get_args

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint
from state_engine.core.errors import StatelakeError
from state_engine.core.state.descriptors import TIMERS
from state_engine.monitoring.job_history import JobHistory
from state_engine.monitoring.job_status import JobStatus, State
from state_engine.storage.layout import JobLayout, state_column
from state_engine.storage.state.listed_files import ListedFile
from state_engine.storage.state.located_files import state_files
from state_engine.storage.stores.in_threads import in_threads
from state_engine.storage.stores.parquet_reading import open_parquet
from state_engine.telemetry import metrics as m
from state_engine.telemetry.measurements import measurements
from state_engine.telemetry.metrics import JOB, Point


def metrics_of(status: JobStatus, history: JobHistory | None, *, now_ms: int) -> list[Point]:
    """All numbers of a job, each with its name.

    Args:
        history: None where the job never ran, or its rows cannot be read: only its status is known then.
    """
    points = [*_of_status(status)]
    if history is not None:
        points += [*measurements(history.checkpoints, now_ms=now_ms), *_parts(history)]
    return [replace(point, attributes={JOB: status.job, **point.attributes}) for point in points]


def _parts(history: JobHistory) -> Iterator[Point]:
    for operator in history.head.operators if history.head else ():
        for state, size in _state_bytes(history.layout, history.path, operator).items():
            yield m.STATE_PART.of(size, operator.uid, state)


def _state_bytes(
    layout: JobLayout, path: Sequence[CheckpointRow], operator: OperatorCheckpoint
) -> dict[str, int]:
    """Bytes by the name of each state that the last row of a path declares; none where files cannot be read."""
    columns = {
        state.name: state_column(state.column_name) for state in operator.states if state.name != TIMERS
    }
    sizes = dict.fromkeys(columns, 0.0)
    try:
        files = [file.listed for file in state_files(layout, path, operator.uid)]
        for file, parts in zip(files, in_threads(_column_bytes, files), strict=True):
            for name, column in columns.items():
                sizes[name] += (file.bytes or 0) * parts.get(column, 0) / max(sum(parts.values()), 1)
    except (StatelakeError, OSError, pa.ArrowException):  # status says what is missing
        return {}
    return {name: round(size) for name, size in sizes.items()}


def _column_bytes(file: ListedFile) -> Mapping[str, int]:
    metadata = open_parquet(file.uri, of=file.of).metadata
    names = [name for name in metadata.schema.to_arrow_schema().names if name.startswith(state_column(""))]
    sizes: Counter[str] = Counter()
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(place)
            within = [n for n in names if f"{chunk.path_in_schema}.".startswith(f"{n}.")]
            if within:
                sizes[max(within, key=len)] += chunk.total_compressed_size
    return sizes


def _of_status(status: JobStatus) -> Iterator[Point]:
    for state in get_args(State):
        yield m.STATUS.of(state == status.state, state)
    if status.head_id is None:
        return
    yield m.UNPUBLISHED.of(len(status.unpublished))
    yield m.DEAD_LETTERS.of(status.dead_letters)
    yield m.FILES_MISSING.of(len(status.missing_files))
    yield m.FILES_WAITING.of(len(status.files_waiting))
    yield m.TIMERS_DUE.of(status.timers_due)
    yield m.TIMERS_DUE_TIME.of(status.timers_due_s or 0)
    if status.partitions_waiting is not None:
        yield m.LAG_PARTITIONS.of(status.partitions_waiting)
    else:
        yield from _of_lag(status)


def _of_lag(status: JobStatus) -> Iterator[Point]:
    """A source without new data has 0 of all; one that nobody can ask without Spark has no number."""
    for source, new in (status.lag or {}).items():
        if new is None:
            continue
        yield m.NEW_DATA.of(new, source)
        behind = status.behind.get(source)
        for metric, number in (
            (m.LAG_FILES, behind.files if behind else 0),
            (m.LAG_ROWS, behind.rows if behind else 0),
            (m.LAG_SIZE, behind.bytes if behind else 0),
            (m.LAG_TIME, behind.seconds if behind else 0),
        ):
            if number is not None:
                yield metric.of(number, source)
