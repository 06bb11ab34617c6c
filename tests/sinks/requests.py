"""The requests and outputs of an attempt to a sink, for tests without an engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.microbatch.subtask.subtask_outputs import write_sink_file
from state_engine.sinks.base import Sink, SinkRequest
from state_engine.sinks.staging import Staging

APP = "0123/job/out"


def asked(
    kernel: Any, schema: pa.Schema, write_id: str, *, app: str = APP, root: str = "file:///no_root"
) -> SinkRequest:
    """A request under an application's id; its last part is the sink's name."""
    return SinkRequest(kernel, Staging(root), app.rsplit("/", 1)[-1], app, schema, write_id)


def staged_files(sink: Sink, request: SinkRequest, *subtasks: pa.Table) -> StagedSink:
    """The outputs that an attempt stages for a request: one file for the rows of each subtask."""
    target = sink.prepare(request)
    files = []
    for subtask, rows in enumerate(subtasks):
        files.append(write_sink_file(rows, target, target.file_name(request.write_id, subtask, 0), subtask))
    return target.staged(files)


def move(sink: StagedSink, *, add: list[StagedSink], withdraw: list[StagedSink]) -> StagedSink:
    """The record of a row that withdraws some outputs of a sink and adds others."""
    return replace(
        sink, files=[f for s in add for f in s.files], withdrawn=[f for s in withdraw for f in s.files]
    )
