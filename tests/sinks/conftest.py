"""Databases for tests of ``SqlSink``: SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sinks.databases import Database
from tests.support.postgres import PASSWORD_ENV, Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server.started() as started:
        yield started


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """An empty database, and a root to stage in."""
    if request.param == "sqlite":
        return Database(tmp_path, f"sqlite:///{tmp_path}/out.db")
    running: Server = request.getfixturevalue("server")
    monkeypatch.setenv(PASSWORD_ENV, running.password)
    return Database(tmp_path, running.new_database(), PASSWORD_ENV, running.password)


@pytest.fixture
def lite(tmp_path: Path) -> Database:
    """What does not depend on the database."""
    return Database(tmp_path, f"sqlite:///{tmp_path}/out.db")


@pytest.fixture
def postgres(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """What depends on PostgreSQL."""
    monkeypatch.setenv(PASSWORD_ENV, server.password)
    return Database(tmp_path, server.new_database(), PASSWORD_ENV, server.password)
