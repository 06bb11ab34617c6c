"""Programs of PyFlink in the environment that ``make test-flink`` installs, and the counts that pages show."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from state_engine.machine.java import find_java_home
from tests.support.environments import REPOSITORY

PYTHON = REPOSITORY / ".venv-flink" / "bin" / "python"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def printed_by(program: str, *arguments: object) -> Any:
    """What a program beside this file prints as JSON."""
    done = subprocess.run(
        [str(PYTHON), str(Path(__file__).with_name(program)), *map(str, arguments)],
        env={**os.environ, "JAVA_HOME": str(find_java_home(environ=os.environ, explicit=None).path)},
        capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def instant(at_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=at_ms)


def ms(at: datetime | str) -> int:
    if isinstance(at, str):
        at = datetime.fromisoformat(at).replace(tzinfo=UTC)
    return (at - EPOCH) // timedelta(milliseconds=1)


def compared(one: Counter[Any], other: Counter[Any]) -> tuple[int, int, int]:
    """How many are in both, in the first only, and in the other only."""
    return (one & other).total(), (one - other).total(), (other - one).total()


def shown_in(guide: Path) -> dict[tuple[str, str], tuple[int, int, int]]:
    """The counts in the table of a page: of rows and windows or an operator, those of ``compared``."""
    return {
        (rows, name): (int(both), int(theirs), int(ours))
        for rows, name, both, theirs, ours in re.findall(
            r"^\| (.+?) \| `(.+?)` \| (\d+) \| (\d+) \| (\d+) \|$", guide.read_text(), re.MULTILINE
        )
    }
