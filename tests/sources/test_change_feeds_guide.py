"""The code of the guide on change feeds runs, and does what the guide says."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from state_engine import StateEngine
from tests.support.guides import GUIDES, code_blocks

GUIDE = GUIDES / "change_feeds.md"


def test_the_guide(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module: Any = ModuleType("change_feeds_guide")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    cloudpickle.register_pickle_by_value(module)
    table, debezium, columns, refused = code_blocks(GUIDE, "python")
    accounts = pa.table({"id": [1, 2], "owner": ["ada", "ada"], "amount": [5, 3]})
    write_deltalake("accounts", accounts, configuration={"delta.enableChangeDataFeed": "true"})
    module.engine = StateEngine(tmp_path / "root", spark)
    exec(table, vars(module))
    assert shown_balances() == {("ada", 5), ("ada", 8)}
    DeltaTable("accounts").update(updates={"owner": "'bob'"}, predicate="id = 2")
    DeltaTable("accounts").delete("id = 1")
    module.engine.run(module.balances(module.DeltaSource("accounts", changes=True)))
    assert shown_balances() - {("ada", 5), ("ada", 8)} == {("bob", 3), ("ada", 0)}

    module.engine = StateEngine(tmp_path / "other root", spark)
    (tmp_path / "feeds").mkdir()
    monkeypatch.chdir(tmp_path / "feeds")
    exec(debezium, vars(module))
    assert shown_balances() == {("ada", 5), ("ada", 0), ("bob", 7)}
    exec(columns, vars(module))
    assert module.format.sequence == "lsn"
    exec(refused, vars(module))
    assert module.letter.error.startswith(
        "SourceError: a truncate (op 't') deletes rows without saying which: "
    )


def shown_balances() -> set[tuple[str, int]]:
    return {tuple(r.values()) for r in DeltaTable("balances").to_pyarrow_table().to_pylist()}
