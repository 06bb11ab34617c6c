"""The memory that processes ever had, as Linux counts it."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import psutil


def forget() -> None:
    """Count the largest memory of processes that this one started anew, from what they have now."""
    for process in psutil.Process().children(recursive=True):
        with suppress(OSError):  # it has ended
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def peaks() -> dict[str, int]:
    """The largest memory that the driver, Java, and any of Spark's Python workers ever had, in MB."""
    me, largest = psutil.Process(), dict[str, int]()
    for process in [me, *me.children(recursive=True)]:
        kind = "driver" if process == me else "java" if "java" in process.name() else "worker"
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)  # none where it has ended
        if peak is not None:
            largest[kind] = max(int(peak[1]) // 1024, largest.get(kind, 0))
    return largest
