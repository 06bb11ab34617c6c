"""New processes that do a part of a benchmark, and answer with a line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from state_engine.machine.java import find_java_home


def answer_of(
    arguments: Sequence[str], *, what: str, environment: Mapping[str, str], directory: Path | None = None
) -> dict[str, Any]:
    """What a new process of this Python prints last, as JSON; it has the Java that is found here.

    Args:
        arguments: of Python.
        what: it does, for the message.
        environment: variables besides those of this process.
        directory: that it works in; None for that of this process.

    Raises:
        RuntimeError: it failed; with what it wrote.
    """
    java = find_java_home(environ=os.environ, explicit=None)
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "JAVA_HOME": str(java.path), **environment},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{what} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))
