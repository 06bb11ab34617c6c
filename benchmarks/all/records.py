"""What one part measured, with the machine that it was measured on, kept as a JSON file."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path

import psutil
from pydantic import TypeAdapter

from benchmarks.all.parts import PARTS
from benchmarks.comparison import OnStep
from benchmarks.figures import Figures, wait_until_idle
from state_engine.machine.java import find_java_home

_REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Machine:
    """Where figures come from.

    Attributes:
        cores: that the process may use.
        memory_gb: of the machine.
        processor: as the system names it.
        versions: of what took part, by name; ``commit`` is this project's own.
    """

    cores: int
    memory_gb: float
    processor: str
    versions: dict[str, str]

    @classmethod
    def this(cls) -> Machine:
        """That on which this process runs."""
        names = {"statelake": "statelake", "Spark": "pyspark", "Delta": "delta-spark", "polars": "polars"}
        versions = {name: metadata.version(package) for name, package in names.items()}
        java = find_java_home(environ=os.environ, explicit=None)
        versions |= {"Python": platform.python_version(), "Java": str(java.version), "commit": _commit()}
        return cls(
            len(os.sched_getaffinity(0)), psutil.virtual_memory().total / 2**30, _processor(), versions
        )


@dataclass(frozen=True)
class Record:
    """One part.

    Attributes:
        quick: whether sizes were small, so that figures mean nothing.
        date: when it ended.
        took_s: all of it.
        load_before, load_after: of the machine, over the last minute.
    """

    part: str
    quick: bool
    date: str
    took_s: float
    load_before: float
    load_after: float
    machine: Machine
    figures: Figures


_JSON = TypeAdapter(Record)


def measured(part: str, *, quick: bool, baseline: Path | None, done: OnStep) -> Record:
    """Measure a part in this process; imports are over, and the machine is idle again, when the time begins."""
    if not quick:
        wait_until_idle()
    load, began = os.getloadavg()[0], time.perf_counter()
    figures = PARTS[part].run(quick=quick, baseline=baseline, done=done)
    took_s, date = time.perf_counter() - began, datetime.now().isoformat(timespec="minutes", sep=" ")
    return Record(part, quick, date, took_s, load, os.getloadavg()[0], Machine.this(), figures)


def file_of(directory: Path, part: str) -> Path:
    """Where a part's figures are kept."""
    return directory / f"{part}.json"


def write(directory: Path, record: Record) -> None:
    """Keep a part's figures."""
    aside = file_of(directory, record.part).with_suffix(".new")
    aside.write_bytes(_JSON.dump_json(record, indent=2))
    aside.replace(file_of(directory, record.part))


def read(directory: Path, *, quick: bool) -> Mapping[str, Record]:
    """What is kept there of runs with these sizes, by part, in the order of parts."""
    files = [file for part in PARTS if (file := file_of(directory, part)).is_file()]
    records = [_JSON.validate_json(file.read_bytes()) for file in files]
    return {record.part: record for record in records if record.quick == quick}


def _commit() -> str:
    git = ["git", "-C", str(_REPOSITORY), "rev-parse", "--short", "HEAD"]
    run = subprocess.run(git, capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown"


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if sys.platform == "linux" else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
