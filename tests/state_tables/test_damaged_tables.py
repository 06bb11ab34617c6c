"""One damaged table holds back neither the job nor its other tables, and there are ways to mend it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    DeltaSink,
    DeltaStateTable,
    SqlStateTable,
)
from state_engine.core.errors import SinkError, StatelakeError
from tests.support.read_only import read_only
from tests.support.summing import SumSite


class Site(SumSite):
    """A job with two published tables, one of which is damaged, and a sink."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        super().__init__(directory, spark)
        self.url, self.is_sql = f"sqlite:///{directory}/out.db", False
        self.engine = self.new_engine()

    def send(self, sums: DataStream) -> None:
        bad, good, out = (str(self.directory / name) for name in ("bad", "good", "out"))
        sums.publish_state(
            "sum", SqlStateTable(self.url, "bad") if self.is_sql else DeltaStateTable(bad), name="bad"
        )
        sums.publish_state("sum", DeltaStateTable(good), name="good")
        sums.sink("out", DeltaSink(out))

    def run(self) -> Any:
        return self.engine.run(self.job())

    def again(self) -> None:
        """Another process."""
        self.engine.close()
        self.engine = self.new_engine()

    def rows(self, name: str) -> list[tuple[str, int]]:
        if name == "bad" and self.is_sql:
            return self.sql("SELECT key, value FROM bad ORDER BY key")
        frame = self.spark.read.format("delta").load(f"{self.directory}/{name}")
        return sorted((r[0], r[1]) for r in frame.select(*frame.columns[:2]).collect())

    def sql(self, text: str) -> list[Any]:
        with sa.create_engine(self.url, poolclass=sa.NullPool).connect() as connection:
            result = connection.execute(sa.text(text))
            rows = [tuple(r) for r in result] if result.returns_rows else []
            connection.commit()
            return rows

    @property
    def log(self) -> Path:
        return self.directory / "bad" / "_delta_log"

    @property
    def entries(self) -> list[Path]:
        return sorted(self.log.glob("*.json"))


def a_missing_entry(site: Site) -> None:
    site.entries[1].unlink()
    shutil.rmtree(site.log / "_last_checkpoint", ignore_errors=True)


def garbage_in_the_log(site: Site) -> None:
    site.entries[1].write_text('{"add": nonsense}\n')
    for crc in site.log.glob(".*.crc"):
        crc.unlink()


def a_garbage_checkpoint(site: Site) -> None:
    version = int(site.entries[-1].stem)
    (site.log / f"{version:020d}.checkpoint.parquet").write_bytes(b"PAR1 no parquet PAR1")
    (site.log / "_last_checkpoint").write_text(f'{{"version":{version},"size":3}}')
    for entry in site.entries[:-1]:
        entry.unlink()


def a_deleted_data_file(site: Site) -> None:
    for file in (site.directory / "bad").glob("*.parquet"):
        file.unlink()


def a_file_in_its_place(site: Site) -> None:
    shutil.rmtree(site.directory / "bad")
    (site.directory / "bad").write_text("no table")


def a_dropped_ledger(site: Site) -> None:
    site.sql("DROP TABLE _statelake_tables")


def a_dropped_key(site: Site) -> None:
    site.sql("ALTER TABLE bad RENAME TO other")
    site.sql("CREATE TABLE bad AS SELECT value, _checkpoint_id FROM other")


DELTA = [a_missing_entry, garbage_in_the_log, a_garbage_checkpoint, a_deleted_data_file, a_file_in_its_place]
SQL = [a_dropped_ledger, a_dropped_key]


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Site:
    return Site(tmp_path, spark)


def begun(site: Site, damage: Callable[[Site], None], *, living: bool) -> None:
    """Two checkpoints, a damaged table, and a third one that concerns it."""
    site.is_sql = damage in SQL
    for number in (1, 2):
        site.arrive(str(number), ("a", number))
        site.run()
    assert site.rows("bad") == site.rows("good") == [("a", 3)]
    damage(site)
    if not living:
        site.again()
    site.arrive("3", ("a", 4))
    site.arrive("4", ("b", 5))


@pytest.mark.parametrize("living", [True, False], ids=["the same engine", "a new engine"])
@pytest.mark.parametrize("damage", [*DELTA, *SQL], ids=lambda one: one.__name__)
def test_the_job_and_the_other_targets_go_on(
    site: Site, damage: Callable[[Site], None], living: bool
) -> None:
    begun(site, damage, living=living)
    refused = ""
    try:
        report = site.run()
    except SinkError as error:  # what is refused is raised when all else is done
        refused = str(error)
        assert damage in SQL
    else:
        assert report.caught_up
        refused = next(table.problem for table in report.tables if table.problem)
    assert "statelake rebuild-table sums bad" in refused
    assert len(site.engine.checkpoints("sums")) == 4
    assert site.rows("good") == [("a", 7), ("b", 5)]
    assert site.rows("out") == [("a", 1), ("a", 3), ("a", 7), ("b", 5)]
    status = site.status()
    assert (status.state, status.exit_code) in (("unpublished", 1), ("changed", 1))
    if damage not in (a_deleted_data_file, a_file_in_its_place):  # a look at the log shows nothing
        assert any("rebuild-table sums bad" in one.changed for one in status.tables)
    if damage is a_file_in_its_place:
        (site.directory / "bad").unlink()
        site.run()
    else:
        if damage is not a_dropped_key:  # whose rows cannot be compared
            site.engine.published(site.job()).rebuild("bad", dry_run=True)
        site.engine.published(site.job()).rebuild("bad")
    assert site.rows("bad") == [("a", 7), ("b", 5)]
    site.arrive("5", ("b", 1))
    site.run()
    assert site.rows("bad") == site.rows("good") == [("a", 7), ("b", 6)]
    assert site.status().state == "ok"


