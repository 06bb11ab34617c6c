"""Keys that are erased leave the tables that show their states, and the files of these: what readers see is not all."""

from __future__ import annotations

import json
import random
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from state_engine import (
    DeltaStateTable,
    ErasedTable,
    KeyedProcessFunction,
    RuntimeContext,
    SqlStateTable,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.cli.main import app
from state_engine.core.errors import TableChangedError
from state_engine.state_tables.delta import DeltaStateTarget
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.delta.log import DeltaLog
from tests.state_tables.histories import TABLES, Site, model, random_rows, rows_of, vacuum
from tests.support.killed import Killed

ERASED = "b"
"""The key that is erased: ``histories`` has it in every table."""


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Site:
    """A site that has run to the end; a deletion vector hides a row of the key in a file that other keys are in."""
    chance = random.Random(7)
    rows = [*random_rows(chance, 6), *((key, 1, "x") for key in "byzbac")]
    made = Site(tmp_path, rows, StateEngine(tmp_path / "root", spark=spark), chance)
    made.engine.run(made.job())
    assert all(any(row[0] == ERASED for row in rows) for rows in made.shown().values())
    return made


def current(table: str) -> list[Path]:
    """The data files of the newest version."""
    newest = DeltaLog(f"file://{table}").newest()
    assert newest is not None
    return [Path(table) / path for path in newest.files]


def rows_in(files: list[Path], key: str = ERASED) -> int:
    """How many rows of files have a key, read past all deletion vectors."""
    return sum(pq.ParquetFile(file).read()["k"].to_pylist().count(key) for file in files)


def on_disk(table: str) -> int:
    return rows_in(list(Path(table).glob("*.parquet")))


def without_key(site: Site) -> dict[str, list[tuple[Any, ...]]]:
    return {name: [row for row in rows if row[0] != ERASED] for name, rows in model(site.rows).items()}


def erase(site: Site, key: str = ERASED, **options: Any) -> dict[str, ErasedTable]:
    report = site.engine.state_processor("shops").erase_keys({"k": key}, **options)
    return {table.name: table for table in report.tables}


def test_no_file_of_the_newest_version_holds_an_erased_key(site: Site) -> None:
    shown = site.shown()
    rows = {name: sum(row[0] == ERASED for row in shown[name]) for name in TABLES}
    hidden = rows_in(current(site.table("balance"))) - rows["balance"]
    assert hidden > 0, "a deletion vector hides earlier balances"

    planned = erase(site, dry_run=True)
    assert site.shown() == shown
    assert {name: table.rows for name, table in planned.items()} == rows
    assert all(table.files > 0 for table in planned.values())

    done = erase(site)
    assert site.shown() == without_key(site)
    for name in TABLES:
        assert rows_in(current(site.table(name))) == 0
        assert on_disk(site.table(name)) > 0, "older versions hold it"
        assert (done[name].rows, done[name].files) == (planned[name].rows, planned[name].files)
        assert done[name].older_files >= planned[name].files
    site.rows += [(ERASED, 4, "x")]
    site.engine.run(site.job())
    again = [(ERASED, 4)]
    assert site.shown()["balance"] == sorted(without_key(site)["balance"] + again)


def test_the_rewriting_commit_changes_no_row(site: Site) -> None:
    """So what reads the table's changes, as a streaming query does, sees the rows go once."""
    erase(site)
    log = DeltaLog(f"file://{site.table('balance')}")
    before, last = (log.commit(version) for version in log.versions[-2:])
    assert before.transactions
    assert before.changes_data
    assert not last.transactions
    assert not last.changes_data
    assert last.removed


def test_a_table_without_the_key_is_left_as_it_is(site: Site) -> None:
    versions = [DeltaTable(site.table(name)).version() for name in TABLES]
    done = erase(site, "nobody")
    assert [(t.rows, t.files, t.older_files, t.kept_until, t.remedy) for t in done.values()] == [
        (0, 0, 0, None, "")
    ] * 3
    assert [DeltaTable(site.table(name)).version() for name in TABLES] == versions


def test_files_without_hashes_are_looked_through(site: Site, spark: SparkSession) -> None:
    """OPTIMIZE by Spark and by delta-rs writes files without the column of hashes."""
    spark.sql(f"OPTIMIZE delta.`{site.table('balance')}`")
    DeltaTable(site.table("per_shop")).optimize.compact()
    for name in ("balance", "per_shop"):
        (file,) = current(site.table(name))
        assert "_key_hash" not in pq.read_schema(file).names
    done = erase(site)
    assert (done["balance"].files, done["per_shop"].files) == (1, 1)
    assert site.shown() == without_key(site)
    assert all(rows_in(current(site.table(name))) == 0 for name in TABLES)


def test_the_report_says_until_when_older_versions_stay_and_vacuum_takes_them_away(
    site: Site, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = site.table("balance")
    began = datetime.now(UTC)
    done = erase(site)["balance"]
    assert done.kept_until is not None
    week = timedelta(days=7)
    assert began + week <= done.kept_until.replace(microsecond=0) + timedelta(seconds=1)
    assert done.kept_until <= datetime.now(UTC) + week
    assert f"VACUUM delta.`file://{path}`, from {done.kept_until:%Y-%m-%d}" in done.remedy

    again = erase(site)["balance"]
    assert (again.rows, again.files) == (0, 0)
    assert (again.older_files, again.kept_until) == (done.older_files, done.kept_until)

    vacuum(spark, path)
    assert on_disk(path) > 0, "within its retention nothing goes"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaStateTarget, "_check_unchanged", lambda *_: None)
        spark.sql(
            f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES "
            "('delta.deletedFileRetentionDuration' = 'interval 2 hours')"
        )
        shorter = erase(site)["balance"]
        assert shorter.kept_until == done.kept_until - week + timedelta(hours=2)
    vacuum(spark, path, retained_hours=0)
    assert on_disk(path) == 0
    last = erase(site)["balance"]
    assert (last.older_files, last.kept_until, last.remedy) == (0, None, "")
    assert site.shown() == without_key(site)


def test_files_of_a_crashed_writer_count_as_older_ones(site: Site) -> None:
    erase(site)
    before = erase(site)["balance"].older_files
    old = next(file for file in Path(site.table("balance")).glob("*.parquet") if rows_in([file]))
    (Path(site.table("balance")) / "part-cut.parquet").write_bytes(b"PAR1")
    (Path(site.table("balance")) / "part-orphan.parquet").write_bytes(old.read_bytes())
    assert erase(site)["balance"].older_files == before + 2


@pytest.mark.parametrize(
    ("step", "after"),
    [
        (1, True),
        (3, False),
        *(pytest.param(s, a, marks=pytest.mark.long) for s in range(6) for a in (False, True)),
    ],
)
def test_a_repeated_call_finishes_what_a_crash_left(site: Site, step: int, after: bool) -> None:
    """Three commits bring tables to the head, three rewrite their files: each is broken, before and after it."""
    commit, calls = DeltaStateTarget._commit, iter(range(100))

    def failing(self: DeltaStateTarget, *given: Any, **options: Any) -> None:
        if next(calls) != step:
            commit(self, *given, **options)
        else:
            if after:
                commit(self, *given, **options)
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaStateTarget, "_commit", failing)
        # the table without deletion vectors holds no file of the key after its publish
        if step < 5:
            with pytest.raises(Killed):
                erase(site)
        else:
            erase(site)
    site.engine.close()
    site.engine = StateEngine(site.directory / "root", spark=site.engine.context.session)
    erase(site)
    assert site.shown() == without_key(site)
    for name in TABLES:
        assert rows_in(current(site.table(name))) == 0
        log = DeltaLog(f"file://{site.table(name)}")
        commits = [log.commit(version) for version in log.versions]
        assert sum(not c.changes_data and bool(c.removed) for c in commits) == (name != "per_shop"), "once"


