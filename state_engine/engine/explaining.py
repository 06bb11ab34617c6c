"""``StateEngine.explain``: what happened to one key."""

from __future__ import annotations

from typing import Any

from state_engine.engine.context import EngineContext
from state_engine.job.job import StatefulJob
from state_engine.microbatch.executor import GraphExecutor
from state_engine.publishing.output_reader import OutputReader
from state_engine.replay.key_history import KeyExplainer, KeyHistory, OnEvent
from state_engine.replay.key_inputs import KeyInputs
from state_engine.sinks.staging import Staging


def explain(
    context: EngineContext,
    name: str,
    code: StatefulJob | None,
    key: Any,
    *,
    operator: str | None,
    first: int | None,
    last: int | None,
    newest: int,
    limit: int,
    on_progress: OnEvent | None,
) -> KeyHistory:
    tables = context.ran(name)
    layout = tables.layout
    inputs = None
    if code is not None:
        planner = context.planner(code, lambda path, now: None, lambda: 0)
        executor = GraphExecutor(context.spark, code, layout=layout, router=context.router(code))
        inputs = KeyInputs(code, planner, executor)
    outputs = OutputReader(context.spark, layout, Staging(layout.root))
    explainer = KeyExplainer(context.spark, layout, tables.log.load(), outputs, inputs, limit)
    return explainer.explain(
        key, operator=operator, first=first, last=last, newest=newest, on_progress=on_progress
    )
