"""What a registration gives to a catalog: published tables, and views that show keyed states as of a checkpoint."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from state_engine import (
    DeltaStateTable,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RetentionPolicy,
    StatefulJob,
    StateTtlConfig,
    ValueStateDescriptor,
)
from state_engine.cli.main import app
from state_engine.core.errors import ConfigurationError, InvalidNameError
from state_engine.queries.catalog_views import RegisteredName
from state_engine.spark.session import needed_jars
from tests.support.catalogs import new_schema
from tests.support.tiny import OUTPUT, Site, Sum

TTL_MS = 100
STATES = ("newest", "last", "entries", "every")


class Remember(KeyedProcessFunction):
    """A state of each shape, two of them with a time to live; ``v`` below 0 forgets the key."""

    def open(self, runtime_context: Any) -> None:
        living = StateTtlConfig.new_builder(timedelta(milliseconds=TTL_MS)).build()
        newest, every = ValueStateDescriptor("newest", int), ListStateDescriptor("every", int)
        newest.enable_time_to_live(living)
        every.enable_time_to_live(living)
        self.newest = runtime_context.get_state(newest)
        self.last = runtime_context.get_state(ValueStateDescriptor("last", int))
        self.entries = runtime_context.get_map_state(MapStateDescriptor("entries", str, int))
        self.every = runtime_context.get_list_state(every)

    def process_element(self, value: Any, ctx: Any) -> Any:
        if value.v < 0:
            for state in (self.newest, self.last, self.entries, self.every):
                state.clear()
            return
        self.newest.update(value.v)
        self.last.update(value.v)
        self.entries.put(f"e{value.v % 3}", value.v)
        self.every.add(value.v)
        yield value.k, value.v, 0


@pytest.fixture
def lake(spark: SparkSession) -> Iterator[str]:
    with new_schema(spark) as name:
        yield name


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Site:
    return Site(tmp_path, spark)


def remembering(site: Site, **options: Any) -> StatefulJob:
    return site.job(Remember(), uid="r", **options)


def put(site: Site, name: str, **rows: int) -> None:
    site.put({"k": list(rows), "v": list(rows.values())}, name)


def shown(frame: Any) -> list[Any]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def check_views(site: Site, lake: str) -> None:
    """Every view has the columns and rows that ``read_state`` gives of the head."""
    for state in STATES:
        want = site.engine().read_state("tiny", "r", state, metadata=True)
        view = site.spark.table(f"{lake}.r__{state}")
        assert view.columns == want.columns
        assert [f.dataType for f in view.schema.fields] == [f.dataType for f in want.schema.fields]
        assert shown(view) == shown(want), state


def test_views_show_what_the_head_remembers(site: Site, lake: str) -> None:
    """Value, map and list; cleared, expired; upon a base, and upon one of other key groups."""
    engine, job = site.engine(), remembering(site)
    put(site, "0", a=1, b=2, c=3)
    engine.run(job, clock=1000)
    done = engine.register("spark_catalog", lake)
    assert done.names == tuple(
        RegisteredName(f"spark_catalog.{lake}.r__{state}", "view", "tiny", f"r, {state}", 1)
        for state in ("newest", "last", "entries", "every")
    )
    check_views(site, lake)
    put(site, "1", a=4, c=-1)
    engine.run(job, clock=1050)
    engine.register("spark_catalog", lake)
    check_views(site, lake)
    engine.compact(job)
    put(site, "2", a=5, d=6)
    engine.run(job, clock=1120)
    engine.register("spark_catalog", lake)
    check_views(site, lake)
    assert shown(site.spark.sql(f"SELECT k, value FROM {lake}.r__newest")) == [("a", 5), ("d", 6)]
    assert shown(site.spark.sql(f"SELECT k, value FROM {lake}.r__last")) == [("a", 5), ("b", 2), ("d", 6)]
    assert shown(site.spark.sql(f"SELECT k, value FROM {lake}.r__every")) == [("a", [4, 5]), ("d", [6])]
    engine.rescale(remembering(site, max_parallelism=16), max_parallelism=16)
    engine.register("spark_catalog", lake)
    check_views(site, lake)


def test_views_rest_on_bases_of_several_compactions(site: Site, lake: str) -> None:
    engine, job = site.engine(), remembering(site)
    keys = list("abcdefghijklmnopqrstuvwxyz")
    put(site, "0", **dict.fromkeys(keys, 0))
    engine.run(job, clock=1000)
    engine.compact(job)
    put(site, "1", a=100, b=100, c=100)
    engine.run(job, clock=1000)
    engine.compact(job)
    engine.register("spark_catalog", lake)
    check_views(site, lake)
    lists = dict(shown(site.spark.sql(f"SELECT k, value FROM {lake}.r__every")))
    assert lists == {key: [0, 100] if key in "abc" else [0] for key in keys}


@pytest.mark.parametrize("state", STATES)
def test_a_condition_on_the_key_reaches_the_files(site: Site, lake: str, state: str) -> None:
    """Through the fold: each scan of the plan has it among the filters that it gives to Parquet."""
    engine, job = site.engine(), remembering(site)
    put(site, "0", a=1, b=2)
    engine.run(job, clock=1000)
    engine.compact(job)
    put(site, "1", a=4, c=3)
    engine.run(job, clock=1050)
    engine.register("spark_catalog", lake)
    of_view = site.spark.table(f"{lake}.r__{state}")
    of_engine = engine.sql(job, f"SELECT * FROM {state}")
    for frame in (of_view, of_engine, engine.read_state(job, "r", state)):
        wanted = frame.where("k = 'a'")
        filters = pushed_filters(wanted)
        assert filters
        assert all("EqualTo(key.k,a)" in one for one in filters), filters
        assert wanted.count() == frame.count() // 3


def pushed_filters(frame: DataFrame) -> list[str]:
    """What each scan of files in a query's physical plan gives to the reader."""
    name = "spark.sql.maxMetadataStringLength"
    before = frame.sparkSession.conf.get(name)
    frame.sparkSession.conf.set(name, "10000")
    try:
        return re.findall(r"PushedFilters: \[(.*?)\], ReadSchema", str(frame._jdf.queryExecution()))
    finally:
        frame.sparkSession.conf.set(name, str(before))


