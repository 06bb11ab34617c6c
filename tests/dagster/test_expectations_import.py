"""Great Expectations can be imported wherever Dagster runs an asset."""

from __future__ import annotations

import subprocess
import sys

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
