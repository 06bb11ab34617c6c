"""PyFlink and Flink SQL on the reference workload, where their environment ``.venv-flink`` is there.

A Flink job starts for seconds, so its rate is what a longer run takes more than a shorter one. PyFlink, whose default
cache holds fewer keys than there are, is measured on fewer events; the time for a full batch is then extrapolated,
and said to be. Only ``flink_sql_files`` does the same work as we do: it reads files, and writes its outputs and
checkpoints to files. The others make their events and drop their outputs, which is in their favour.

**Equal results come first**: each job runs over few events, and all of its results must be what a formula says.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from benchmarks.unequal import check_rows
from benchmarks.workload import PARALLELISM, WINDOW, Feed, Workload, scratch
from state_engine.machine.jars import JarSet, jars_of
from state_engine.machine.java import find_java_home

_ENVIRONMENT = Path(__file__).parents[2] / ".venv-flink"
_PYTHON = _ENVIRONMENT / "bin" / "python"
_PROGRAM = Path(__file__).with_name("flink_program.py")
_TIMEOUT_S = 900
_VERIFY_EVENTS, _VERIFY_KEYS = 5_000, 300
_EVENTS_AT_ONCE = 1_000_000
_PARQUET = JarSet(
    name="Flink's Parquet",
    directory="flink-2.3.0",
    pinned={
        "org.apache.flink:flink-sql-parquet:2.3.0": "f30617f4a5a6d437750f155ff72178ab34439aec91df64d96621c260559ba5fd"
    },
    excludes=("com.*:*", "commons-*:*", "org.slf4j:*"),
    setup="make bench-all",
)


@dataclass(frozen=True)
class _Peer:
    """What is run.

    Attributes:
        job: of the program.
        backend: of its state.
        what: in a few words.
        shares: events of the shorter and of the longer run, as shares of a full batch.
    """

    job: str
    backend: str
    what: str
    shares: tuple[float, float]


_PEERS = {
    "pyflink": _Peer("pyflink", "hashmap", "process mode, heap, default cache", (0.02, 0.06)),
    "flink_sql": _Peer("averages", "hashmap", "Java group aggregate, heap", (2.0, 6.0)),
    "flink_sql_rocksdb": _Peer("averages", "rocksdb", "Java group aggregate, RocksDB", (2.0, 6.0)),
    "flink_sql_totals": _Peer("totals", "hashmap", "Java group aggregate, heap", (0.3, 1.3)),
    "flink_sql_totals_rocksdb": _Peer("totals", "rocksdb", "Java group aggregate, RocksDB", (0.2, 0.6)),
    "flink_sql_files": _Peer("files", "hashmap", "Java, heap, Parquet files in and out", (0.3, 1.0)),
}
AVERAGES = ("pyflink", "flink_sql", "flink_sql_rocksdb")
"""Those of the reference workload."""
TOTALS = ("flink_sql_totals", "flink_sql_files", "flink_sql_totals_rocksdb")
"""Those of running aggregates, whose full batches are ten times larger."""
NAMES = (*AVERAGES, *TOTALS)


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
    return 3 * len(names)


def measure(name: str, *, events: int, keys: int, done: Callable[[str], None] = print) -> Rate:
    """Compare the results of a small run; then run the job twice and take the difference.

    Keys shrink with the events, so that every key gets as many in the longer run as in a full batch, and PyFlink's
    cache holds as little of them.

    Raises:
        UnequalResultsError: a result is not what it must be.
        FlinkError: the program failed, or took longer than a quarter of an hour.
    """
    peer, runs = _PEERS[name], []
    check(name, _run(peer, "results", _VERIFY_EVENTS, _VERIFY_KEYS)["rows"], _VERIFY_EVENTS, _VERIFY_KEYS)
    done(f"equal results? {name}")
    longer = max(int(events * peer.shares[1]), 10)
    own_keys = min(keys, max(int(keys * peer.shares[1]), 1))
    for count in (max(int(events * peer.shares[0]), 5), longer):
        seconds = float(_run(peer, "time", count, own_keys)["seconds"])
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


def check(name: str, rows: list[list[Any]], events: int, keys: int) -> None:
    """Compare all results of a job with what so many events must lead to; raises UnequalResultsError."""
    workload = Workload(keys)
    if _PEERS[name].job == "pyflink":
        wanted: Counter[Any] = Counter(workload.expected(events).outputs)
    elif _PEERS[name].job == "files":
        of_keys = workload.values_of(events).items()
        wanted = Counter((k, at, at * value) for k, (n, value) in of_keys for at in range(1, n + 1))
    else:
        total = _PEERS[name].job == "totals"
        wanted = Counter(
            (k, n, n * value if total else value) for k, (n, value) in workload.values_of(events).items()
        )
    check_rows(name, "results", Counter(tuple(row) for row in rows), wanted)


@contextmanager
def _places(peer: _Peer, events: int, keys: int) -> Iterator[list[str]]:
    """Arguments of a job over files: a directory with so many events in the files that we get, too, and jars."""
    if peer.job != "files":
        yield []
        return
    with scratch() as directory:
        feed = Feed(Workload(keys), directory / "input")
        while feed.events < events:
            feed.write(min(_EVENTS_AT_ONCE, events - feed.events))
        yield [str(directory), parquet_jars()]


def run_windows(job: str, directory: Path) -> float:
    """Seconds of windows of SQL over the files in ``input`` of a directory; results go to its ``results``.

    Args:
        job: ``hours`` or ``sessions``. Files have ``k``, ``v`` and ``ms``.

    Raises:
        FlinkError: as of ``measure``.
    """
    peer = _Peer(job, "hashmap", f"Flink's {job}", (0.0, 0.0))
    return float(_program(peer, "time", 0, 0, [str(directory), parquet_jars()])["seconds"])


def parquet_jars() -> str:
    """URIs of what Flink reads and writes Parquet with: its own jar, and the Hadoop that PySpark brings."""
    hadoop = sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))
    return ";".join(path.as_uri() for path in [*jars_of(_PARQUET), *hadoop])


def _run(peer: _Peer, what: str, events: int, keys: int) -> dict[str, Any]:
    """What the program printed: its seconds, or its rows."""
    with _places(peer, events, keys) as places:
        return _program(peer, what, events, keys, places)


def _program(peer: _Peer, what: str, events: int, keys: int, places: Sequence[str]) -> dict[str, Any]:
    numbers = map(str, (events, keys, WINDOW, PARALLELISM))
    title = f"{peer.what}: {events:,} events"
    return printed_by(_PROGRAM, [peer.job, peer.backend, what, *numbers, *places], title=title)


def printed_by(program: Path, arguments: Sequence[str], *, title: str) -> dict[str, Any]:
    """What a program prints last, by the Python that has PyFlink; raises FlinkError, which begins with the title."""
    java = find_java_home(environ=os.environ, explicit=None)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SPARK", "PYSPARK"))}
    # Flink starts its workers with the first `python` on the path.
    environment |= {"JAVA_HOME": str(java.path), "PATH": f"{_PYTHON.parent}{os.pathsep}{os.environ['PATH']}"}
    try:
        run = subprocess.run(
            [str(_PYTHON), str(program), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise FlinkError(f"{title} took more than {_TIMEOUT_S} s") from None
    if run.returncode:
        raise FlinkError(f"{title} failed:\n{run.stderr[-2000:]}")
    return dict(json.loads(run.stdout.strip().splitlines()[-1]))
