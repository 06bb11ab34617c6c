"""Databases for tables that show a keyed state: SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.state_tables.sql_world import World
from tests.support.postgres import PASSWORD_ENV, Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server of its own."""
    with Server.started() as started:
        yield started


@pytest.fixture(scope="session")
def database(server: Server) -> str:
    """One database: to make one takes longer than most tests."""
    return server.new_database()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A database without tables."""
    return request.getfixturevalue("lite" if request.param == "sqlite" else "postgres")


@pytest.fixture
def lite(tmp_path: Path) -> World:
    """What does not depend on the database."""
    return World(f"sqlite:///{tmp_path}/out.db")


@pytest.fixture
def postgres(server: Server, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """What depends on PostgreSQL."""
    monkeypatch.setenv(PASSWORD_ENV, server.password)
    world = World(database, PASSWORD_ENV, server.password)
    world.run("DROP SCHEMA IF EXISTS reports CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    yield world
    world.engine.dispose()


@pytest.fixture
def also_postgres(postgres: World) -> dict[str, Any]:
    """A real PostgreSQL beside SQLite."""
    options = {"url": postgres.url, "password_env": postgres.password_env}
    password = postgres.engine.url.password
    assert password is not None
    return {"databases": {"postgres": options}, "passwords": {"postgres": password}}
