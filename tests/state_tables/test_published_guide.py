"""The examples of the guide on published tables, as they stand there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from pyspark.sql import SparkSession

from state_engine import StateEngine
from tests.state_tables.histories import rows_of
from tests.support.guides import GUIDES, code_blocks


def test_the_example_of_the_guide_shows_balances(tmp_path: Path, spark: SparkSession) -> None:
    names: dict[str, Any] = {"__name__": "guide"}
    for example in code_blocks(GUIDES / "published_tables.md", "python"):
        exec(compile(example, "published_tables.md", "exec"), names)
    job = names["job"]([("ada", 5), ("bob", 2), ("ada", -1)], str(tmp_path / "balances"))
    StateEngine(tmp_path / "root", spark=spark).run(job)
    assert rows_of(pl.read_delta(str(tmp_path / "balances"))) == [("ada", 4), ("bob", 2)]
