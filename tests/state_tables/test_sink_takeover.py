"""Tables that a keyed ``SqlSink`` of an earlier version wrote: read into a state once, and shown from then on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

from state_engine import SqlSink, StateEngine, StatefulJob
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.errors import ConfigurationError, SinkBehindError, SinkError
from state_engine.publishing.publication import Publication
from state_engine.sinks.sql import SqlPublisher
from state_engine.state_processor.entry_writer import EntryWriter
from state_engine.state_tables.sql import SqlStateTarget
from state_engine.storage.checkpoint_log import CheckpointLog
from tests.state_tables.sql_world import World
from tests.support.former_sinks import FormerSink
from tests.support.killed import Killed

pytestmark = pytest.mark.spark

ROWS = [(1, "Turin"), (2, "Rome"), (1, "Bari"), (3, "Pisa"), (2, "Como"), (4, "Lodi")]


class Site:
    """A job whose sink was keyed by an earlier version, and its database."""

    columns = "id bigint, city string"

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.directory, self.spark = directory, spark
        self.rows: list[tuple[Any, ...]] = list(ROWS)
        self.url, self.options = f"sqlite:///{directory}/out.db", dict[str, Any]()
        self.engine = StateEngine(directory / "root", spark=spark)

    def job(self, sink: SqlSink | None = None, **options: Any) -> StatefulJob:
        made = sink or SqlSink(self.url, "latest", **({"key": ["id"]} | self.options | options))
        job = StatefulJob("towns", parallelism=2)
        stream = job.from_collection(self.rows, self.columns, name="rows", max_rows_per_batch=2)
        stream.sink("latest", made)
        return job

    def former(self, **options: Any) -> StatefulJob:
        return self.job(FormerSink(self.url, "latest", **(self.options | options)))

    def again(self) -> None:
        """As another process would go on."""
        self.engine.close()
        self.engine = StateEngine(self.directory / "root", spark=self.spark)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            result = connection.execute(sa.text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []

    def shown(self) -> list[tuple[Any, ...]]:
        return self.run("SELECT id, city FROM latest ORDER BY id")

    def state(self, checkpoint_id: int | None = None) -> list[tuple[Any, ...]]:
        read = self.engine.read_state("towns", "sink_latest", "row", checkpoint_id=checkpoint_id)
        return sorted((row["id"], row["city"]) for row in read.select("id", "value.city").collect())

    def kinds(self) -> list[str]:
        return [row.kind.value for row in self.engine.checkpoints("towns")]


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Site:
    """Four of six rows were processed by the earlier version."""
    made = Site(tmp_path, spark)
    made.engine.run(made.former(), max_batches=2)
    assert made.shown() == [(1, "Bari"), (2, "Rome"), (3, "Pisa")]
    made.again()
    return made


LAST = [(1, "Bari"), (2, "Como"), (3, "Pisa"), (4, "Lodi")]


def test_the_table_is_read_once_and_shows_the_state_from_then_on(site: Site) -> None:
    site.engine.run(site.job())
    assert site.shown() == LAST
    assert site.state() == LAST
    assert site.kinds() == ["checkpoint", "checkpoint", "transform", "checkpoint"]
    assert site.state(3) == [(1, "Bari"), (2, "Rome"), (3, "Pisa")]
    site.rows += [(3, "Bra")]
    site.again()
    site.engine.run(site.job())
    assert site.kinds()[4:] == ["checkpoint"], "it is taken over once"
    assert site.shown() == [*LAST[:2], (3, "Bra"), LAST[3]]
    assert site.engine.published("towns").verify("latest").rows == 0


def test_it_is_taken_over_where_nothing_new_came(site: Site) -> None:
    site.rows = site.rows[:4]
    site.engine.run(site.job())
    assert site.kinds() == ["checkpoint", "checkpoint", "transform"]
    assert site.run("SELECT app, checkpoint_id FROM _statelake_published")[0][1] == 3
    assert site.shown() == site.state() == [(1, "Bari"), (2, "Rome"), (3, "Pisa")]


def dying(
    monkeypatch: pytest.MonkeyPatch, cls: type, method: str, *, after: bool, when: Callable[..., bool]
) -> None:
    real = getattr(cls, method)

    def dies(self: Any, *args: Any, **options: Any) -> Any:
        if not when(*args):
            return real(self, *args, **options)
        if after:
            real(self, *args, **options)
        raise Killed

    monkeypatch.setattr(cls, method, dies)


STEPS = {
    "write": (EntryWriter, "write", lambda *_: True),
    "list": (EntryWriter, "listed", lambda *_: True),
    "commit": (CheckpointLog, "commit", lambda updates, *_: updates[0].row.kind is CheckpointKind.TRANSFORM),
    "publish": (Publication, "publish", lambda row, *_: row.kind is CheckpointKind.TRANSFORM),
    "adopt": (SqlStateTarget, "adopt", lambda *_: True),
    "apply": (SqlStateTarget, "apply", lambda *_: True),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_every_step_is_made_up_for(
    site: Site, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    cls, method, when = STEPS[step]
    with monkeypatch.context() as patch:
        dying(patch, cls, method, after=after, when=when)
        with pytest.raises(Killed):
            site.engine.run(site.job())
    assert (1, "Bari") in site.shown()
    site.again()
    site.engine.run(site.job())
    assert site.shown() == site.state() == LAST
    assert site.kinds() == ["checkpoint", "checkpoint", "transform", "checkpoint"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_what_the_earlier_version_left_unpublished_is_published_first(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    site = Site(tmp_path, spark)
    site.engine.run(site.former(), max_batches=1)
    with monkeypatch.context() as patch:
        dying(patch, SqlPublisher, "publish", after=after, when=lambda *_: True)
        with pytest.raises(Killed):
            site.engine.run(site.former(), max_batches=1)
    site.again()
    site.engine.run(site.job())
    assert site.shown() == site.state() == LAST
    assert site.kinds() == ["checkpoint", "checkpoint", "transform", "checkpoint"]
    assert site.state(3) == [(1, "Bari"), (2, "Rome"), (3, "Pisa")]


def test_earlier_checkpoints_do_not_know_the_state(site: Site) -> None:
    site.engine.run(site.job())
    for given in (site.job(), "towns"):
        with pytest.raises(ConfigurationError, match=r"checkpoint 1 does not know the state 'row'.*\"keep\""):
            site.engine.restore(given, checkpoint_id=1)
    site.engine.restore("towns", checkpoint_id=3)
    assert site.shown() == [(1, "Bari"), (2, "Rome"), (3, "Pisa")]
    site.engine.restore("towns", checkpoint_id=4)
    assert site.shown() == LAST


def test_a_table_that_is_kept_is_taken_over_again(site: Site) -> None:
    site.engine.run(site.job())
    site.engine.restore(site.job(), checkpoint_id=1, outputs={"latest": "keep"})
    assert site.shown() == LAST
    site.again()
    site.engine.run(site.job(), max_batches=1)
    assert site.kinds()[4:] == ["restore", "transform", "checkpoint"]
    assert site.shown() == site.state() == LAST


def test_a_table_that_is_rebuilt_begins_anew(site: Site) -> None:
    site.engine.run(site.job())
    site.engine.restore("towns", checkpoint_id=1, outputs={"latest": "rebuild"})
    assert site.shown() == []
    site.engine.run(site.job())
    assert site.shown() == site.state() == [(1, "Bari"), (2, "Como"), (3, "Pisa"), (4, "Lodi")]


def test_another_key_is_refused(site: Site) -> None:
    with pytest.raises(ConfigurationError, match=r"a row for each \['id'\], and key= says \['city'\] now"):
        site.engine.run(site.job(key=["city"]))
    assert site.kinds() == ["checkpoint", "checkpoint"]


def test_columns_of_the_user_stay_as_they_are(site: Site) -> None:
    site.run("ALTER TABLE latest ADD COLUMN note text")
    site.run("UPDATE latest SET note = 'mine'")
    site.engine.run(site.job())
    assert site.run("SELECT id, note FROM latest ORDER BY id") == [
        (1, "mine"),
        (2, "mine"),
        (3, "mine"),
        (4, None),
    ]


def test_a_table_that_was_dropped_is_refused(site: Site) -> None:
    site.run("DROP TABLE latest")
    with pytest.raises(SinkBehindError, match=r"'latest'.*does not show what checkpoint 1 published to it"):
        site.engine.run(site.job())
    assert "transform" not in site.kinds()


def test_a_table_that_somebody_else_made_is_refused(site: Site) -> None:
    site.run("CREATE TABLE other (id bigint PRIMARY KEY, city text)")
    with pytest.raises(SinkError, match=r"belongs to nobody.*adopt=True"):
        site.engine.run(site.job(SqlSink(site.url, "other", key=["id"])))


def test_rows_that_were_appended_are_taken_over_where_they_have_a_key(
    tmp_path: Path, spark: SparkSession
) -> None:
    site = Site(tmp_path, spark)
    site.rows = [(1, "Turin"), (2, "Rome"), (3, "Pisa")]
    site.engine.run(site.job(SqlSink(site.url, "latest", lineage=True)))
    site.rows += [(2, "Como")]
    with pytest.raises(SinkError, match=r"no primary key or unique constraint of exactly \['id'\]"):
        site.engine.run(site.job())
    assert site.kinds() == ["checkpoint", "checkpoint"]
    site.run("CREATE UNIQUE INDEX one_each ON latest(id)")
    site.engine.run(site.job())
    assert site.shown() == site.state() == [(1, "Turin"), (2, "Como"), (3, "Pisa")]


def test_keys_that_are_text_in_sqlite(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark)
    site.columns = "id date, city string"
    site.rows = [(date(2026, 1, day), city) for day, city in ROWS]
    site.engine.run(site.former(), max_batches=2)
    site.again()
    site.engine.run(site.job())
    assert site.shown() == [(f"2026-01-0{day}", city) for day, city in LAST]


def test_an_empty_table_is_taken_over_too(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark)
    site.engine.run(site.former(), max_batches=1)
    site.run("DELETE FROM latest")
    site.engine.run(site.job())
    assert site.shown() == site.state() == [(1, "Bari"), (2, "Como"), (3, "Pisa"), (4, "Lodi")]


def test_the_order_of_sequences_goes_on(site: Site) -> None:
    """A row that comes with a lower sequence than that in the table does not replace it."""
    site.rows += [(1, "Asti"), (3, "Zara")]
    site.engine.run(site.job(sequence=["city"]))
    assert site.shown() == [(1, "Bari"), (2, "Rome"), (3, "Zara"), (4, "Lodi")]


def test_a_branch_that_never_read_the_table_is_not_promoted(site: Site) -> None:
    site.engine.replay(site.job(), branch="trial", from_checkpoint=1)
    with pytest.raises(ConfigurationError, match=r"an earlier version wrote.*Run the job once"):
        site.engine.promote(site.job(), "trial")
    assert site.shown() == [(1, "Bari"), (2, "Rome"), (3, "Pisa")]
    site.engine.run(site.job())
    assert site.shown() == LAST


@pytest.mark.long
def test_a_table_of_postgresql_with_a_key_of_two_columns(
    postgres: World, tmp_path: Path, spark: SparkSession
) -> None:
    site = Site(tmp_path, spark)
    site.url, site.options = postgres.url, {"password_env": postgres.password_env}
    site.columns = "id timestamp, day date, city string, amount decimal(9, 2)"
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    site.rows = [(moment, date(2026, 1, day), city, Decimal(day) / 4) for day, city in ROWS]
    site.engine.run(site.former(replaced_by=("id", "day")), max_batches=2)
    site.again()
    site.engine.run(site.job(key=["id", "day"]))
    assert "transform" in site.kinds()
    shown = postgres.rows("SELECT day, city, amount FROM latest ORDER BY day")
    assert shown == [(date(2026, 1, day), city, Decimal(day) / 4) for day, city in LAST]
    move = site.engine.published("towns").verify("latest")
    assert (move.rows, move.deleted) == (0, 0)