def test_a_view_stays_as_it_is_until_it_is_registered_again(site: Site, lake: str, tmp_path: Path) -> None:
    engine, job = site.engine(), remembering(site)
    put(site, "0", a=1)
    engine.run(job, register=lake)
    put(site, "1", a=4)
    engine.run(job)
    last = f"SELECT value FROM {lake}.r__last"
    assert shown(site.spark.sql(last)) == [(1,)]
    engine.run(job, register=lake)
    assert shown(site.spark.sql(last)) == [(4,)]
    assert (
        len(list((tmp_path / "root" / "tiny" / "views" / "r__last").iterdir())) == 1
    )  # the former list is gone


def test_a_view_of_a_collected_checkpoint_fails_and_says_so(site: Site, lake: str) -> None:
    engine, job = site.engine(), remembering(site)
    for place in range(3):
        put(site, str(place), a=place)
        engine.run(job)
        if not place:
            engine.register("spark_catalog", lake)
    engine.compact(job, full=True)
    put(site, "3", a=3)
    engine.run(job)
    engine.expire_checkpoints(job, RetentionPolicy(keep_last=1))
    for age in (2, 4):
        site.engine().vacuum(job, clock=_in_days(age))
    with pytest.raises(Py4JJavaError) as caught:
        site.spark.table(f"{lake}.r__last").collect()
    assert "FILE_NOT_EXIST" in str(caught.value)
    engine.register("spark_catalog", lake)
    check_views(site, lake)


def _in_days(days: int) -> int:
    import time

    return int((time.time() + days * 86_400) * 1000)


def published(site: Site, *names: str) -> StatefulJob:
    job = StatefulJob("shop", parallelism=1)
    sums = job.source("events", FileSource(str(site.feed))).key_by("k")
    totals = sums.process(Sum(), uid="sums", output_type=OUTPUT)
    for name in names:
        totals.publish_state("total", DeltaStateTable(str(site.directory / name)), name=name)
    return job


