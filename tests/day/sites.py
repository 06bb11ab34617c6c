"""The project of a user: settings, jobs of their own, a Dagster instance; and its commands.

Everything is done by processes of their own, started in that directory. This side only waits and looks. Whatever is
still alive in the end is identified by the directory in its environment, and killed.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from state_engine import open_state
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.monitoring.job_audit import RULES
from state_engine.monitoring.job_history import JobHistory, read_history
from tests.day import day_jobs
from tests.support.java import SHORT_LIVED_JAVA
from tests.support.waiting import until

PROJECT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
MARK = "STATELAKE_TEST_WORKSPACE"
"""Variable that every process of a site inherits."""
PATIENCE_S = 300.0
"""Of waiting for one thing, so that a test that goes wrong ends; nothing is measured by it."""
BEGIN = datetime(2013, 1, 1, tzinfo=UTC)

SETTINGS = """
root = "{directory}/state"

[spark]
master = "local[2]"
driver_memory = "1g"
options = {{ "spark.driver.extraJavaOptions" = "{java}" }}

[jobs]
modules = ["day_jobs"]
"""


@dataclass(frozen=True)
class Reading:
    """One input row."""

    n: int
    meter: str
    amount: int
    at: datetime


def readings(many: int, *, apart: timedelta, meters: int = 300) -> list[Reading]:
    """Readings at equal distances from the first day on; a meter comes again after ``meters`` readings on average."""
    chance = random.Random(7)
    return [
        Reading(n, f"m{chance.randrange(meters)}", chance.randrange(1000), BEGIN + n * apart)
        for n in range(many)
    ]


def sums(rows: Sequence[Reading], *, ttl: timedelta) -> list[tuple[int, str, int]]:
    """The outputs of the function for these rows, in six lines of Python."""
    last: dict[str, tuple[datetime, int]] = {}
    totals = []
    for row in sorted(rows, key=lambda r: (r.at, r.n)):
        at, total = last.get(row.meter, (row.at, 0))
        total = row.amount + (total if at + ttl > row.at else 0)
        last[row.meter] = row.at, total
        totals.append((row.n, row.meter, total))
    return sorted(totals)


@dataclass
class Site:
    """A directory with settings, jobs, feeds and a Dagster instance."""

    directory: Path
    numbers: Iterator[int] = field(default_factory=count)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("feeds/readings", "feeds/daily", "signals", "dagster", "logs"):
            (self.directory / name).mkdir(parents=True)
        shutil.copy(day_jobs.__file__, self.directory / "day_jobs.py")
        shutil.copy(PROJECT / "workspace.yaml", self.directory)
        self.configure()
        self._write_instance()

    def configure(self, **parameters: int) -> None:
        """Write the settings, with parameters of the job ``readings``."""
        lines = [
            SETTINGS.format(directory=self.directory, java=SHORT_LIVED_JAVA),
            "[jobs.parameters.readings]",
        ]
        lines += [f"{name} = {value}" for name, value in parameters.items()]
        (self.directory / "statelake.toml").write_text("\n".join(lines) + "\n")

    def _write_instance(self) -> None:
        """The project's own instance, but for how often the daemon looks for dead runs: a minute is too long here."""
        given = (PROJECT / "orchestration" / "dagster.yaml").read_text()
        for slow, quick in (
            ("poll_interval_seconds: 30", "poll_interval_seconds: 2"),
            ("free_slots_after_run_end_seconds: 60", "free_slots_after_run_end_seconds: 1"),
        ):
            assert slow in given
            given = given.replace(slow, quick)
        (self.directory / "dagster" / "dagster.yaml").write_text(given)
        with self._instance():  # makes its SQLite files: two processes that both do fail, as of Dagster 1.13
            pass

    # -- doing: commands only --------------------------------------------------------------------------------------

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """A command in a process group of its own; its output goes to a file in ``logs``."""
        name = f"{next(self.numbers):02d}-{'-'.join(command[:4])}.txt".replace("/", "_")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("STATELAKE", "DAGSTER"))}
        own = {
            "DAGSTER_HOME": str(self.directory / "dagster"),
            "VIRTUAL_ENV": str(BIN.parent),
            "COLUMNS": "200",
            MARK: str(self.directory),
        }
        with (self.directory / "logs" / name).open("wb") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                cwd=self.directory,
                env=inherited | own,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process.log = Path(log.name)  # type: ignore[attr-defined]
        self.started.append(process)
        return process

    def run(self, *command: str, code: int = 0) -> str:
        """Run a command to its end; its output."""
        return self.finish(self.start(*command), code=code)

    def finish(self, process: subprocess.Popen[bytes], *, code: int = 0) -> str:
        """Wait for a command; its output."""
        ended = process.wait(timeout=PATIENCE_S)
        shown: str = process.log.read_text()  # type: ignore[attr-defined]
        assert ended == code, f"{process.args!r} ended with {ended}, not {code}:\n{shown}"
        return shown

    def put(self, job: str, name: str, rows: Sequence[Reading]) -> None:
        """Put a file into a feed, in one step."""
        columns = {key: [getattr(row, key) for row in rows] for key in ("n", "meter", "amount")}
        at = pa.array([row.at for row in rows], pa.timestamp("us", "UTC"))
        feed = self.directory / "feeds" / job
        pq.write_table(pa.table({**columns, "at": at}), feed / f".{name}")
        (feed / f".{name}").rename(feed / f"{name}.parquet")

    def signal(self, name: str, text: str = "") -> None:
        """Set a signal for the function of the jobs."""
        (self.directory / "signals" / name).write_text(text)

    def unsignal(self, name: str) -> None:
        """Remove a signal."""
        (self.directory / "signals" / name).unlink()

    def kill_who_waits(self) -> None:
        """SIGKILL to the run that waits for ``hold`` to go: the process that started the JVM its worker belongs to."""
        note = self.directory / "signals" / "held_by"
        until(note.exists, "a run that waits")
        worker = psutil.Process(int(note.read_text()))
        jvm = next(p for p in worker.parents() if p.name() == "java")
        jvm.parent().kill()
        jvm.wait(timeout=PATIENCE_S)  # ends with the process that it listens to
        note.unlink()
        self.unsignal("hold")

    # -- looking ---------------------------------------------------------------------------------------------------

    def runs(self, job: str) -> list[dg.DagsterRun]:
        """The runs of a job in Dagster, oldest first."""
        with self._instance() as instance:
            return list(reversed(instance.get_runs(dg.RunsFilter(job_name=job))))

    def _instance(self) -> dg.DagsterInstance:
        return dg.DagsterInstance.from_config(str(self.directory / "dagster"))

    def ended(self, job: str, status: dg.DagsterRunStatus, *, since: int = 0) -> list[dg.DagsterRun]:
        """Runs with this end, from the n-th on."""
        return [run for run in self.runs(job)[since:] if run.status == status]

    def history(self, job: str) -> JobHistory | None:
        """The committed rows of the job."""
        return read_history(str(self.directory / "state"), job)

    def path(self, job: str) -> list[CheckpointRow]:
        """The rows of the path to the head."""
        history = self.history(job)
        return history.path if history else []

    def rows_in(self, job: str) -> int:
        """The number of input rows on the path to the head."""
        return sum(row.rows_in for row in self.path(job))

    def results(self, job: str) -> dict[str, Any]:
        """Outputs, keyed state and operator state, each in an order of its own."""
        state = open_state.read_state(self.directory / "state", job, "totals", "total").to_pylist()
        [ref] = [ref for ref in self.path(job)[-1].operator_state if ref.operator == "totals"]
        [counts] = [state for state in ref.states if state.name == "seen"]
        parts = {(part.write_id, part.subtask) for part in counts.parts}
        table = DeltaTable(str(self.directory / "state" / job / "operator_state")).to_pyarrow_table()
        seen = [
            int(row["value"])
            for row in table.to_pylist()
            if row["state"] == "seen" and (row["write_id"], row["subtask"]) in parts
        ]
        return {
            "outputs": self.outputs(job),
            "total": sorted(tuple(row.values()) for row in state),
            "seen": sum(seen),
        }

    def outputs(self, job: str) -> list[tuple[int, str, int]]:
        """The rows of the sink."""
        table = DeltaTable(str(self.directory / "sinks" / job)).to_pyarrow_table()
        return sorted(tuple(row.values()) for row in table.select(["n", "meter", "total"]).to_pylist())

    def problems(self, job: str) -> list[str]:
        """Violations of what must hold for every job."""
        history = self.history(job)
        assert history is not None
        return [str(problem) for audit in RULES.values() for problem in audit(history).problems]

    def close(self) -> None:
        """Kill every process that was started here and is still alive, by its id."""
        for _ in range(3):  # one that is just being started shows up the next time
            alive = [p for p in psutil.process_iter() if self._is_ours(p)]
            for process in alive:
                process.kill()
            psutil.wait_procs(alive, timeout=10)
        for started in self.started:
            started.wait(timeout=10)

    def _is_ours(self, process: Any) -> bool:
        try:
            return bool(process.environ().get(MARK) == str(self.directory)) and process.pid != os.getpid()
        except (psutil.Error, OSError):
            return False


@contextmanager
def new_site(directory: Path) -> Iterator[Site]:
    """A site whose processes end with it."""
    site = Site(directory)
    try:
        yield site
    finally:
        site.close()
