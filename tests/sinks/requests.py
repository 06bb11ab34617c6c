"""What an attempt asks of a sink, as tests of sinks ask it without an engine."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from state_engine.sinks.base import SinkRequest
from state_engine.sinks.staging import Staging

APP = "0123/job/out"


def asked(
    kernel: Any, schema: pa.Schema, write_id: str, *, app: str = APP, root: str = "file:///no_root"
) -> SinkRequest:
    """A request under an application's id; its last part is the sink's name."""
    return SinkRequest(kernel, Staging(root), app.rsplit("/", 1)[-1], app, schema, write_id)