def test_published_tables_follow_the_head_under_their_own_names(site: Site, lake: str) -> None:
    engine, job = site.engine(), published(site, "balances")
    put(site, "0", a=1)
    engine.run(job)
    done = engine.register("spark_catalog", lake, jobs=[job])
    assert done.names == (RegisteredName(f"spark_catalog.{lake}.balances", "table", "shop", "balances"),)
    put(site, "1", a=4)
    engine.run(job, register=f"spark_catalog.{lake}")
    assert shown(site.spark.table(f"{lake}.balances")) == [("a", 5)]


@pytest.mark.parametrize("name", ["balances", "sums__total"])
@pytest.mark.parametrize(
    "there",
    ["TABLE {} (a INT) USING delta", "TABLE {} (a INT) USING parquet", "VIEW {} AS SELECT 1 AS a"],
)
def test_nothing_foreign_is_overwritten(there: str, name: str, site: Site, lake: str) -> None:
    engine = site.engine()
    put(site, "0", a=1)
    engine.run(published(site, *(["balances"] if name == "balances" else [])))
    engine.run(remembering(site))
    site.spark.sql("CREATE " + there.format(f"{lake}.{name}"))
    with pytest.raises(ConfigurationError, match=f"nothing was registered: .*{name} exists.* Drop or rename"):
        engine.register("spark_catalog", lake)
    assert [row.tableName for row in site.spark.sql(f"SHOW TABLES IN {lake}").collect()] == [name]
    assert site.spark.table(f"{lake}.{name}").columns == ["a"]


def test_a_dry_run_only_checks_and_reports(site: Site, lake: str, tmp_path: Path) -> None:
    engine, job = site.engine(), published(site, "balances")
    put(site, "0", a=1)
    engine.run(job)
    engine.run(site.job())
    planned = engine.register("spark_catalog", lake, dry_run=True)
    assert site.spark.sql(f"SHOW TABLES IN {lake}").count() == 0
    assert not (tmp_path / "root" / "tiny" / "views").exists()
    assert planned == engine.register("spark_catalog", lake)
    assert site.spark.sql(f"SHOW TABLES IN {lake}").count() == 2
    site.spark.sql(f"DROP TABLE {lake}.balances")
    site.spark.sql(f"CREATE VIEW {lake}.balances AS SELECT 1 AS a")
    with pytest.raises(ConfigurationError, match="balances exists"):
        engine.register("spark_catalog", lake, dry_run=True)
    with pytest.raises(ConfigurationError, match=r"takes a list of jobs: jobs=\['tiny'\]"):
        engine.register("spark_catalog", lake, jobs="tiny")


def test_two_things_of_one_name_are_refused(site: Site, lake: str, tmp_path: Path) -> None:
    engine = site.engine()
    put(site, "0", a=1)
    engine.run(published(site))
    engine.run(site.job())  # sums, total, as well
    with pytest.raises(ConfigurationError, match="sums__total would be the name of two things"):
        engine.register("spark_catalog", lake)
    engine.register("spark_catalog", lake, jobs=["tiny"])
    with pytest.raises(ConfigurationError, match="sums__total is the view of another state"):
        engine.register("spark_catalog", lake, jobs=["shop"])
    other = Site(tmp_path / "other", site.spark).put({"k": ["a"], "v": [7]})
    other.engine().run(other.job())
    with pytest.raises(ConfigurationError, match="sums__total is the view of another state"):
        other.engine().register("spark_catalog", lake)
    assert shown(site.spark.sql(f"SELECT value FROM {lake}.sums__total")) == [(1,)]


def test_only_lists_of_files_are_deleted_whatever_a_view_says(site: Site, lake: str, tmp_path: Path) -> None:
    engine = site.engine()
    put(site, "0", a=1)
    engine.run(site.job(), register=lake)
    precious = tmp_path / "root" / "tiny" / "checkpoints"
    for place in (precious, tmp_path / "root" / "tiny" / "views" / "sums__total" / ".." / "..", tmp_path):
        site.spark.sql(
            f"ALTER VIEW {lake}.sums__total SET TBLPROPERTIES ('statelake.files' = 'file://{place}')"
        )
        engine.register("spark_catalog", lake)
    assert (precious / "_delta_log").is_dir()


