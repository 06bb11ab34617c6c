"""PostgreSQL is killed at every step of a publish, with its connections; then plain runs: nothing is lost or twice.

A step is a statement that the engine sends, or a commit; the server dies before it or after it. It comes back at once,
or only when the operation has ended. A sample runs with ``make test-all``, everything with ``make test-faults``.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import sqlalchemy as sa

from state_engine import DataStream, SqlSink, SqlStateTable, StatefulJob
from state_engine.core.errors import StatelakeError
from state_engine.sinks.base import Sink
from tests.faults.sites import NUMBERS, Rows, Site, check, finish, in_this_process, perform
from tests.protocol.model_job import fold
from tests.support.postgres import PASSWORD_ENV, Server

# of a connection whose server died while rows came, the cursor cannot be closed
pytestmark = pytest.mark.filterwarnings("ignore:<psycopg.ServerCursor:ResourceWarning")
SINK, TABLE = "out_postgres", "totals"
OPERATIONS = ("first batch", "batch", "restore")
SAMPLE = 5
Back = Literal["at once", "later"]


@dataclass(frozen=True)
class Step:
    """Where the server dies."""

    number: int
    after: bool
    back: Back


@dataclass
class Plane:
    """Counts steps, and kills the server at one of them."""

    server: Server
    kill: Step | None = None
    steps: int = 0
    fired: bool = False

    def at(self, *, after: bool) -> None:
        """Come to a step."""
        self.steps += not after
        if self.kill is not None and (self.steps, after) == (self.kill.number, self.kill.after):
            self.fired = True
            self.server.kill()
            if self.kill.back == "at once":
                self.server.start()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """See every statement and commit of this process."""
        commit = sa.Connection.commit

        def committed(connection: sa.Connection) -> None:
            self.at(after=False)
            commit(connection)
            self.at(after=True)

        def before(*_: Any) -> None:
            self.at(after=False)

        def after(*_: Any) -> None:
            self.at(after=True)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sa.Connection, "commit", committed)
            sa.event.listen(sa.Engine, "before_cursor_execute", before)
            sa.event.listen(sa.Engine, "after_cursor_execute", after)
            try:
                yield
            finally:
                sa.event.remove(sa.Engine, "before_cursor_execute", before)
                sa.event.remove(sa.Engine, "after_cursor_execute", after)


@dataclass
class PostgresSite(Site):
    """A site with an output and a state in a database of a server."""

    sinks: tuple[str, ...] = ("out", "out_files", SINK)
    url: str = ""
    password: str = field(default="", repr=False)

    def job(self) -> StatefulJob:
        job = super().job()
        sums = DataStream(job, job.sinks[SINK].parent)
        sums.publish_state("total", SqlStateTable(self.url, TABLE, password_env=PASSWORD_ENV), name=TABLE)
        return job

    def _sink(self, name: str) -> Sink:
        assert name == SINK
        return SqlSink(self.url, SINK, lineage=True, password_env=PASSWORD_ENV)

    def shown(self, sink: str) -> Rows:
        if sink != SINK:
            return super().shown(sink)
        return Counter(self.selected(f"SELECT x, k, total FROM {SINK}"))

    def selected(self, query: str) -> list[tuple[Any, ...]]:
        """What somebody else reads in the database."""
        url = sa.make_url(self.url).set(drivername="postgresql+psycopg", password=self.password)
        with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(query))]

    def check(self) -> None:
        """Outputs and state are those of all numbers."""
        check(self)
        state, _ = fold(range(1, NUMBERS + 1))
        shown = self.selected(f"SELECT k, value FROM {TABLE} ORDER BY k")
        assert shown == sorted((key, total) for key, (total, _) in state.items())


class SavedSite:
    """A site before an operation, of which each case gets a copy."""

    def __init__(self, directory: Path, server: Server, operation: str) -> None:
        self.server, self.operation, self._directory = server, operation, directory
        url = server.new_database()
        self.site = PostgresSite(directory / "work", url=url, password=server.password)
        self._database = url.rsplit("/", 1)[-1]
        self.site.directory.mkdir()
        if operation != "first batch":
            with in_this_process():
                self.site.run(max_batches=2)
        shutil.copytree(self.site.directory, directory / "saved")
        server.run(f"CREATE DATABASE {self._database}_saved TEMPLATE {self._database}")

    def steps(self) -> int:
        """How many steps the operation has where nothing happens."""
        plane = self.tried(None)
        assert plane.steps > 5
        return plane.steps

    def tried(self, kill: Step | None) -> Plane:
        """Perform the operation on a copy, finish without faults, and check that nothing is lost or there twice."""
        shutil.rmtree(self.site.directory)
        shutil.copytree(self._directory / "saved", self.site.directory)
        self.server.run(f"DROP DATABASE {self._database} WITH (FORCE)")
        self.server.run(f"CREATE DATABASE {self._database} TEMPLATE {self._database}_saved")
        plane, why = Plane(self.server, kill), ""
        with in_this_process() as clock:
            with plane.installed():
                try:
                    perform(self.site, self.operation, clock)
                except StatelakeError as error:
                    why = str(error)
            if plane.fired and kill is not None and kill.back == "later":
                self.server.start()
            assert not why or "run again" in why.lower(), why
            finish(self.site, self.operation, clock, ended=not why)
            self.site.check()
        return plane


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server.started() as started:
        yield started


@pytest.fixture
def saved_site(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], SavedSite]:
    monkeypatch.setenv(PASSWORD_ENV, server.password)
    return lambda operation: SavedSite(tmp_path, server, operation)


def kills(saved: SavedSite) -> list[Step]:
    """Every place where the server can die; it comes back at once and later by turns."""
    backs: tuple[Back, ...] = ("at once", "later")
    return [
        Step(number, after, backs[(number + after) % 2])
        for number in range(1, saved.steps() + 1)
        for after in (False, True)
    ]


def try_all(saved: SavedSite, steps: list[Step]) -> None:
    """Try all, and say at once which went wrong."""
    wrong = []
    for step in steps:
        try:
            assert saved.tried(step).fired
        except Exception as error:
            wrong.append(f"{step}: {type(error).__name__}: {str(error)[:400]}")
            saved.server.stop()
            saved.server.start()
    assert not wrong, f"{len(wrong)} of {len(steps)} went wrong:\n" + "\n".join(wrong)


def test_a_sample_of_kills_changes_no_result(saved_site: Callable[[str], SavedSite]) -> None:
    saved = saved_site("batch")
    steps = kills(saved)
    try_all(saved, steps[:: len(steps) // SAMPLE])


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_kill_changes_a_result(operation: str, saved_site: Callable[[str], SavedSite]) -> None:
    saved = saved_site(operation)
    try_all(saved, kills(saved))
