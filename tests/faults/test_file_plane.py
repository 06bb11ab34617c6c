"""Every file access of every operation fails in every way; then plain runs: nothing is lost, doubled, or in the way.

The engine is the real one; Spark jobs run in this process, and so do commits (``log_kernel``), so that what Delta's
log store writes is behind the plane, too. A sample runs with ``make test``, everything with ``make test-faults``.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from state_engine import DataStream, SqlSink, StateEngine, StatefulJob
from state_engine.backends.delta import locks
from state_engine.backends.delta.layout import JobLayout
from state_engine.core import lineage
from state_engine.core.errors import StatelakeError
from state_engine.core.retention import RetentionPolicy
from state_engine.runtime import maintenance, savepoints
from state_engine.runtime.executor import GraphExecutor
from tests.faults.file_plane import Access, Plane, What, installed
from tests.faults.log_kernel import NO_SPARK, LogKernel
from tests.protocol import model_job
from tests.protocol.model_job import JOB, build, execute, fold, numbers_read, stored_state
from tests.protocol.passing_time import Clock
from tests.protocol.verdict import delta_rows, file_rows

NUMBERS = 6
CLOCK_MS = 1_000_000
OPERATIONS = ("first batch", "batch", "restore", "compact", "retain", "collect", "savepoint", "import")


# -- the ground --------------------------------------------------------------------------------------------------------


@dataclass
class Site:
    """A directory with a root and three sinks."""

    directory: Path

    def engine(self, *, lock_timeout_s: float = 5.0) -> StateEngine:
        engine = StateEngine(self.directory / "root", NO_SPARK)
        engine._kernel = LogKernel(lock_timeout_s=lock_timeout_s)
        return engine

    def job(self) -> StatefulJob:
        job = build(self.directory, numbers=NUMBERS, at_once=2, parallelism=2, files=True)
        stream = next(iter(job.sinks.values())).parent
        DataStream(job, stream).sink(
            "out_sql", SqlSink(f"sqlite:///{self.directory}/out.db", "out", lineage=True)
        )
        return job

    def run(self, **options: Any) -> Any:
        with self.engine() as engine:
            return engine.run(self.job(), clock=CLOCK_MS, **options)


@contextmanager
def in_this_process() -> Iterator[Clock]:
    """Spark jobs and waits for locks are made short."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        clock.rule(patch)
        patch.setattr(GraphExecutor, "execute", execute)
        patch.setattr(maintenance, "write_base", model_job.fold_base)
        patch.setattr(savepoints, "write_base", model_job.fold_base)
        patch.setitem(locks.table_lock.__wrapped__.__kwdefaults__, "timeout_s", 0.05)  # type: ignore[attr-defined]
        yield clock


def prepare(site: Site, operation: str, clock: Clock) -> None:
    """What there is before an operation."""
    if operation == "first batch":
        return
    site.run(max_batches=2)
    if operation == "collect":
        with site.engine() as engine:
            engine.compact(JOB)
            engine.restore(JOB, 1)
        site.run(max_batches=1)
        with site.engine() as engine:
            engine.retain(JOB, RetentionPolicy(keep_last=1))
    if operation == "import":
        with site.engine() as engine:
            engine.savepoint(JOB, "safe", site.directory / "safe")
        shutil.rmtree(site.directory / "root")
        for sink in ("out", "out_files"):
            shutil.rmtree(site.directory / sink)
        (site.directory / "out.db").unlink()


def perform(site: Site, operation: str, clock: Clock) -> None:
    """Do it once, with an engine of its own."""
    with site.engine() as engine:
        match operation:
            case "first batch" | "batch":
                engine.run(site.job(), clock=CLOCK_MS, max_batches=1)
            case "restore":
                engine.restore(JOB, 1)
            case "compact":
                engine.compact(JOB)
            case "retain":
                engine.retain(JOB, RetentionPolicy(keep_last=1))
            case "collect":
                engine.collect(site.job(), clock=clock.now_ms, vacuum=False)
            case "savepoint":
                engine.savepoint(JOB, "safe", site.directory / "safe")
            case "import":
                engine.restore(site.job(), savepoint=site.directory / "safe")


def finish(site: Site, operation: str, clock: Clock, *, ended: bool) -> None:
    """What an operator does afterwards, without any fault: again what did not end, and run on."""
    if not ended and operation not in ("first batch", "batch"):
        if operation == "savepoint":
            with site.engine() as engine, suppress(StatelakeError):
                engine.delete_savepoint(JOB, "safe")
        done = operation == "import" and _has_rows(site)
        if operation == "savepoint" and (site.directory / "safe").exists():
            shutil.rmtree(site.directory / "safe")  # what the message says
        if not done:
            perform(site, operation, clock)
    site.run()


def _has_rows(site: Site) -> bool:
    with site.engine() as engine:
        return bool(engine.checkpoints(JOB))