def test_another_writer_that_is_faster_is_followed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, faster = DeltaKernel.commit_upon, iter([True])

    def late(self: DeltaKernel, files: Any, actions: Any, **options: Any) -> int:
        rewrites = files.uri.endswith("balance") and not options.get("transactions")
        if rewrites and next(faster, False):
            DeltaTable(site.table("balance")).alter.set_table_properties(
                {"note": "1"}, raise_if_not_exists=False
            )
        return commit(self, files, actions, **options)

    monkeypatch.setattr(DeltaKernel, "commit_upon", late)
    erase(site)
    assert next(faster, False) is False
    assert rows_in(current(site.table("balance"))) == 0


def test_nothing_is_erased_where_somebody_else_changed_a_table(site: Site) -> None:
    pl.read_delta(site.table("per_shop")).head(1).write_delta(site.table("per_shop"), mode="append")
    head = site.path[-1].checkpoint_id
    with pytest.raises(TableChangedError, match="rebuild-table shops per_shop"):
        erase(site)
    assert site.path[-1].checkpoint_id == head
    site.engine.published("shops").rebuild("per_shop")
    erase(site)
    assert site.shown() == without_key(site)


def test_rows_that_the_state_does_not_have_go_too(site: Site) -> None:
    """A table that was kept at a restore shows keys of which the state knows nothing."""
    first = site.path[0].checkpoint_id
    site.engine.restore("shops", checkpoint_id=first, outputs=dict.fromkeys(TABLES, "keep"))
    key = next(
        row[0] for row in site.shown()["balance"] if row[0] not in {r[0] for r in site.expected()["balance"]}
    )
    shown = site.shown()
    done = erase(site, key)
    assert {name: table.rows for name, table in done.items()} == {
        name: sum(row[0] == key for row in shown[name]) for name in TABLES
    }
    assert site.shown() == {name: [r for r in shown[name] if r[0] != key] for name in TABLES}
    log = DeltaLog(f"file://{site.table('balance')}")
    assert log.commit(log.versions[-1]).changes_data, "whoever reads its changes sees the row go"
    assert all(rows_in(current(site.table(name)), key) == 0 for name in TABLES)
    site.engine.close()
    site.engine = StateEngine(site.directory / "root", spark=site.engine.context.session)
    site.engine.run(site.job())
    assert [row for row in site.shown()["all_numbers"] if row[0] == key] == [
        row for row in site.expected()["all_numbers"] if row[0] == key
    ]


