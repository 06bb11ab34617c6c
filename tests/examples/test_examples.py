"""Each example runs, twice over new input, and gives what its text says."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession

import examples
from examples import broadcast_rules, columns, word_count
from state_engine import StateEngine

RESULTS: dict[ModuleType, Any] = {
    word_count: {
        **dict.fromkeys(("be", "or", "not", "that", "is", "the", "question", "sleep"), 1),
        "be": 2,
        "to": 3,
    },
    broadcast_rules: [(1, "ann", 20, 1), (3, "ann", 10, 2)],
    columns: (
        {"north": (3, 470), "south": (2, 1100)},
        [("north", 300, 300), ("south", 200, 200), ("south", 900, 700)],
    ),
}


@pytest.mark.parametrize("example", RESULTS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_an_example_gives_what_it_says(tmp_path: Path, spark: SparkSession, example: ModuleType) -> None:
    with StateEngine(tmp_path / "state", spark) as engine:
        assert example.main(tmp_path, engine) == RESULTS[example]


def test_all_examples_are_tried_and_say_how_they_are_run() -> None:
    files = sorted(path.stem for path in Path(*examples.__path__).glob("[a-z]*.py"))
    assert files == sorted(module.__name__.rpartition(".")[2] for module in RESULTS)
    assert all(f"python -m {module.__name__}" in (module.__doc__ or "") for module in RESULTS)
