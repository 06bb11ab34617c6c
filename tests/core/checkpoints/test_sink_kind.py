"""Kinds of sinks: the properties of each, and the kinds of the engine's sinks and publishers."""

from __future__ import annotations

import pytest

from state_engine import DeltaSink, FileSink, KafkaSink
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.databases.sink import SqlSink
from state_engine.sinks.foreach_batch import ForeachBatchSink

FACTS = {
    "delta": {"answers_quickly", "has_log", "is_delta_table", "marks_files"},
    "delta_spark": {"answers_quickly", "has_log", "holds_copy", "is_delta_table", "marks_files"},
    "dead_letters": {"answers_quickly", "has_log"},
    "files": {"answers_quickly", "marks_files"},
    "sql": {"answers_quickly", "holds_copy", "is_staged_in_root"},
    "foreach_batch": {"holds_copy", "is_staged_in_root"},
    "kafka": {"holds_copy", "is_staged_in_root", "shows_every_checkpoint"},
    "delta_state": {"shows_state"},
    "sql_state": {"shows_state"},
}
PROPERTIES = [name for name, one in vars(SinkKind).items() if isinstance(one, property)]


@pytest.mark.parametrize("kind", FACTS)
def test_what_follows_from_a_kind(kind: str) -> None:
    assert {name for name in PROPERTIES if getattr(SinkKind(kind), name)} == FACTS[kind]


def test_sinks_are_of_known_kinds() -> None:
    assert set(FACTS) == set(SinkKind)
    kinds = [sink.kind for sink in (DeltaSink, FileSink, SqlSink, ForeachBatchSink, KafkaSink)]
    assert kinds == ["delta", "files", "sql", "foreach_batch", "kafka"]
    assert all(type(kind) is str for kind in kinds), "rows go to Spark and to Java as they are"
