"""What a published table does where others write to it, where checkpoints are gone, and where the head moves."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError
from pyspark.sql import SparkSession

from state_engine import (
    DeltaStateTable,
    KeyedProcessFunction,
    RetentionPolicy,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from state_engine.core.checkpoints.retention import shown_kind
from state_engine.core.errors import ConfigurationError, SinkError, SinkIdentityError, TableChangedError
from state_engine.publishing.published_tables import PublishedTables
from tests.state_tables.histories import Site, model, random_rows, rows_of, vacuum


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Site:
    """A site that has run to the end."""
    made = Site.begun(tmp_path, spark, seed=1, rows=30)
    made.engine.run(made.job())
    return made


def version(path: str) -> int:
    return DeltaTable(path).version()


# -- one way after the other ----------------------------------------------------------------------------------------


def test_a_table_that_lags_jumps_to_the_head(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site.begun(tmp_path, spark, seed=2, rows=30)
    site.engine.run(site.job(), max_batches=1)
    before = version(site.table("balance"))
    with monkeypatch.context() as patch:
        patch.setattr(PublishedTables, "follow", lambda *_: [])
        site.engine.run(site.job(), max_batches=6)
    assert version(site.table("balance")) == before
    site.engine.run(site.job(), max_batches=1)
    assert version(site.table("balance")) == before + 2, "one commit to the head, one for the new checkpoint"
    site.check()


def test_a_micro_batch_without_changes_writes_nothing(site: Site) -> None:
    before = version(site.table("balance"))
    head = site.path[-1].checkpoint_id
    site.engine.rescale(site.job(), parallelism=3)
    assert site.path[-1].checkpoint_id > head
    assert version(site.table("balance")) == before


def test_expired_checkpoints_on_the_way_are_no_matter(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """The table shows a checkpoint whose files, and those of its successors, are deleted meanwhile."""
    shown = site.path[2].checkpoint_id
    site.engine.restore("shops", checkpoint_id=shown)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PublishedTables, "follow", lambda *_: [])
        site.engine.run(site.job())
        site.engine.compact("shops", full=True)
        site.engine.expire_checkpoints("shops", RetentionPolicy(1))
    changelog = (
        Path(site.engine.root.removeprefix("file://")) / "shops" / "operators" / "balances" / "changelog"
    )
    for file in changelog.rglob("*.parquet"):
        file.unlink()
    site.engine.close()
    with caplog.at_level(logging.WARNING):
        site.engine.publish_pending("shops")
    site.check()
    assert "was compared as a whole with the state" in caplog.text
    assert "are gone" in caplog.text


def test_deletion_vectors_stand_in_files_so_that_spark_can_vacuum(
    tmp_path: Path, spark: SparkSession
) -> None:
    site = Site.begun(tmp_path, spark, seed=3, rows=60)
    for _ in range(6):
        site.engine.run(site.job(), max_batches=3)
        site.check()
    vectors = set((tmp_path / "tables" / "balance").glob("deletion_vector_*.bin"))
    assert len(vectors) > 2
    vacuum(spark, site.table("balance"), retained_hours=0)
    assert set((tmp_path / "tables" / "balance").glob("deletion_vector_*.bin")) < vectors
    site.check()
    read = spark.read.format("delta").load(site.table("balance")).collect()
    assert sorted(map(tuple, read)) == site.expected()["balance"]


def test_spark_and_polars_read_deletion_vectors_and_delta_rs_says_that_it_does_not(
    site: Site, spark: SparkSession
) -> None:
    read = spark.read.format("delta").load(site.table("balance")).collect()
    assert sorted(map(tuple, read)) == site.expected()["balance"]
    site.check()
    with pytest.raises(DeltaProtocolError):
        DeltaTable(site.table("balance")).to_pyarrow_table()


# -- others write, too ----------------------------------------------------------------------------------------------


def test_a_change_by_somebody_else_stops_the_publish_and_names_him(site: Site) -> None:
    path = site.table("per_shop")
    pl.read_delta(path).head(1).write_delta(path, mode="append")
    site.rows += [("a", 1, "x")]
    with pytest.raises(TableChangedError, match=rf"version {version(path)} of .*per_shop, WRITE by delta-rs"):
        site.engine.run(site.job())
    assert site.path[-1].rows_in == 1, "the checkpoint is committed all the same"


def test_a_change_shows_behind_one_that_only_sets_a_property(site: Site) -> None:
    path = site.table("per_shop")
    DeltaTable(path).delete()
    DeltaTable(path).alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})
    site.rows += [("a", 1, "x")]
    with pytest.raises(TableChangedError, match="DELETE by delta-rs"):
        site.engine.run(site.job())


def test_a_restore_without_the_code_moves_tables_beside_a_sink_that_is_left_alone(site: Site) -> None:
    shown = site.shown()["balance"]
    site.engine.restore("shops", checkpoint_id=site.path[1].checkpoint_id, leave_alone=["balance"])
    assert site.shown() == site.expected() | {"balance": shown}


def test_a_table_that_somebody_changed_is_rebuilt(site: Site) -> None:
    path = site.table("per_shop")
    DeltaTable(path).delete()
    with pytest.raises(TableChangedError):
        site.engine.published("shops").verify("per_shop")
    tables, count, before = site.engine.published("shops"), len(site.expected()["per_shop"]), version(path)
    planned = tables.rebuild("per_shop", dry_run=True)
    assert (planned.rows, planned.deleted, planned.whole) == (count, 0, "it would be rebuilt")
    assert version(path) == before, "a dry run writes nothing"
    made = tables.rebuild("per_shop", requested_by="ada")
    assert made.rows == count
    row = site.engine.checkpoints("shops")[-1]
    assert (shown_kind(row), row.requested_by, row.sinks[0].name) == ("table rebuilt", "ada", "per_shop")
    site.check()
    site.rows += random_rows(site.chance, 9)
    site.engine.run(site.job())
    site.check()


def test_a_change_that_is_accepted_stays_until_its_key_changes(site: Site) -> None:
    path = site.table("per_shop")
    DeltaTable(path).update(updates={"value": "-1"})
    tables, count, before = site.engine.published("shops"), len(site.expected()["per_shop"]), version(path)
    planned = tables.accept("per_shop", dry_run=True)
    assert (planned.rows, planned.deleted) == (count, 0)
    assert version(path) == before, "a dry run writes nothing"
    with pytest.raises(TableChangedError):
        tables.verify("per_shop")
    assert tables.accept("per_shop", requested_by="ada") == planned
    row = site.engine.checkpoints("shops")[-1]
    assert (shown_kind(row), row.requested_by, row.sinks[0].name) == ("table accepted", "ada", "per_shop")
    site.rows += [("a", 1, "x")]
    site.engine.run(site.job())
    shown = {row[:2]: row[2] for row in rows_of(pl.read_delta(path))}
    expected = {row[:2]: row[2] for row in site.expected()["per_shop"]}
    assert shown == {key: total if key == ("a", "x") else -1 for key, total in expected.items()}
    compared = site.engine.published("shops").verify("per_shop")
    assert (compared.rows, compared.deleted) == (len(expected) - 1, 0)


def test_rows_that_settle_a_table_move_no_table_and_no_head(site: Site) -> None:
    """A table that lags follows from where it is, past them, and a restore passes them by."""
    early, path = site.path[1].checkpoint_id, site.table("balance")
    DeltaTable(site.table("per_shop")).delete()
    pl.DataFrame({"k": ["z"], "value": [26]}).write_delta(path, mode="append")
    site.rows += random_rows(site.chance, 9)
    with pytest.raises(TableChangedError):
        site.engine.run(site.job())
    tables = site.engine.published("shops")
    tables.rebuild("per_shop")
    accepted = tables.accept("balance")
    assert (accepted.rows, accepted.deleted) == (0, 1), "compared with the checkpoint that it shows"
    site.engine.run(site.job())
    assert site.shown() == site.expected() | {"balance": [*site.expected()["balance"], ("z", 26)]}
    tables.rebuild("balance")
    site.engine.restore(site.job(), checkpoint_id=early)
    site.check()
    site.rows += random_rows(site.chance, 9)
    site.engine.run(site.job())
    site.check()


def test_a_table_that_is_gone_is_not_accepted_and_a_dry_run_of_its_rebuild_counts_all(site: Site) -> None:
    shutil.rmtree(site.table("balance"))
    tables = site.engine.published("shops")
    with pytest.raises(SinkError, match=r"there is none at .*/balance, so there is nothing to accept"):
        tables.accept("balance")
    planned = tables.rebuild("balance", dry_run=True)
    assert (planned.rows, planned.whole) == (len(site.expected()["balance"]), "it is new")
    assert not Path(site.table("balance")).exists()


def test_spark_rearranges_a_table_and_nothing_stops(site: Site, spark: SparkSession) -> None:
    spark.sql(f"OPTIMIZE delta.`{site.table('balance')}`")
    site.rows += random_rows(site.chance, 12)
    site.engine.run(site.job())
    site.check()


def test_a_table_of_another_root_is_refused_or_adopted(tmp_path: Path, spark: SparkSession) -> None:
    chance = random.Random(4)
    rows = random_rows(chance, 12)
    first, second = (
        Site(tmp_path, rows[:count], StateEngine(tmp_path / f"root{count}", spark=spark), chance)
        for count in (12, 9)
    )
    first.engine.run(first.job())
    with pytest.raises(SinkIdentityError, match=r"belongs to '.*/shops/balance'.*adopt=True"):
        second.engine.run(second.job())

    def adopting() -> StatefulJob:
        job = second.job()
        for name, node in job.published.items():
            object.__setattr__(node.table, "adopt", True)
            assert node.table.options()["adopt"], name
        return job

    second.engine.run(adopting())
    second.check()
    first.rows += rows[:3]
    with pytest.raises(SinkIdentityError):
        first.engine.run(first.job())


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"delta.enableChangeDataFeed": "true"}, "change data feed"),
        ({"delta.appendOnly": "true"}, "appendOnly"),
    ],
)
def test_tables_with_other_rules_are_refused(site: Site, properties: dict[str, str], named: str) -> None:
    DeltaTable(site.table("per_shop")).alter.set_table_properties(properties)
    site.rows += [("a", 1, "x")]
    with pytest.raises(SinkError, match=named):
        site.engine.run(site.job())


def test_what_columns_must_not_hold_is_judged_before_rows_are_written(
    tmp_path: Path, spark: SparkSession
) -> None:
    other, site = (
        Site(
            tmp_path / name,
            [("a", 1, "x")],
            StateEngine(tmp_path / name / "root", spark=spark),
            random.Random(6),
        )
        for name in ("other", "site")
    )
    other.engine.run(other.job())
    kinds = spark.read.format("delta").load(other.table("balance")).dtypes
    columns = ", ".join(f"`{name}` {kind}" for name, kind in kinds)
    declared = columns.replace("`k` string", "`k` VARCHAR(3) NOT NULL")
    assert declared != columns
    spark.sql(f"CREATE TABLE delta.`{site.table('balance')}` ({declared}) USING delta")
    job = site.job()
    object.__setattr__(job.published["balance"].table, "adopt", True)
    site.engine.run(job)
    site.check()
    site.rows += [("abcd", 1, "x")]
    with pytest.raises(
        SinkError, match=r"does not take the row .*'k': 'abcd'.*: it takes 3 characters.*Drop that rule"
    ):
        site.engine.run(site.job())
    spark.sql(f"ALTER TABLE delta.`{site.table('balance')}` ALTER COLUMN k TYPE STRING")
    site.engine.run(site.job())
    site.check()


def test_a_table_that_left_the_code_stops_following_and_says_so(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    shown = rows_of(pl.read_delta(site.table("balance")))
    site.rows += [("a", 1, "x"), ("b", 2, "y")]
    job = site.job()
    del job.published["balance"]
    with caplog.at_level(logging.WARNING):
        site.engine.run(job)
    (said,) = [
        r.getMessage() for r in caplog.records if "no longer publishes a state to the table" in r.message
    ]
    assert f"'balance' at file://{site.table('balance')}: it stays as it is" in said
    assert rows_of(pl.read_delta(site.table("balance"))) == shown
    site.engine.restore("shops", checkpoint_id=site.path[1].checkpoint_id)
    assert rows_of(pl.read_delta(site.table("balance"))) == shown
    assert rows_of(pl.read_delta(site.table("per_shop"))) == site.expected()["per_shop"]


# -- the head moves -------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_each_table_gets(site: Site) -> None:
    head, target = site.expected(), site.path[1].checkpoint_id
    planned = site.engine.restore("shops", checkpoint_id=target, dry_run=True)
    site.check()
    done = site.engine.restore("shops", checkpoint_id=target)
    assert planned.tables == done.tables
    site.check()
    for move in done.tables:
        keys = slice(0, 2 if move.name == "per_shop" else 1)
        before, after = ({row[keys]: row for row in of[move.name]} for of in (head, site.expected()))
        assert move.deleted == len(before.keys() - after.keys())
        assert move.rows == sum(row != before.get(key) for key, row in after.items())


def test_a_table_is_kept_where_the_policy_says_so(site: Site) -> None:
    shown = site.shown()
    site.engine.restore("shops", checkpoint_id=site.path[1].checkpoint_id, outputs={"balance": "keep"})
    assert site.shown() == site.expected() | {"balance": shown["balance"]}
    site.engine.run(site.job())
    site.check()


def test_a_checkpoint_that_does_not_know_the_state_is_no_empty_state(
    tmp_path: Path, spark: SparkSession
) -> None:
    site = Site.begun(tmp_path, spark, seed=5, rows=12)

    def without_operator() -> StatefulJob:
        job = StatefulJob("shops", max_parallelism=8, compaction=None)
        job.from_collection(
            site.rows[:3], "k string, n bigint, shop string", name="events", max_rows_per_batch=3
        )
        events = job.stream(job.sources["events"])
        events.filter(lambda row: False, uid="nothing")
        return job

    site.engine.run(without_operator())
    site.engine.run(site.job())
    shown = site.shown()
    with pytest.raises(ConfigurationError, match="does not know the state 'balance' of operator 'balances'"):
        site.engine.restore("shops", checkpoint_id=1)
    keep = dict.fromkeys(("balance", "per_shop"), "keep")
    policies: dict[str, Any] = keep | {"all_numbers": "rebuild"}
    site.engine.restore("shops", checkpoint_id=1, outputs=policies)
    assert site.shown() == shown | {"all_numbers": []}
    site.engine.run(site.job())
    assert site.shown()["all_numbers"] == model(site.rows[3:])["all_numbers"]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"balance": "withdraw"}, "a table that shows a state: it takes 'follow', 'keep' or 'rebuild'"),
        ({"no_table": "keep"}, r"outputs names the sinks \['no_table'\]"),
        ("rebuild", "outputs must be 'withdraw' or 'keep'"),
    ],
)
def test_policies_fit_the_sink(site: Site, outputs: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        site.engine.restore("shops", checkpoint_id=1, outputs=outputs)
    site.check()


# -- time to live ---------------------------------------------------------------------------------------------------

MINUTE = 60_000


class Latest(KeyedProcessFunction):
    """The last number of a key, for ten minutes."""

    def open(self, runtime_context: RuntimeContext) -> None:
        descriptor = ValueStateDescriptor("latest", int)
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.minutes(10)).build())
        self.latest = runtime_context.get_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.latest.update(value.n)
        yield value


def latest_job(rows: list[tuple[str, int]], path: str) -> StatefulJob:
    """A micro-batch a row."""
    job = StatefulJob("latest", compaction=None)
    events = job.from_collection(rows, "k string, n bigint", name="events", max_rows_per_batch=1)
    outputs = events.key_by("k").process(Latest(), output_type="k string, n bigint", uid="latest")
    outputs.publish_state("latest", DeltaStateTable(path))
    return job


def test_what_expired_leaves_the_table_with_the_publish_after_a_compaction(
    tmp_path: Path, spark: SparkSession
) -> None:
    rows = [("a", 1), ("b", 2), ("c", 3), ("b", 4), ("d", 5), ("a", 6)]
    path = str(tmp_path / "latest")

    engine = StateEngine(tmp_path / "root", spark=spark)

    def run(at: int) -> list[tuple[Any, ...]]:
        engine.run(latest_job(rows, path), max_batches=1, clock=at * MINUTE)
        return rows_of(pl.read_delta(path))

    for at in (0, 1, 2):
        shown = run(at)
    assert shown == [("a", 1), ("b", 2), ("c", 3)]
    assert run(12) == [("a", 1), ("b", 4), ("c", 3)], "nothing looks for what has expired"
    engine.compact("latest")
    assert run(13) == [("b", 4), ("d", 5)], "the compaction names a and c"
    engine.restore("latest", checkpoint_id=3)
    assert rows_of(pl.read_delta(path)) == [("a", 1), ("b", 2), ("c", 3)], "they are back with the state"
    assert run(30) == [("a", 1), ("b", 4), ("c", 3)]
    engine.compact("latest")
    engine.run(latest_job(rows, path), clock=31 * MINUTE)
    assert rows_of(pl.read_delta(path)) == [("a", 6), ("b", 4), ("d", 5)]


def test_a_key_that_came_back_after_its_expiry_stays(tmp_path: Path, spark: SparkSession) -> None:
    """The compaction folds a checkpoint, a micro-batch puts the key again, and then the compaction is committed."""
    rows = [("a", 1), ("b", 2), ("a", 3), ("c", 4)]
    path = str(tmp_path / "latest")

    engine = StateEngine(tmp_path / "root", spark=spark)
    engine.run(latest_job(rows, path), max_batches=1, clock=0)
    engine.run(latest_job(rows, path), max_batches=1, clock=11 * MINUTE)
    from state_engine.operations.maintenance import Maintenance

    commit, other = Maintenance._commit, StateEngine(tmp_path / "root", spark=spark)

    def late(self: Maintenance, *given: Any, **options: Any) -> Any:
        other.run(latest_job(rows, path), max_batches=1, clock=12 * MINUTE)
        return commit(self, *given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Maintenance, "_commit", late)
        engine.compact("latest")
    engine.run(latest_job(rows, path), max_batches=1, clock=13 * MINUTE)
    assert rows_of(pl.read_delta(path)) == [("a", 3), ("b", 2), ("c", 4)]
