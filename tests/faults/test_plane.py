"""The fault plane: faults are data and happen once; without a schedule the engine is unchanged."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest

from state_engine.microbatch.coordinator import CheckpointCoordinator
from tests.faults.plane import (
    DELAY_S,
    POINTS,
    STEPS,
    Fault,
    FaultPoint,
    InjectedFault,
    from_json,
    installed,
    to_json,
)

REPOSITORY = Path(__file__).parents[2]


def method(point: FaultPoint) -> object:
    module, _, owner = point.owner.partition(":")
    module_of_point = importlib.import_module(module)
    return vars(getattr(module_of_point, owner) if owner else module_of_point)[point.method]


def imported(file: Path) -> Iterator[str]:
    """Modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_the_engine_imports_nothing_of_the_tests() -> None:
    files = [f for at in ("state_engine", "jobs", "orchestration") for f in (REPOSITORY / at).rglob("*.py")]
    assert len(files) > 100
    imports = {
        f"{file}: {name}" for file in files for name in imported(file) if name.split(".")[0] == "tests"
    }
    assert imports == set()


def test_an_engine_in_production_has_no_fault_plane() -> None:
    """Not by another way either: a process that has loaded every point's module has loaded nothing of the tests."""
    modules = sorted({point.owner.partition(":")[0] for point in POINTS.values()})
    code = f"import importlib, sys; [importlib.import_module(m) for m in {modules}]; print(*sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    loaded = shown.stdout.split()
    assert set(modules) <= set(loaded)
    assert [name for name in loaded if name.split(".")[0] in ("tests", "pytest")] == []


def test_without_a_schedule_the_steps_are_plain_functions() -> None:
    for point in POINTS.values():
        function = method(point)
        assert isinstance(function, FunctionType)
        assert function.__module__.startswith("state_engine.")
        assert function.__code__.co_filename.startswith(str(REPOSITORY / "state_engine"))
        assert not hasattr(function, "__wrapped__")
    assert all(f"{when} {step}" in POINTS for step in STEPS for when in ("before", "after"))


def test_steps_are_all_public_methods_of_the_coordinator() -> None:
    of = vars(CheckpointCoordinator).items()
    public = {name for name, one in of if not (name.startswith("_") or isinstance(one, property))}
    assert public - {"run_batch", "close", "files_waiting", "outages", "check_tables"} == set(STEPS)


class Calls(CheckpointCoordinator):
    """A coordinator without work."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def _drop_exchange(self, write_id: str) -> None:
        self.done.append(write_id)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Points are wrapped where they are defined, so the definition itself is put in place of the real one."""
    monkeypatch.setattr(CheckpointCoordinator, "_drop_exchange", Calls._drop_exchange)
    monkeypatch.delattr(Calls, "_drop_exchange")
    return Calls()


POINT = "after dropped exchange"


def test_a_fault_happens_at_the_nth_time_and_once(calls: Calls) -> None:
    before = method(POINTS[POINT])
    with installed([Fault(POINT, nth=2)]) as plane:
        calls._drop_exchange("a")
        with pytest.raises(InjectedFault, match=f"raise {POINT} 2"):
            calls._drop_exchange("b")
        calls._drop_exchange("c")
    assert (calls.done, plane.hits[POINT], plane.fired) == (["a", "b", "c"], 3, [Fault(POINT, 2)])
    assert method(POINTS[POINT]) is before


def test_what_others_do_while_a_zombie_sleeps_is_theirs(calls: Calls) -> None:
    def another() -> None:
        calls._drop_exchange("another")

    with installed([Fault(POINT, 1, "zombie"), Fault(POINT, 2)], meanwhile=another) as plane:
        calls._drop_exchange("a")
        assert plane.hits[POINT] == 1
        with pytest.raises(InjectedFault):
            calls._drop_exchange("b")
    assert calls.done == ["a", "another", "b"]


def test_a_delay_pauses_and_goes_on(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("tests.faults.plane.time.sleep", slept.append)
    with installed([Fault(POINT, 2, "delay")], meanwhile=lambda: pytest.fail("somebody came")) as plane:
        for name in "abc":
            calls._drop_exchange(name)
    assert (calls.done, slept, plane.hits[POINT]) == (["a", "b", "c"], [DELAY_S], 3)
    assert plane.fired == [Fault(POINT, 2, "delay")]


def test_schedules_are_json_and_name_points_that_exist() -> None:
    schedule = [Fault("before commit", 3, "sigkill"), Fault("after stage", 1, "zombie")]
    assert from_json(to_json(schedule)) == schedule
    with (
        pytest.raises(ValueError, match=r"there are no fault points \['after lunch'\]"),
        installed([Fault("after lunch")]),
    ):
        pass
