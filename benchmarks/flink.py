"""PyFlink and Flink SQL on the reference workload, where their environment ``.venv-flink`` is there.

A Flink job starts for seconds, so its rate is what a longer run takes more than a shorter one. PyFlink, whose default
cache holds fewer keys than there are, is measured on fewer events; the time for a full batch is then extrapolated,
and said to be. Neither writes checkpoints nor outputs, which is in their favour.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.workload import PARALLELISM, WINDOW
from state_engine.machine.java import find_java_home

_ENVIRONMENT = Path(__file__).parents[1] / ".venv-flink"
_PYTHON = _ENVIRONMENT / "bin" / "python"
_PROGRAM = Path(__file__).with_name("flink_program.py")
_TIMEOUT_S = 900


@dataclass(frozen=True)
class _Peer:
    """What is run: events of the shorter and of the longer run, at most and as shares of a full batch."""

    what: str
    shares: tuple[float, float]


_PEERS = {
    "pyflink": _Peer("process mode, heap, default cache", (0.02, 0.06)),
    "flink_sql": _Peer("Java group aggregate, heap", (2.0, 6.0)),
}
NAMES = tuple(_PEERS)


@dataclass(frozen=True)
class Rate:
    """Events per second of one Flink job once it runs, and how that was measured."""

    name: str
    events_per_s: float
    how: str


class FlinkError(Exception):
    """The Flink program failed; the message ends with what it said."""


def available() -> bool:
    """Whether the environment was set up."""
    return (_ENVIRONMENT / ".ready").exists()


def steps(names: Sequence[str]) -> int:
    """How often ``measure`` reports."""
    return 2 * len(names)


def measure(name: str, *, events: int, keys: int, done: Callable[[str], None] = print) -> Rate:
    """Run a job twice and take the difference.

    Keys shrink with the events, so that every key gets as many in the longer run as in a full batch, and PyFlink's
    cache holds as little of them.

    Raises:
        FlinkError: the program failed, or took longer than a quarter of an hour.
    """
    peer, runs = _PEERS[name], []
    longer = max(int(events * peer.shares[1]), 10)
    own_keys = min(keys, max(int(keys * peer.shares[1]), 1))
    for count in (max(int(events * peer.shares[0]), 5), longer):
        seconds = _run(name, count, own_keys)
        runs.append((count, seconds))
        done(f"{name}, {count:,} events: {seconds:.2f} s with its start")
    (fewer, shorter_s), (more, longer_s) = runs
    if longer_s <= shorter_s:
        raise FlinkError(
            f"{name}: {more:,} events took no longer than {fewer:,}: nothing can be said of so few"
        )
    rate = (more - fewer) / (longer_s - shorter_s)
    origin = "extrapolated from" if more < events else "from"
    return Rate(name, rate, f"{peer.what}; {origin} {fewer:,} and {more:,} events over {own_keys:,} keys")


def _run(name: str, events: int, keys: int) -> float:
    java = find_java_home(environ=os.environ, explicit=None)
    command = [str(_PYTHON), str(_PROGRAM), name, *map(str, (events, keys, WINDOW, PARALLELISM))]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SPARK", "PYSPARK"))}
    # Flink starts its workers with the first `python` on the path.
    environment |= {"JAVA_HOME": str(java.path), "PATH": f"{_PYTHON.parent}{os.pathsep}{os.environ['PATH']}"}
    try:
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise FlinkError(f"{name}: {events:,} events took more than {_TIMEOUT_S} s") from None
    if run.returncode:
        raise FlinkError(f"{name} failed:\n{run.stderr[-2000:]}")
    return float(json.loads(run.stdout.strip().splitlines()[-1])["seconds"])
