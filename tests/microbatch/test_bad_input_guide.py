"""The code of the guide on bad input runs, and does what the guide says."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from state_engine import StateEngine
from tests.support.guides import GUIDES, code_blocks

GUIDE = GUIDES / "bad_input.md"


@pytest.mark.spark
def test_the_guide(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module: Any = ModuleType("bad_input_guide")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    cloudpickle.register_pickle_by_value(module)
    module.engine = StateEngine(tmp_path / "root", spark)
    first, second = code_blocks(GUIDE, "python")
    exec(first, vars(module))
    (batch,) = module.report.batches
    assert (batch.rows_in, batch.rows_refused) == (4, 3)
    exec(second, vars(module))
    assert (len(module.sent.sent), module.sent.refused) == (3, 1)
    (left,) = module.engine.list_dead_letters(module.payments())
    assert "base64" in left.row
    rows = DeltaTable(str(tmp_path / "totals")).to_pyarrow_table().to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [("a", 3), ("a", 5), ("b", 3_000_000_000)]
    commands = [line.removeprefix("statelake ") for line in code_blocks(GUIDE, "")[0].splitlines()]
    assert [c.split()[:2] for c in commands] == [["dead-letters", "list"], *[["dead-letters", "replay"]] * 2]
