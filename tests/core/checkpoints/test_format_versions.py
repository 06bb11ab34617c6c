"""Formats of a root: the steps between them, and which formats are refused."""

from __future__ import annotations

import pytest

from state_engine.core.checkpoints.format_versions import (
    FORMAT_VERSION,
    STEPS,
    newer,
    older,
    steps_from,
    upgraded_row,
)
from state_engine.core.errors import RootError


def test_the_steps_lead_to_this_version_one_by_one() -> None:
    assert [step.version for step in STEPS] == list(range(STEPS[0].version, FORMAT_VERSION + 1))
    assert steps_from(FORMAT_VERSION, where="r") == []
    for version in range(STEPS[0].version - 1, FORMAT_VERSION):
        assert steps_from(version, where="r")[0].version == version + 1


def test_other_formats_are_refused() -> None:
    with pytest.raises(RootError, match="r was written by a newer Statelake: it has format 99"):
        steps_from(99, where="r")
    with pytest.raises(RootError, match="format 1 of an unreleased version, which cannot be upgraded"):
        older("r", 1)
    assert "statelake upgrade" in str(older("r", FORMAT_VERSION - 1))
    assert "Upgrade Statelake" in str(newer("r", 99))


def test_a_row_of_format_2_becomes_one_of_this_version() -> None:
    row = {
        "checkpoint_id": 3,
        "operators": [{"uid": "o", "states": [{"name": "s", "kind": "value", "type": "int", "ttl": ""}]}],
        "sinks": [{"name": "out", "files": []}],
    }
    was = repr(row)
    assert upgraded_row(row, steps_from(2, where="r")) == {
        "checkpoint_id": 3,
        "operators": [
            {
                "uid": "o",
                "states": [{"name": "s", "kind": "value", "type": "int", "ttl": "", "stored_as": None}],
                "base_files": [],
                "expired": [],
                "first_timers": [],
                "asked_late": ["s"],
                "directory": None,
                "entries": {},
            }
        ],
        "sinks": [{"name": "out", "files": [], "withdrawn": []}],
        "replaced_id": None,
        "retired": [],
        "pinned": [],
        "unpinned": [],
        "rescaled": [],
        "partition": "",
        "partition_start_ms": None,
        "partition_end_ms": None,
        "late_rows": 0,
        "backfill": "",
        "drained": False,
        "digest": "",
        "operator_watermarks_ms": {},
    }
    assert repr(row) == was


def test_sources_of_older_rows_have_neither_ends_of_time_nor_late_rows() -> None:
    row = {
        "checkpoint_id": 3,
        "watermark_ms": 1,
        "operators": [],
        "sources": [{"name": "a", "watermark_ms": 1}],
    }
    new = {"floor_ms": None, "idle": False, "last_rows_ms": None, "behind_watermark": 0}
    assert upgraded_row(row, steps_from(6, where="r"))["sources"] == [{"name": "a", "watermark_ms": 1, **new}]


def test_watermarks_of_older_formats_are_one_millisecond_lower() -> None:
    """A row without a watermark, and a source that has none yet, keep it so."""
    row = {
        "checkpoint_id": 3,
        "watermark_ms": 100,
        "operators": [],
        "sources": [{"name": "a", "watermark_ms": 100}, {"name": "b", "watermark_ms": None}],
    }
    upgraded = upgraded_row(row, steps_from(5, where="r"))
    assert upgraded["watermark_ms"] == 99
    assert [s["watermark_ms"] for s in upgraded["sources"]] == [99, None]
    assert upgraded_row(row | {"watermark_ms": None}, steps_from(5, where="r"))["watermark_ms"] is None
