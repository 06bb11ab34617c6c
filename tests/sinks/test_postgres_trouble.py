"""What a PostgreSQL server does to a publish: a cut connection, a deadlock, a full disk. Nothing is lost or twice.

That the whole server dies is tried at every step in ``tests/faults/test_postgres_kills.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from state_engine.core.errors import CommitFailedError
from state_engine.databases.ledger import LEDGER
from tests.sinks.databases import APP, Database
from tests.support.postgres import PASSWORD_ENV, Server
from tests.support.waiting import until

OTHERS = "pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
WAITING = f"SELECT 1 FROM {OTHERS} AND wait_event_type = 'Lock'"


@contextmanager
def after_statement(word: str, then: Callable[[], None]) -> Iterator[None]:
    """Do something once, after the first statement that has a word."""
    done: list[str] = []

    def after(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if word in statement and not done:
            done.append(statement)
            then()

    sa.event.listen(sa.Engine, "after_cursor_execute", after)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "after_cursor_execute", after)
    assert done


@pytest.mark.parametrize("word", [f"UPDATE {LEDGER}", "INSERT INTO delays"])
def test_a_connection_that_is_cut_in_a_transaction(postgres: Database, word: str) -> None:
    mine = postgres.staged("w1", [1], [2])

    def cut() -> None:
        postgres.run(f"SELECT pg_terminate_backend(pid) FROM {OTHERS}")

    with (
        after_statement(word, cut),
        pytest.raises(CommitFailedError, match=r"checkpoint 1 was not written to .*terminating.*; run again"),
    ):
        postgres.publisher.publish(mine, APP, 1)
    assert postgres.ids() == []
    for _ in range(2):
        postgres.publisher.publish(mine, APP, 1)
        assert postgres.ids() == [1, 2]


def test_a_deadlock_with_another_writer(postgres: Database) -> None:
    mine = postgres.staged("w1", [1])
    with postgres.connected() as other, ThreadPoolExecutor(1) as pool:
        other.execute(
            sa.text("SET deadlock_timeout = '60s'")
        )  # so that the publish is the one that has to give way
        other.execute(sa.text("LOCK TABLE delays IN ACCESS EXCLUSIVE MODE"))
        publish = pool.submit(postgres.publisher.publish, mine, APP, 1)
        until(lambda: postgres.run(WAITING), "the publish waits for the table")
        other.execute(sa.text(f"UPDATE {LEDGER} SET checkpoint_id = 1 WHERE writer = '{APP}'"))
        with pytest.raises(CommitFailedError, match=r"checkpoint 1 was not written to .*deadlock.*run again"):
            publish.result()
        other.rollback()
    assert postgres.ids() == []
    postgres.publisher.publish(mine, APP, 1)
    assert postgres.ids() == [1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server.started(disk_mb=8) as server:
        monkeypatch.setenv(PASSWORD_ENV, server.password)
        db = Database(tmp_path, server.new_database(), PASSWORD_ENV, server.password)
        db.run(
            "CREATE TABLE ballast TABLESPACE small AS SELECT repeat('x', 1000) FROM generate_series(1, 6500)"
        )
        db.run("CREATE TABLE delays (id bigint, text text) TABLESPACE small")
        mine = db.staged("w1", [(i, "y" * 1000) for i in range(2000)])
        with pytest.raises(CommitFailedError, match=r"checkpoint 1 was not written to .*No space left.*run"):
            db.publisher.publish(mine, APP, 1)
        assert db.ids() == []
        db.run("DROP TABLE ballast")
        db.publisher.publish(mine, APP, 1)
        assert len(db.ids()) == 2000
