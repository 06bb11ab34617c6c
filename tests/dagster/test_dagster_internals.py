"""Private names of Dagster are in one module; and Great Expectations is imported wherever Dagster runs an asset."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import dagster as dg

import state_engine
from state_engine.dagster.dagster_internals import READ_IN

ENGINE = Path(state_engine.__file__).parent


def test_they_were_read_in_the_version_that_is_installed() -> None:
    assert dg.__version__ == READ_IN, (
        "look up the private names of state_engine/dagster/dagster_internals.py in the source of this version, and "
        "how its Pipes clients keep and call their message readers; then raise READ_IN"
    )


def test_one_module_imports_them() -> None:
    importing = set()
    for file in ENGINE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.startswith(("dagster._", "dagster_pipes._")) for name in names):
                importing.add(str(file.relative_to(ENGINE)))
    assert importing == {"dagster/dagster_internals.py"}


SCRIPT = """
import sys
from state_engine.expectations.validation import great_expectations
assert not hasattr(sys.modules["__main__"], "__file__"), "as in a run that Dagster's daemon launched"
print(great_expectations().__name__, hasattr(sys.modules["__main__"], "__file__"))
"""


def test_also_in_a_process_whose_main_module_is_no_file() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout == "great_expectations False\n", done.stderr
