"""How large a key, a batch and a state may be, and what memory they take; figures are in the guide on operations.

The largest memory of each process is bounded at one and a half of what was seen, so that a copy too many is noticed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(1800)]

REPOSITORY = Path(__file__).parents[2]


def outcome_of(what: str, size: int, directory: Path) -> dict[str, Any]:
    """What a process of its own did with something large; see ``tests.limits.large``."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.limits.large", what, str(size), str(directory)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return outcome


def test_a_million_elements_in_the_list_of_one_key(tmp_path: Path) -> None:
    size = 1_000_000
    outcome = outcome_of("elements_of_one_key", size, tmp_path)
    assert outcome["elements"] == size + 1
    assert outcome["total"] == size * (size + 1) // 2
    assert outcome["written"] == 1  # the one that was added
    assert outcome["peaks"]["driver"] <= 320
    assert outcome["peaks"]["worker"] <= 540


def test_ten_million_keys(tmp_path: Path) -> None:
    outcome = outcome_of("keys_with_state", 10_000_000, tmp_path)
    assert outcome["keys"] == 10_000_000
    for peaks in (outcome["given"], outcome["peaks"]):  # workers that are idle for a minute are ended
        assert peaks["driver"] <= 260
        assert peaks["worker"] <= 460
        assert peaks["java"] <= 3_500


def test_twenty_thousand_files_in_a_micro_batch(tmp_path: Path) -> None:
    outcome = outcome_of("files_at_once", 20_000, tmp_path)
    assert (outcome["rows"], outcome["keys"]) == (20_000, 100)
    assert outcome["peaks"]["driver"] <= 430
    assert outcome["peaks"]["worker"] <= 260