@pytest.mark.parametrize(
    ("catalog", "schema", "says"),
    [
        ("spark_catalog", "nowhere", "nowhere"),
        ("nowhere", "lake", "nowhere"),
    ],
)
def test_catalogs_and_schemas_that_are_not_there_are_refused(
    catalog: str, schema: str, says: str, site: Site
) -> None:
    engine = site.engine()
    put(site, "0", a=1)
    engine.run(site.job())
    with pytest.raises(ConfigurationError, match=says):
        engine.register(catalog, schema)


@pytest.mark.parametrize(
    ("catalog", "schema"), [("spark_catalog", "la`ke"), ("", "lake"), ("a.b", ""), ("a", "b c")]
)
def test_names_of_catalogs_and_schemas_are_checked(catalog: str, schema: str, site: Site) -> None:
    with pytest.raises(InvalidNameError, match="cannot name a table of a catalog"):
        site.engine().register(catalog, schema)


def test_before_the_first_run_there_is_nothing_to_register(site: Site, lake: str) -> None:
    with pytest.raises(InvalidNameError, match="cannot name a table"):
        site.engine().run(site.job(), register="no such; name")
    assert site.nothing_happened()


JOBS = """
from state_engine.registry import RegisteredJob
from state_engine import DeltaStateTable, StatefulJob

def total(row, before):
    after = (before or 0) + row.v
    return (row.k, after), after

def jobs(settings):
    job = StatefulJob("sums", parallelism=1)
    rows = job.from_collection([("a", 1), ("b", 2), ("a", 3)], "k string, v bigint", name="rows")
    sums = rows.key_by("k").map_with_state(total, int, "k string, total bigint").uid("totals")
    sums.publish_state("state", DeltaStateTable("DIRECTORY/balances"), name="balances")
    again = sums.key_by("k").map_with_state(lambda row, n: ((row.k, row.total), row.total), int, "k string, n bigint")
    again.uid("again")
    return [RegisteredJob(job=job)]
"""


@pytest.mark.long
@pytest.mark.spark_tasks
@pytest.mark.timeout(900)
def test_another_session_of_a_metastore_reads_it_without_the_engine(tmp_path: Path) -> None:
    """Spark's own metastore, which takes one process at a time."""
    (tmp_path / "own_jobs.py").write_text(JOBS.replace("DIRECTORY", str(tmp_path)))
    url = f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true"
    (tmp_path / "statelake.toml").write_text(
        f'root = "{tmp_path}/root"\n[jobs]\nmodules = ["own_jobs"]\n[spark]\nmaster = "local[1]"\n[spark.options]\n'
        f'"spark.sql.catalogImplementation" = "hive"\n"spark.sql.warehouse.dir" = "{tmp_path}/warehouse"\n'
        f'"spark.hadoop.javax.jdo.option.ConnectionURL" = "{url}"\n'
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STATELAKE")}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])

    def called(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def asked(query: str) -> Any:
        jars = ",".join(str(path) for path in needed_jars() if "delta" in path.name)
        reader = str(Path(__file__).with_name("hive_reader.py"))
        environment.pop("PYTHONPATH", None)
        answer = called(reader, jars, str(tmp_path), query)
        return json.loads(next(line for line in answer.splitlines() if line.startswith("ANSWER"))[6:])

    create = """
from state_engine.cli.session import loaded_settings
from state_engine.spark.session import local_session
local_session(loaded_settings().settings).sql("CREATE SCHEMA lake")
from state_engine.cli.main import app
app(["run", "sums", "--register", "lake", "--json"], standalone_mode=False)
app(["register", "lake", "--json"], standalone_mode=False)
"""
    printed = [json.loads(line) for line in called("-c", create).splitlines() if line.startswith("{")]
    assert [one["name"] for one in printed[-1]["names"]] == [
        "spark_catalog.lake.balances",
        "spark_catalog.lake.again__state",
    ]
    both = "SELECT k, value FROM lake.balances UNION ALL SELECT k, value FROM lake.again__state ORDER BY k, value"
    assert asked(both) == [["a", 4], ["a", 4], ["b", 2], ["b", 2]]


def test_the_command_refuses_a_catalog_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    from typer.testing import CliRunner

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="lives in memory"):
        CliRunner().invoke(app, ["register", "lake"], catch_exceptions=False)
