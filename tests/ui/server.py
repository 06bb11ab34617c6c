"""A real ``dagster dev`` on a free port, with an instance, a root and real flights of its own; and its tables.

The feed is cut by day and holds the first days of January 2013; more of them arrive when a test says so. Nothing of
the user's is touched: ``.dagster``, ``.statelake`` and settings files stay as they are.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from jobs.flights_data import feed_path, prepare_feed
from state_engine import CheckpointRow
from state_engine.monitoring.job_history import JobHistory, read_history
from tests.support.ports import free_port
from tests.support.waiting import until

PROJECT = Path(__file__).parents[2]
MONTHS = ("2013-01",)
START_S = 300
COMMAND_S = 180


@dataclass(frozen=True)
class Site:
    """Directories of one server, and the variables that lead Statelake and Dagster there."""

    home: Path
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def root(self) -> str:
        return str(self.home / "state")

    @property
    def variables(self) -> dict[str, str]:
        feeds = {"feeds": str(self.home / "feeds"), "cut": "day", "parallelism": 2}
        parameters = {"flights": {**feeds, "months": list(MONTHS)}, "daily_delays": feeds}
        ours = {
            "DAGSTER_HOME": str(self.home / "dagster"),
            "STATELAKE__ROOT": self.root,
            "STATELAKE__JOBS__MODULES": "jobs.flights,jobs.daily_delays",
            "STATELAKE__JOBS__PARAMETERS": json.dumps(parameters),
            "STATELAKE__SPARK__MASTER": "local[2]",
            "STATELAKE__SPARK__DRIVER_MEMORY": "2g",
        }
        clean = {k: v for k, v in self.environ.items() if not k.startswith(("STATELAKE", "DAGSTER"))}
        return {**clean, **ours}

    def lay_out(self) -> None:
        """An empty instance of Dagster, and feeds without a file."""
        (self.home / "dagster").mkdir(parents=True)
        shutil.copy(PROJECT / "orchestration" / "dagster.yaml", self.home / "dagster")
        for feed in self.feeds:
            feed.mkdir(parents=True)

    def arrive(self, *days: int) -> None:
        """Flights of these days of January come in, whole files at once."""
        whole = prepare_feed(self.home / "whole", "day", months=list(MONTHS))
        for name in (f"flights-{MONTHS[0]}-{day:02}.parquet" for day in days):
            for feed in self.feeds:
                shutil.copy(whole / name, feed / f".{name}")
                (feed / f".{name}").rename(feed / name)

    @property
    def feeds(self) -> Sequence[Path]:
        """Where the jobs `flights` and `daily_delays` look."""
        feeds = self.home / "feeds"
        return feed_path(feeds, "day", months=list(MONTHS)), feed_path(feeds, "day")


@dataclass(frozen=True)
class Tables:
    """What the engine's own tables say, whatever a page shows."""

    site: Site

    def status(self, job: str = "flights") -> dict[str, Any]:
        """``statelake status JOB --json``."""
        printed = self._statelake("status", job, "--json")
        return dict(json.loads(printed))

    def checkpoints(self, job: str = "flights") -> str:
        """What ``statelake checkpoints JOB`` prints, in a terminal that is wide enough; starts Spark."""
        return self._statelake("checkpoints", job)

    def rows(self, job: str = "flights") -> list[CheckpointRow]:
        history = self.history(job)
        return [history.checkpoints[i] for i in sorted(history.checkpoints)] if history else []

    def head(self, job: str = "flights") -> CheckpointRow:
        return self.rows(job)[-1]

    def history(self, job: str = "flights") -> JobHistory | None:
        return read_history(self.site.root, job)

    def _statelake(self, *arguments: str) -> str:
        done = subprocess.run(
            [beside_python("statelake"), *arguments],
            cwd=PROJECT,
            env={**self.site.variables, "COLUMNS": "250"},
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode in (0, 1, 2), (
            done.stderr
        )  # 1 and 2 are states of the job, and no failure of the command
        return done.stdout


def serving(site: Site) -> AbstractContextManager[str]:
    """``dagster dev`` from ``workspace.yaml``; gives its address, and leaves no process behind."""
    command = ["dagster", "dev", "-w", "workspace.yaml"]
    return server(command, directory=PROJECT, variables=site.variables, log=site.home / "dagster.log")


@contextmanager
def server(
    command: Sequence[str], *, directory: Path, variables: Mapping[str, str], log: Path
) -> Iterator[str]:
    """A command that serves Dagster's pages; gives its address, and leaves no process behind.

    Args:
        command: it takes a host and a port besides.
        directory: where it runs.
        variables: of its environment.
        log: what it prints.
    """
    port = free_port()
    name, *arguments = command
    with log.open("w") as output:
        process = subprocess.Popen(
            [beside_python(name), *arguments, "--host", "127.0.0.1", "--port", str(port)],
            cwd=directory,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        until(lambda: _answers(address, process, log), f"{address} answers", within_s=START_S)
        yield address
    finally:
        _end(process)


def _answers(address: str, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, f"the server ended with {process.returncode}:\n{log.read_text()[-4000:]}"
    try:
        with urllib.request.urlopen(f"{address}/server_info", timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server, its daemon, code servers, runs and their JVMs: first politely, then all that is left."""
    family = _descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    psutil.wait_procs(family, timeout=20)
    family = [p for p in {*family, *_descendants(process.pid)} if p.is_running()]
    for left in family:
        with suppress(psutil.NoSuchProcess):
            left.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # it leads its group: what lost its parent is in there
    psutil.wait_procs(family, timeout=20)
    process.wait(timeout=20)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [*parent.children(recursive=True), parent]
    except psutil.NoSuchProcess:
        return []


def beside_python(name: str) -> str:
    """The path of a command that is installed with this Python."""
    return str(Path(sys.executable).parent / name)
