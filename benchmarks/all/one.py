"""``python -m benchmarks.all.one PART DIRECTORY``: measures one part, and leaves its figures in the directory."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from benchmarks.all import records


def run(part: str, directory: Path, quick: bool = False, baseline: Path | None = None) -> None:
    """Measure one part in this process."""
    began = time.perf_counter()

    def done(what: str) -> None:
        print(f"{part} {time.perf_counter() - began:6.1f} s: {what}", flush=True)

    records.write(directory, records.measured(part, quick=quick, baseline=baseline, done=done))


if __name__ == "__main__":
    typer.run(run)
