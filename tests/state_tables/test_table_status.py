"""What ``statelake status`` says of published tables: without Java, in words and as plain data."""

from __future__ import annotations

import json
import shutil
import time
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from sqlalchemy import create_engine, text

from state_engine import SqlStateTable, StatefulJob
from state_engine.cli.explain import history_lines
from state_engine.cli.status import notes
from state_engine.core.errors import TableChangedError
from state_engine.dagster.job_health import describe
from state_engine.monitoring.job_history import read_history
from state_engine.monitoring.job_status import JobStatus, status_of_history
from state_engine.publishing.published_tables import PublishedTables
from tests.state_tables.histories import Site, random_rows


class Watched(Site):
    """A site with a table in a database as well."""

    @property
    def database(self) -> str:
        return f"sqlite:///{self.directory}/tables.db"

    def job(self) -> StatefulJob:
        job = super().job()
        balances = job.stream(job.operators["balances"])
        balances.publish_state("balance", SqlStateTable(self.database, "balance"), name="in_database")
        return job

    def status(self, job: StatefulJob | None = None) -> JobStatus:
        history = read_history(self.engine.root, "shops")
        return status_of_history(
            "shops",
            history,
            job=job or self.job(),
            now_ms=time.time_ns() // 1_000_000,
            stuck_after=timedelta(hours=1),
        )


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Watched:
    made = Watched.begun(tmp_path, spark, seed=1, rows=12)
    made.engine.run(made.job())
    return made


def test_tables_that_show_the_head(site: Watched) -> None:
    status, head = site.status(), site.path[-1].checkpoint_id
    assert (status.state, status.unpublished, status.left_alone) == ("ok", (), {})
    assert [table.name for table in status.tables] == ["balance", "per_shop", "all_numbers", "in_database"]
    assert {table.shown_id for table in status.tables} == {head}
    assert f"table balance at file://{site.table('balance')} shows checkpoint {head}" in notes(status)[0]
    [*_, in_database] = json.loads(json.dumps(status.to_json()))["tables"]
    assert in_database == {
        "name": "in_database", "place": f"{site.database}#balance", "shown_id": head, "missing": [], "changed": "",
    }  # fmt: skip


def test_what_changes_no_state_leaves_no_table_behind(site: Watched) -> None:
    shown = site.path[-1].checkpoint_id
    site.engine.rescale(site.job(), parallelism=2)
    status = site.status()
    assert (status.state, status.head_id) == ("ok", shown + 1)
    assert {(table.shown_id, table.missing) for table in status.tables} == {(shown, ())}


def test_tables_that_lag_make_a_job_unpublished(site: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = site.path[-1].checkpoint_id
    monkeypatch.setattr(PublishedTables, "follow", lambda *_: [])
    site.rows += random_rows(site.chance, 6)
    site.engine.run(site.job())
    status = site.status()
    assert (status.state, status.unpublished, status.exit_code) == (
        "unpublished",
        (shown + 1, shown + 2),
        1,
    )
    assert f"shows checkpoint {shown}, 2 behind the head" in notes(status)[0]
    assert "[5, 6] are committed, and not published: run the job" in describe(status)


def test_tables_that_somebody_changed_are_named_with_the_ways_out(site: Watched) -> None:
    DeltaTable(site.table("per_shop")).delete()
    with create_engine(site.database).begin() as connection:
        connection.execute(text("DELETE FROM balance"))
    status = site.status()
    assert (status.state, status.exit_code) == ("changed", 1)
    by_name = {table.name: table.changed for table in status.tables}
    assert "DELETE by delta-rs" in by_name["per_shop"]
    assert "statelake rebuild-table shops per_shop" in by_name["per_shop"]
    assert "it is empty, and was not" in by_name["in_database"]
    assert (by_name["balance"], by_name["all_numbers"]) == ("", "")
    assert "DELETE by delta-rs" in describe(status)
    site.rows += random_rows(site.chance, 3)
    with pytest.raises(TableChangedError):
        site.engine.run(site.job())
    status = site.status()
    assert (status.state, status.unpublished) == ("unpublished", (5,))
    assert any(
        "shows checkpoint 4, 1 behind the head. table 'per_shop': version" in note for note in notes(status)
    )
    for name in ("per_shop", "in_database"):
        site.engine.published(site.job()).rebuild(name)
    site.engine.publish_pending(site.job())
    assert site.status().state == "ok"


def test_a_table_that_is_gone_and_one_that_the_code_does_not_have(site: Watched) -> None:
    shutil.rmtree(site.table("balance"))
    status = site.status()
    assert (status.state, status.unpublished) == ("unpublished", (4,))
    assert "is not there yet" in notes(status)[0]
    fewer = site.job()
    del fewer.published["balance"]
    status = site.status(fewer)
    assert status.state == "ok"
    assert status.left_alone == {"balance": f"file://{site.table('balance')}"}
    assert [table.name for table in status.tables] == ["per_shop", "all_numbers", "in_database"]


def test_explain_says_which_tables_show_a_state(site: Watched) -> None:
    history = site.engine.explain(site.job(), site.rows[-1][0])
    shown = {state.state: set(state.tables) for state in history.events[-1].states}
    assert shown["balance"] == {"balance", "in_database"}
    assert shown["numbers"] == {"all_numbers"}
    assert any("state balances.balance, shown by table balance" in line for line in history_lines(history))
