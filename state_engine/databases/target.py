"""Which table of which database is written to, and how: what a checkpoint records of it.

The URL is recorded without a password. The password is in an environment variable, whose name is recorded, or where
the driver itself looks for one (for PostgreSQL a ``.pgpass`` file). A URL that holds one is refused: it would end up
in code, logs and checkpoints.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from state_engine.core.errors import ConfigurationError, SinkError
from state_engine.core.types.column_names import check_distinct

if TYPE_CHECKING:
    from sqlalchemy import URL

_MOST_BYTES = 63
"""Of a name in PostgreSQL."""
_DRIVERS = {"sqlite": "pysqlite", "postgresql": "psycopg"}
"""The databases that this is tested with, and the driver of each."""


@dataclass(frozen=True)
class SqlTarget:
    """One table.

    Attributes:
        url: of the database, without password; of SQLite with an absolute path.
        table, schema: its name; None for the default schema of the database.
        key: columns that identify the row that another replaces; empty where rows are appended.
        lineage: whether the column ``_write_id`` names the attempt that wrote a row.
    """

    url: str
    table: str
    schema: str | None = None
    key: tuple[str, ...] = ()
    lineage: bool = False
    password_env: str | None = None

    @property
    def digest(self) -> str:
        """Names the table, whatever is done to it."""
        return hashlib.sha256(repr((self.url, self.schema, self.table)).encode()).hexdigest()[:16]

    @property
    def shown(self) -> str:
        name = f"{self.schema}.{self.table}" if self.schema else self.table
        return f"table {name} of {self.url}"

    @property
    def is_new_file(self) -> bool:
        """Whether it is of SQLite, and its file is not there yet: to connect would make it."""
        backend, _, path = self.url.partition(":///")
        return backend.startswith("sqlite") and not Path(path).exists()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "key": list(self.key)}

    @staticmethod
    def from_json(stored: dict[str, Any]) -> SqlTarget:
        return replace(SqlTarget(**stored), key=tuple(stored["key"]))

    def password(self) -> str | None:
        """As it is now."""
        if self.password_env is None:
            return None
        # a secret must not pass through jobs and checkpoints, so the one place that uses it asks for it
        value = os.environ.get(self.password_env)
        if value is None:
            raise SinkError(
                f"{self.shown}: the environment variable {self.password_env}, which holds the password, is not set. "
                "Set it and run again; nothing is lost"
            )
        return value


def lineage_of(write_id: str, sink: str) -> str:
    """What ``_write_id`` holds: two sinks of a job may write to one table in one attempt.

    Example:
        >>> lineage_of("0199aa", "delays")
        '0199aa/delays'
    """
    return f"{write_id}/{sink}"


def checked_table(name: str, *, of: str = "SqlSink") -> str:
    """The name of a table; raises ConfigurationError where it cannot be one."""
    if not isinstance(name, str) or not name or "." in name:
        raise ConfigurationError(
            f"{of}: {name!r} cannot be the name of the table; its schema goes into schema="
        )
    return name


def check_names(target: SqlTarget, names: Iterable[str], *, what: str) -> None:
    """Refuse names of columns that the database cannot have, would cut, or does not distinguish."""
    for name in filter(None, (target.table, target.schema)):
        _check_length(name, target, what=what)
    for name in names:
        if not name or "\0" in name:
            raise ConfigurationError(
                f"{what}: {name!r} cannot be the name of a column of a database: rename it in a map or transform before"
            )
        _check_length(name, target, what=what)
    if target.url.startswith("sqlite"):
        check_distinct(names, what=what, of="SQLite")


def _check_length(name: str, target: SqlTarget, *, what: str) -> None:
    size = len(name.encode())
    if size > _MOST_BYTES and not target.url.startswith("sqlite"):
        raise ConfigurationError(
            f"{what}: PostgreSQL cuts names behind byte {_MOST_BYTES}, and {name!r} is longer: give it a shorter one"
        )


def checked_url(text: str, *, of: str = "SqlSink") -> str:
    """A URL that can be recorded.

    Example:
        >>> checked_url("postgresql://etl@db.example/reports")
        'postgresql+psycopg://etl@db.example/reports'
        >>> checked_url("sqlite:////data/reports.db")
        'sqlite:////data/reports.db'
    """
    # loaded by jobs that have such a sink only: it takes as long to import as much of the engine
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            f"the url of a {of} is not one: use sqlite:////absolute/path or postgresql://user@host/database"
        ) from None
    if url.password is not None or any("password" in name.lower() for name in url.query):
        raise ConfigurationError(
            f"the url of a {of} holds a password: leave it out, and name the environment variable that holds it "
            "with password_env="
        )
    backend, driver = url.get_backend_name(), _DRIVERS.get(url.get_backend_name())
    if driver is None or url.get_driver_name() != driver:
        raise ConfigurationError(
            f"{of} does not write to {url.drivername}: it is tested with SQLite (sqlite:////path) and PostgreSQL "
            "(postgresql://user@host/database, driver psycopg) only"
        )
    if backend == "postgresql":
        return url.set(drivername=f"{backend}+{driver}").render_as_string()
    return _sqlite(url, of)


def _sqlite(url: URL, of: str) -> str:
    if not url.database or url.database == ":memory:" or url.database.startswith("file:") or url.query:
        raise ConfigurationError(
            f"{of} needs an SQLite database in a file that it can find again: sqlite:////absolute/path, no parameters"
        )
    return f"sqlite:///{os.path.realpath(os.path.expanduser(url.database))}"