def check(site: Site) -> None:
    """State and sinks hold what the numbers say: nothing lost, nothing doubled."""
    with site.engine() as engine:
        rows = {row.checkpoint_id: row for row in engine.checkpoints(JOB)}
        path = lineage.path(rows, max(rows))
        imported = rows[1].kind == "import"  # else a rival began in the empty root
        read = [4 + i for i in range(1, 3)] if imported else list(range(1, NUMBERS + 1))
        state, outputs = fold(range(1, NUMBERS + 1))
        if not imported:
            assert list(numbers_read(path)) == read
        assert stored_state(JobLayout(engine.root, JOB), path) == state
    expected = Counter(row for row in outputs if row[0] in read)
    assert delta_rows(site.directory / "out") == expected
    assert file_rows(site.directory / "out_files") == expected
    with sqlite3.connect(site.directory / "out.db") as database:
        assert Counter(database.execute("select x, k, total from out")) == expected


# -- cases -------------------------------------------------------------------------------------------------------------


@dataclass
class Ground:
    """Where an operation is tried: always in the same directory, as sinks are recorded by path."""

    site: Site
    saved: Path
    operation: str
    accesses: list[Access]

    @classmethod
    def made(cls, base: Path, operation: str) -> Ground:
        site, saved = Site(base / "work"), base / "saved"
        site.directory.mkdir()
        with in_this_process() as clock:
            prepare(site, operation, clock)
            shutil.copytree(site.directory, saved)
            ground = cls(site, saved, operation, [])
            _late(clock, operation)
            with installed(Plane(str(site.directory))) as plane:
                perform(site, operation, clock)
            finish(site, operation, clock, ended=True)
            check(site)
        ground.accesses = sorted(set(plane.accesses))
        return ground

    def attempt(self, access: Access, what: What) -> str:
        """Try one case; how the operation that met it ended."""
        shutil.rmtree(self.site.directory)
        shutil.copytree(self.saved, self.site.directory)
        with in_this_process() as clock:
            _late(clock, self.operation)

            def rival() -> None:
                with suppress(StatelakeError), self.site.engine(lock_timeout_s=0.05) as engine:
                    engine.run(self.site.job(), clock=CLOCK_MS, max_batches=1)

            ended: Exception | None = None
            with installed(Plane(str(self.site.directory), access, what, rival)) as plane:
                try:
                    perform(self.site, self.operation, clock)
                except StatelakeError as error:
                    ended = error
            if not plane.fired:
                return "not reached"
            if what == "fail" and ended is not None:
                assert f"job '{JOB}'" in str(ended), f"names no job: {ended}"
                assert "/" in str(ended), f"names no path: {ended}"
                assert "committed" in str(ended), f"does not say what was kept: {ended}"
            finish(self.site, self.operation, clock, ended=ended is None)
            check(self.site)
        return "went on" if ended is None else type(ended).__name__


def _late(clock: Clock, operation: str) -> None:
    if operation == "collect":
        clock.pass_hours(25)


Grounds = Callable[[str], Ground]


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Grounds:
    made: dict[str, Ground] = {}

    def ground(operation: str) -> Ground:
        if operation not in made:
            made[operation] = Ground.made(tmp_path_factory.mktemp("site"), operation)
        return made[operation]

    return ground


def tried(ground: Ground, *, every: int = 1) -> Counter[tuple[str, str, str]]:
    """Try all cases of an operation, or one of ``every``; how many of each access and fault ended how."""
    found: Counter[tuple[str, str, str]] = Counter()
    cases = [(access, what) for access in ground.accesses for what in access.happens()]
    wrong = []
    for access, what in cases[::every]:
        try:
            found[access.kind, what, ground.attempt(access, what)] += 1
        except Exception as error:
            wrong.append(f"{what} {access}: {type(error).__name__}: {str(error)[:400]}")
    assert not wrong, f"{len(wrong)} of {len(cases[::every])} cases went wrong:\n" + "\n".join(wrong)
    return found


@pytest.mark.parametrize("operation", ["first batch", "batch"])
def test_a_sample_of_file_faults_changes_no_result(operation: str, grounds: Grounds) -> None:
    found = tried(grounds(operation), every=67)
    assert sum(found.values()) >= 5


@pytest.mark.faults
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_file_fault_changes_no_result(
    operation: str, grounds: Grounds, capsys: pytest.CaptureFixture[str]
) -> None:
    ground = grounds(operation)
    found = tried(ground)
    with capsys.disabled():
        print(f"\n{operation}: {len(ground.accesses)} accesses, {sum(found.values())} cases, 0 wrong")
        for (kind, what, end), count in sorted(found.items()):
            print(f"  {kind:10} {what:6} {end:22} {count}")
    assert {kind for kind, _, _ in found} >= {"look", "read", "write", "move", "sync"}