def test_tables_that_were_published_to_once_are_named(site: Site) -> None:
    site.rows += [("a", 1, "x")]
    job = site.job()
    del job.published["balance"]
    site.engine.run(job)
    report = site.engine.state_processor(job).erase_keys({"k": ERASED})
    assert {table.name for table in report.tables} == {"per_shop", "all_numbers"}
    (trace,) = (trace for trace in report.traces if trace.kind == "table")
    assert (trace.name, trace.rows) == ("balance", 1)
    assert trace.remedy.startswith("no state is published to it now")
    assert [row for row in rows_of(pl.read_delta(site.table("balance"))) if row[0] == ERASED]


class Pairs(KeyedProcessFunction):
    """The number of rows of a key and a shop."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.rows = runtime_context.get_state(ValueStateDescriptor("rows", int))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.rows.update((self.rows.value() or 0) + 1)
        yield value


def test_a_table_of_another_operator_is_named(site: Site) -> None:
    site.rows += [(ERASED, 4, "x")]
    job = site.job()
    pairs = (
        job.stream(job.sources["events"])
        .key_by("k", "shop")
        .process(Pairs(), output_type="k string, n bigint, shop string", uid="pairs")
    )
    pairs.publish_state("rows", DeltaStateTable(site.table("pairs")), name="pairs")
    site.engine.run(job)
    report = site.engine.state_processor(job).erase_keys({"k": ERASED})
    (trace,) = (trace for trace in report.traces if trace.kind == "table")
    assert (trace.name, trace.rows) == ("pairs", 1)
    assert trace.remedy == "it shows operator pairs: erase the keys of that"
    report = site.engine.state_processor(job).erase_keys({"k": ERASED, "shop": "x"})
    assert [(t.name, t.rows, t.files) for t in report.tables] == [("pairs", 1, 1)]
    assert rows_in(current(site.table("pairs"))) == 0


def balances(rows: list[tuple[str, int]], table: Any) -> StatefulJob:
    job = StatefulJob("banks", compaction=None)
    events = job.from_collection(rows, "k string, n bigint", name="events", max_rows_per_batch=2)
    sums = events.key_by("k").process(Pairs(), output_type="k string, n bigint", uid="pairs")
    sums.publish_state("rows", table)
    return job


def test_rows_leave_a_database(tmp_path: Path, spark: SparkSession) -> None:
    database = tmp_path / "reports.db"
    job = balances([("Aurelie", 1), ("b", 2), ("c", 3)], SqlStateTable(f"sqlite:///{database}", "balance"))
    engine = StateEngine(tmp_path / "root", spark)
    engine.run(job)

    def shown() -> list[Any]:
        with sqlite3.connect(database) as connection:
            return connection.execute("SELECT k FROM balance ORDER BY k").fetchall()

    (planned,) = engine.state_processor(job).erase_keys({"k": "Aurelie"}, dry_run=True).tables
    assert (planned.rows, planned.files, len(shown())) == (1, 0, 3)
    (done,) = engine.state_processor(job).erase_keys({"k": "Aurelie"}).tables
    assert (done.rows, done.kept_until, done.remedy) == (1, None, "VACUUM")
    assert shown() == [("b",), ("c",)]
    with sqlite3.connect(database) as connection:
        connection.execute("VACUUM")
    assert b"Aurelie" not in database.read_bytes()

    engine.restore(job, checkpoint_id=1, outputs={"rows": "keep"})
    engine.restore(job, checkpoint_id=2, outputs={"rows": "keep"})
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO balance SELECT 'd', 9, min(_checkpoint_id) FROM balance")
    (kept,) = engine.state_processor(job).erase_keys({"k": "d"}).tables
    assert (kept.rows, shown()) == (1, [("b",), ("c",)]), "rows that the state does not have go, too"
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO balance VALUES ('d', 9, NULL)")
    with pytest.raises(TableChangedError, match=r"k='d'.*has no _checkpoint_id"):
        engine.state_processor(job).erase_keys({"k": "d"})
    assert shown() == [("b",), ("c",), ("d",)]


def test_the_command_says_what_left_and_until_when_the_rest_stays(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(site.directory)
    monkeypatch.setenv("STATELAKE__ROOT", str(site.directory / "root"))
    given = ["state", "erase-keys", "shops", "--key", json.dumps({"k": ERASED})]
    planned = CliRunner().invoke(app, [*given, "--dry-run"], catch_exceptions=False)
    assert "table balance: 1 row would leave it; " in planned.output
    done = CliRunner().invoke(app, [*given, "--json"], catch_exceptions=False)
    tables = {table["name"]: table for table in json.loads(done.stdout)["tables"]}
    assert tables["balance"]["rows"] == 1
    assert tables["balance"]["kept_until"].endswith("Z")
    assert "VACUUM delta.`" in tables["balance"]["remedy"]
