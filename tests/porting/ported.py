"""Programs of PyFlink with changed imports: their text, and what runs of it here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
CHANGED = {
    "StreamExecutionEnvironment.get_execution_environment()": 'StatefulJob("ported")',
    ".execute_and_collect()": ".execute_and_collect(drain=True)",
}
"""Changes besides the imports, a line each: PyFlink's text, and that of here. In Flink windows end with the input."""


def program(name: str) -> str:
    """A program as it was written for PyFlink."""
    return (PROGRAMS / f"{name}.txt").read_text()


def ported(name: str) -> str:
    """The same program with changed imports, and with the lines that are changed."""
    text = re.sub(
        r"^from pyflink[\w.]* import", "from state_engine import", program(name), flags=re.MULTILINE
    )
    for before, after in CHANGED.items():
        text = text.replace(before, after)
    return text.replace("StreamExecutionEnvironment", "StatefulJob")


def names_of(name: str) -> dict[str, Any]:
    """What the ported program defines."""
    defined: dict[str, Any] = {"__name__": f"ported_{name}"}
    exec(compile(ported(name), f"{name}.txt", "exec"), defined)
    return defined
