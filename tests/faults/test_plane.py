"""The fault plane has all steps, and the engine knows nothing of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from pkgutil import walk_packages

import state_engine
from state_engine.microbatch.coordinator import CheckpointCoordinator
from tests.faults.plane import POINTS, STEPS

REPOSITORY = Path(__file__).parents[2]


def test_an_engine_in_production_has_no_fault_plane() -> None:
    """A process that has loaded every module has loaded nothing of the tests."""
    named = [name.name for name in walk_packages(state_engine.__path__, "state_engine.")]
    modules = [name for name in named if not name.endswith(".__main__")]  # those are programs
    assert {point.owner.partition(":")[0] for point in POINTS.values()} <= {*modules}
    code = f"import importlib, sys; [importlib.import_module(m) for m in {modules}]; print(*sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    loaded = shown.stdout.split()
    assert set(modules) <= set(loaded)
    assert [name for name in loaded if name.split(".")[0] in ("tests", "pytest")] == []


def test_steps_are_all_public_methods_of_the_coordinator() -> None:
    of = vars(CheckpointCoordinator).items()
    public = {name for name, one in of if not (name.startswith("_") or isinstance(one, property))}
    assert public - {"run_batch", "close", "files_waiting", "outages", "check_tables"} == set(STEPS)
