"""Private names of Dagster: in one module, and read in the version that is installed."""

from __future__ import annotations

import ast
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
