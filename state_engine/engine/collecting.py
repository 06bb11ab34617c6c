"""``collect``: the elements of a stream, from a run of what it needs in a state root of its own. For tests."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from state_engine.job.graph import Node, SinkNode, declared_columns, is_scalar, upstream
from state_engine.job.job import StatefulJob
from state_engine.sinks.files import PrivateFileSink, published_directory
from state_engine.sources.stream_columns import shown_elements
from state_engine.storage.stores.files import join
from state_engine.storage.stores.parquet_reading import read_parquet

_SINK = "collected"


def collect(job: StatefulJob, node: Node, *, spark: Any = None, **options: Any) -> list[Any]:
    """Run a job until caught up, only as far as a stream needs it, and give the stream's elements.

    They come in the order of batches and subtasks; at parallelism 1, in their total order. Sinks of the job are not
    written, and its state is neither read nor changed. Of a stream that changes, Rows have their kind, and any other
    element comes as a pair of its kind and itself.
    """
    from state_engine.engine.engine import StateEngine

    with tempfile.TemporaryDirectory(prefix="statelake-collect-") as directory:
        part = _part_of(job, node)
        part.sinks[_SINK] = SinkNode(_SINK, node, PrivateFileSink(str(Path(directory) / "out")))
        collected: list[Any] = []
        # closed before the directory goes: commits have background work in it
        with StateEngine(Path(directory) / "root", spark) as engine:
            engine.run(part, **options)
            for row in engine.checkpoints(part):
                for staged in row.sinks:
                    for file in sorted(staged.files, key=lambda f: f.subtask or 0):
                        name = file.path.split("/", 1)[1]
                        table = read_parquet(
                            join(staged.path, f"{published_directory(row.checkpoint_id)}/{name}"),
                            footer=file.footer,
                        )
                        collected += shown_elements(
                            table, scalar=is_scalar(node), declared=declared_columns(node)
                        )
        return collected


def _part_of(job: StatefulJob, node: Node) -> StatefulJob:
    part = StatefulJob(
        job.name,
        parallelism=job.parallelism,
        max_parallelism=job.max_parallelism,
        on_error=job.on_error,
        state_backend=job.state_backend,
    )
    needed = {id(n) for n in upstream(node)}
    part.sources = {name: n for name, n in job.sources.items() if id(n) in needed}
    part.operators = {uid: n for uid, n in job.operators.items() if id(n) in needed}
    return part
