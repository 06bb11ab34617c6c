"""The code of the guide on bad input runs, and does what the guide says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from state_engine import StateEngine

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "bad_input.md"


def blocks(language: str) -> list[str]:
    """Code blocks of the guide, in order."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    return [block for kind, block in fenced if kind == language]


@pytest.mark.spark
def test_the_guide(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module: Any = ModuleType("bad_input_guide")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    cloudpickle.register_pickle_by_value(module)
    module.engine = StateEngine(tmp_path / "root", spark)
    first, second = blocks("python")
    exec(first, vars(module))
    (batch,) = module.report.batches
    assert (batch.rows_in, batch.rows_refused) == (4, 3)
    exec(second, vars(module))
    assert (len(module.sent.sent), module.sent.refused) == (3, 1)
    (left,) = module.engine.list_dead_letters(module.payments())
    assert "base64" in left.row
    rows = DeltaTable(str(tmp_path / "totals")).to_pyarrow_table().to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [("a", 3), ("a", 5), ("b", 3_000_000_000)]
    commands = [line.removeprefix("statelake ") for line in blocks("")[0].splitlines()]
    assert [c.split()[:2] for c in commands] == [["dead-letters", "list"], *[["dead-letters", "replay"]] * 2]