@pytest.mark.parametrize(
    "damage", [a_missing_entry, garbage_in_the_log, a_deleted_data_file], ids=lambda one: one.__name__
)
def test_a_restore_goes_on_too(site: Site, damage: Callable[[Site], None]) -> None:
    begun(site, damage, living=False)
    site.run()
    site.engine.restore(site.job(), checkpoint_id=2, outputs={"bad": "keep"})
    assert site.rows("good") == [("a", 3)]
    shutil.rmtree(site.directory / "bad")
    site.run()
    assert site.rows("bad") == site.rows("good") == [("a", 7), ("b", 5)]


@pytest.mark.parametrize("in_database", [False, True], ids=["delta", "sql"])
def test_a_table_that_may_not_be_written_to_stays_behind_alone(site: Site, in_database: bool) -> None:
    site.is_sql = in_database
    site.arrive("1", ("a", 1))
    site.run()
    site.arrive("2", ("a", 2))
    site.arrive("3", ("b", 5))
    with read_only(site.directory / ("out.db" if in_database else "bad")):
        try:
            report = site.run()
        except StatelakeError as error:  # what is refused is raised when all else is done
            problem = str(error)
        else:
            problem = next(table.problem for table in report.tables if table.problem)
        assert re.search("read-?only|ermission denied", problem, re.IGNORECASE), problem
        assert len(site.engine.checkpoints("sums")) == 3
        assert site.rows("good") == [("a", 3), ("b", 5)]
        assert site.rows("out") == [("a", 1), ("a", 3), ("b", 5)]
        assert site.rows("bad") == [("a", 1)]
        assert site.status().state == "unpublished"
    site.run()
    assert site.rows("bad") == [("a", 3), ("b", 5)]
    assert site.status().state == "ok"


def test_status_names_a_column_of_the_key_that_was_dropped(site: Site) -> None:
    """By a commit that changes no row: the log's metadata says it."""
    site.arrive("1", ("a", 1))
    site.run()
    table = f"delta.`{site.directory}/bad`"
    site.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    site.spark.sql(f"ALTER TABLE {table} DROP COLUMN key")
    status = site.status()
    assert status.state == "changed"
    (bad,) = [one for one in status.tables if one.name == "bad"]
    assert "has no column 'key', which identifies its rows" in bad.changed
    shutil.rmtree(site.directory / "bad")
    site.arrive("2", ("a", 2))
    site.run()
    assert site.rows("bad") == [("a", 3)]
    assert site.status().state == "ok"


def test_verify_and_accept_name_the_ways_out_of_damage(site: Site) -> None:
    begun(site, a_missing_entry, living=False)
    published = site.engine.published(site.job())
    for call in (published.verify, published.accept):
        with pytest.raises(SinkError, match=r"is damaged.*statelake rebuild-table sums bad`; or delete the"):
            call("bad")


def test_a_dropped_column_of_values_is_filled_again(site: Site) -> None:
    site.is_sql = True
    site.arrive("1", ("a", 1))
    site.arrive("2", ("b", 2))
    site.run()
    site.sql("ALTER TABLE bad DROP COLUMN value")
    site.arrive("3", ("a", 4))
    site.run()
    assert site.rows("bad") == [("a", 5), ("b", 2)]


def test_a_damaged_sink_that_is_appended_to_waits_with_the_ways_that_work(site: Site) -> None:
    """Its rows are to arrive exactly once, so no later row may be committed before them."""
    for number in (1, 2):
        site.arrive(str(number), ("a", number))
        site.run()
    log = site.directory / "out" / "_delta_log"
    (log / f"{1:020d}.json").unlink()
    site.again()
    site.arrive("3", ("a", 4))
    with pytest.raises(StatelakeError, match=r"sink 'out'.*branch create JOB --from 0.*give the sink"):
        site.run()
    shutil.rmtree(site.directory / "out")
    site.engine.promote(site.job(), site.engine.replay(site.job(), from_checkpoint=0).branch)
    site.run()
    assert site.rows("out") == [("a", 1), ("a", 3), ("a", 7)]
    assert site.rows("good") == [("a", 7)]
