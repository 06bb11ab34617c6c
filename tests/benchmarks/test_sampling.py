"""The profiler: stacks inside the engine are kept with their time, and drawn as wide as they took."""

from __future__ import annotations

import doctest
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import sampling
from benchmarks.sampling import RECORDING, Sampler, flame_graph, own_seconds, read_stacks, stack_of


def test_examples() -> None:
    assert doctest.testmod(sampling).failed == 0


def test_samples_are_taken_while_a_profile_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "_PACKAGE", __name__.split(".")[0])
    monkeypatch.setattr(sampling, "stack_of", lambda frame: stack_of(frame).replace("?", __name__))
    sampler = Sampler(tmp_path, "own")
    sampler.start()
    time.sleep(0.3)
    assert not list(tmp_path.iterdir())
    (tmp_path / RECORDING).touch()
    _until(lambda: list(tmp_path.glob("own-*.folded")))
    (tmp_path / RECORDING).unlink()
    sampler.stop()
    stacks = read_stacks(tmp_path.glob("own-*.folded"))
    assert any(f"{__name__}._until" in stack for stack in stacks)
    assert sum(own for _, own, _ in own_seconds(stacks)) > 0


def _until(done: Any) -> None:
    deadline = time.monotonic() + 60
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_stacks_name_modules_and_functions() -> None:
    assert stack_of(sys._getframe()).endswith("test_sampling.test_stacks_name_modules_and_functions")
    assert stack_of(None) == ""


def test_boxes_stand_under_their_caller_side_by_side() -> None:
    drawn = flame_graph({"a;b": 250_000, "a;c": 750_000}, "seconds")
    boxes = re.findall(r'<title>(\w+): .*?x="([\d.]+)" y="(\d+)" width="([\d.]+)"', drawn)
    assert boxes == [
        ("seconds", "0.0", "0", "1400.0"),
        ("a", "0.0", "17", "1400.0"),
        ("b", "0.0", "34", "350.0"),
        ("c", "350.0", "34", "1050.0"),
    ]
