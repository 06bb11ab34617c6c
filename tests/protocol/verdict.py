"""The oracle of the schedules: tables must hold the content of the committed checkpoints.

It knows which numbers every attempt read, and the rows of ``checkpoints``; state and outputs follow from the numbers
on a path by plain Python.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from state_engine import StateEngine
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.retention import restore_refusal
from state_engine.core.checkpoints.sink_moves import content
from state_engine.storage.layout import JobLayout
from tests.core.checkpoints.rows import tree
from tests.protocol.model_job import JOB, fold, numbers_read, stored_state
from tests.protocol.points import Reported


def check(
    engine: StateEngine,
    directory: Path,
    committed: list[CheckpointRow],
    reported: Reported,
    *,
    numbers: int,
    files: bool,
) -> None:
    """Everything that must hold when all is done.

    Raises:
        AssertionError: something does not.
    """
    rows = tree(committed)
    _check_ids(engine, committed, reported)
    layout = JobLayout(engine.root, JOB)
    for i in rows:
        if restore_refusal(rows, i) is None:
            path = rows.path(i)
            expected, _ = fold(numbers_read(path))
            state = stored_state(layout, path)
            assert state == expected, f"state as of checkpoint {i} is {state}, its path says {expected}"
    path = tree(rows).path(max(rows))
    read = list(numbers_read(path))
    assert read == list(range(1, numbers + 1)), f"the head's path read {read}"
    shown = {"out": delta_rows(directory / "out")}
    if files:
        shown["out_files"] = file_rows(directory / "out_files")
    expected_rows = Counter(fold(read)[1])
    for sink, rows_shown in shown.items():
        assert rows_shown == expected_rows, f"sink '{sink}' shows {rows_shown}, the path says {expected_rows}"
    check_files_of_head(directory, path)


def _check_ids(engine: StateEngine, rows: list[CheckpointRow], reported: Reported) -> None:
    """Ids without gap or repeat, every one committed once, and each reported to its caller as it happened."""
    table = DeltaTable(JobLayout(engine.root, JOB).checkpoints.removeprefix("file://")).to_pyarrow_table(
        columns=["checkpoint_id", "write_id"]
    )
    listed = sorted(table["checkpoint_id"].to_pylist())
    assert listed == list(range(1, len(rows) + 1)), f"committed ids are {listed}"
    committed = set(zip(table["write_id"].to_pylist(), table["checkpoint_id"].to_pylist(), strict=True))
    assert reported.committed <= committed, (
        f"reported as committed, and are not: {reported.committed - committed}"
    )
    assert not reported.failed & committed, (
        f"reported as failed, and are committed: {reported.failed & committed}"
    )


def check_files_of_head(directory: Path, path: list[CheckpointRow]) -> None:
    """A Delta sink lists exactly the files that the micro-batches of the path staged."""
    active = Counter(uri.rsplit("/", 1)[-1] for uri in DeltaTable(str(directory / "out")).file_uris())
    staged = [f for (name, _), files in content(path).items() if name == "out" for f in files]
    expected = Counter(f.path.rsplit("/", 1)[-1] for f in staged)
    assert active == expected, f"sink 'out' lists {active}, the path staged {expected}"


def delta_rows(table: Path) -> Counter[tuple[Any, ...]]:
    """The rows of a Delta table, by another reader than ours."""
    return Counter(tuple(row.values()) for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist())


def file_rows(sink: Path) -> Counter[tuple[Any, ...]]:
    """The rows of the published files of a ``FileSink``."""
    return Counter(
        tuple(row.values())
        for file in sink.glob("checkpoint_id=*/*.parquet")
        for row in pq.ParquetFile(file).read().to_pylist()
    )
