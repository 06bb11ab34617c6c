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
    with pytest.raises(RootError, match=r"format 5 of a Statelake before 0\.2\.0"):
        older("r", 5)
    assert "statelake upgrade" in str(older("r", FORMAT_VERSION - 1))
    assert "Upgrade Statelake" in str(newer("r", 99))


def test_sources_of_older_rows_have_neither_ends_of_time_nor_late_rows() -> None:
    row = {
        "checkpoint_id": 3,
        "watermark_ms": 1,
        "operators": [],
        "sources": [{"name": "a", "watermark_ms": 1}],
    }
    new = {"floor_ms": None, "idle": False, "last_rows_ms": None, "behind_watermark": 0}
    assert upgraded_row(row, steps_from(6, where="r"))["sources"] == [{"name": "a", "watermark_ms": 1, **new}]
