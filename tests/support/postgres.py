"""A PostgreSQL server for tests, from the programs that Debian's package brings."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa

from tests.support.ports import free_port

PASSWORD_ENV = "STATELAKE_TEST_SINK_PASSWORD"


def postgres_binaries() -> Path | None:
    """Directory of the newest ``postgres``; None where there is none."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: int(p.parts[-3]))
    return binaries[-1].parent if binaries else None


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        port: on the loopback interface.
        password: of the user ``etl``.
    """

    port: int
    password: str
    _numbers: Iterator[int] = field(default_factory=count, repr=False)

    @staticmethod
    @contextmanager
    def started() -> Iterator[Server]:
        """A server with an empty cluster, stopped and removed in the end."""
        binaries = postgres_binaries()
        assert binaries is not None
        # not below pytest's directory, which only its owner may enter: PostgreSQL refuses to run as root
        directory, user = Path(tempfile.mkdtemp(prefix="statelake-postgres-")), None
        if os.geteuid() == 0:
            user = "postgres" if "postgres" in {p.pw_name for p in pwd.getpwall()} else "nobody"
            shutil.chown(directory, user)
        server = Server(free_port(), uuid4().hex)
        secret, data, log = directory / "secret", directory / "data", directory / "log"
        secret.write_text(server.password)
        secret.chmod(0o644)
        make = ["initdb", "-D", str(data), "-U", "etl", "-A", "scram-sha-256", f"--pwfile={secret}", "-N"]
        options = f"-p {server.port} -h 127.0.0.1 -k {directory} -c fsync=off"
        control = ["pg_ctl", "-D", str(data), "-w", "-l", str(log)]

        def run(command: list[str]) -> None:
            subprocess.run(
                [binaries / command[0], *command[1:]],
                check=True,
                user=user,
                cwd=directory,
                stdout=subprocess.DEVNULL,
            )

        try:
            run(make)
            run([*control, "-o", options, "start"])
            try:
                yield server
            finally:
                run([*control, "-m", "immediate", "stop"])
        finally:
            shutil.rmtree(directory)

    def new_database(self) -> str:
        """URL, without password, of an empty database."""
        name = f"test_{next(self._numbers)}"
        url = sa.URL.create("postgresql+psycopg", "etl", self.password, "127.0.0.1", self.port, "postgres")
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name}"))
        return f"postgresql://etl@127.0.0.1:{self.port}/{name}"
