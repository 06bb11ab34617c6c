"""Where Java writes its warnings and stack traces: to standard error, or into a file that a message can name.

Java inherits standard error from the process that starts it, so it is replaced for that moment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path

import platformdirs

_FILE: ContextVar[Path | None] = ContextVar("java_log", default=None)
_KEPT = 20
_STANDARD_ERROR = 2


@contextmanager
def java_log(file: Path) -> Iterator[None]:
    """A Java that is started inside writes into a file, which is made then."""
    token = _FILE.set(file)
    try:
        yield
    finally:
        _FILE.reset(token)


@contextmanager
def java_is_starting() -> Iterator[None]:
    file = _FILE.get()
    if file is None:
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    before = os.dup(_STANDARD_ERROR)
    try:
        with file.open("ab") as log:
            os.dup2(log.fileno(), _STANDARD_ERROR)
        yield
    finally:
        os.dup2(before, _STANDARD_ERROR)
        os.close(before)


def new_log_file(directory: Path | None = None) -> Path:
    """A name for the log of one command; of older logs the newest twenty stay.

    Args:
        directory: None: where the user's logs are kept.
    """
    directory = directory or platformdirs.user_log_path("statelake")
    for old in sorted(directory.glob("spark-*.log"))[:-_KEPT]:
        old.unlink(missing_ok=True)
    return directory / f"spark-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.log"


_NO_ERROR = re.compile(
    r"WARNING|\d\d/\d\d/\d\d [\d:]+ (?:WARN|INFO) |"
    r"Using Spark's default log4j|Setting default log level|To adjust logging"
)


def has_errors(file: Path) -> bool:
    """Whether Java or Spark wrote more than warnings."""
    if not file.exists():
        return False
    with file.open(encoding="utf-8", errors="replace") as lines:
        return any(line.strip() and not _NO_ERROR.match(line) for line in lines)
