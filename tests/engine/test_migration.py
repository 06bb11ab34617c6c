"""A job that changed between runs: what fits goes on, what does not is refused and nothing is lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from state_engine import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    ValueStateDescriptor,
)
from state_engine.core.errors import ConfigurationError, RootError, StateMigrationError
from tests.support.tiny import OUTPUT, ROWS, SavedSite, Site, Sum


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> SavedSite:
    site = Site(tmp_path_factory.mktemp("site"), spark).put(ROWS)
    site.engine().run(site.job())
    return SavedSite(site.put({"k": ["a"], "v": [10]}, "1"))


@pytest.fixture
def ran(saved: SavedSite) -> Site:
    """After one batch; more input waits."""
    return saved.anew()


CHANGED: dict[str, tuple[dict[str, Any], str]] = {
    "another uid": ({"uid": "renamed"}, r"holds state of operators \['sums'\], which the job does not have"),
    "another type of key": (
        {"through": lambda s: s.transform(lambda f: f.withColumn("k", F.ascii("k")))},
        "its state is stored by key struct<`k`: string>, the job keys by struct<`k`: int>.*change_key_type",
    ),
    "another type of state": (
        {"function": Sum(kind=float)},
        "state 'total' is stored as bigint, the function declares double",
    ),
    "another max parallelism": (
        {"max_parallelism": 64},
        "has 128 key groups, the job declares max_parallelism=64",
    ),
}


@pytest.mark.parametrize("what", CHANGED)
@pytest.mark.parametrize("policy", ["fail", "dead_letter"])
def test_what_does_not_fit_is_refused(ran: Site, what: str, policy: str) -> None:
    options, message = CHANGED[what]
    before = ran.outputs()
    with pytest.raises(StateMigrationError, match=message):
        ran.engine().run(ran.job(**options, on_error=policy))
    assert (ran.outputs(), len(ran.engine().checkpoints("tiny"))) == (before, 1)

    ran.engine().run(ran.job())  # the old job still runs
    assert ran.state() == {"a": 14, "b": 2, "c": 4}


class OtherPrimitive(KeyedProcessFunction):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def open(self, runtime_context: RuntimeContext) -> None:
        if self.kind == "list":
            runtime_context.get_list_state(ListStateDescriptor("total", int))
        else:
            runtime_context.get_map_state(MapStateDescriptor("total", str, int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        return None


@pytest.mark.parametrize("kind", ["list", "map"])
def test_another_primitive_under_the_same_name_is_refused(ran: Site, kind: str) -> None:
    with pytest.raises(
        StateMigrationError, match=f"is stored as value of bigint, the function declares {kind} of"
    ):
        ran.engine().run(ran.job(OtherPrimitive(kind)))


class WithCount(Sum):
    """The old function with one more state."""

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen", str, int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.seen.put("here", (self.seen.get("here") or 0) + 1)
        return super().process_element(value, ctx)


def test_a_new_state_is_added_to_the_operators_table(ran: Site) -> None:
    ran.engine().run(ran.job(WithCount()))
    assert ran.state() == {"a": 14, "b": 2, "c": 4}
    (row,) = ran.engine().read_state("tiny", "sums", "seen").collect()
    assert (row["k"], row["map_key"], row["value"]) == ("a", "here", 1)
    changelog = ran.spark.read.format("delta").load(str(ran.directory / "root/tiny/operators/sums/changelog"))
    assert {"v_total", "v_seen"} <= set(changelog.columns)
    assert changelog.count() == sum(
        o.changed_entries for row in ran.engine().checkpoints("tiny") for o in row.operators
    )


class Renamed(Sum):
    """The old function, whose state has another name now."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("whole", int).renamed_from("total"))


def tables_of(site: Site) -> set[str]:
    """Columns of the operator's table of changes."""
    return set(
        DeltaTable(str(site.directory / "root/tiny/operators/sums/changelog")).to_pyarrow_table().schema.names
    )


@pytest.mark.parametrize("compacted", [False, True], ids=["changes", "base"])
@pytest.mark.long
def test_a_state_is_renamed_and_nothing_is_written_for_it(ran: Site, compacted: bool) -> None:
    columns = tables_of(ran)
    if compacted:
        ran.engine().compact("tiny")
    ran.engine().run(ran.job(Renamed()))
    row = ran.engine().checkpoints("tiny")[-1]
    assert [(s.name, s.column_name) for o in row.operators for s in o.states] == [("whole", "total")]
    assert sum(o.changed_entries for o in row.operators) == 1  # the key of the new row
    assert tables_of(ran) == columns
    assert ran.state("whole") == {"a": 14, "b": 2, "c": 4}
    with pytest.raises(ConfigurationError, match=r"no state 'total'; its states: \['whole'\]"):
        ran.state()
    assert ran.engine().read_state("tiny", "sums", "total", checkpoint_id=1).count() == 3

    # without the former name, and beside a new state of the old name
    ran.put({"k": ["a", "b"], "v": [1, 1]}, "2").engine().run(ran.job(Sum(state="whole")))
    beside = ran.job(Sum())
    beside.stream(beside.operators["sums"]).keep_states("whole")
    ran.put({"k": ["a"], "v": [5]}, "3").engine().run(beside)
    ran.engine().compact("tiny")
    assert (ran.state("whole"), ran.state("total")) == ({"a": 15, "b": 3, "c": 4}, {"a": 5})


@pytest.mark.parametrize("compacted", [False, True], ids=["changes", "base"])
@pytest.mark.long
def test_a_state_that_is_given_up_does_not_come_back(ran: Site, compacted: bool) -> None:
    job = ran.job(WithCount())
    ran.engine().run(job)
    dropping = ran.job()
    dropping.stream(dropping.operators["sums"]).drop_states("seen")
    ran.put({"k": ["b"], "v": [20]}, "2").engine().run(dropping)
    with pytest.raises(ConfigurationError, match="no state 'seen'"):
        ran.engine().read_state("tiny", "sums", "seen")
    assert ran.engine().read_state("tiny", "sums", "seen", checkpoint_id=2).count() == 1  # as it was
    if compacted:
        ran.engine().compact("tiny")
        base = ran.engine().checkpoints("tiny")[-1]
        assert sum(f.rows for o in base.operators for f in o.base_files) == 3  # the totals only

    ran.put({"k": ["a"], "v": [1]}, "3").engine().run(ran.job(WithCount()))
    (row,) = ran.engine().read_state("tiny", "sums", "seen").collect()
    assert (row["k"], row["map_key"], row["value"]) == ("a", "here", 1)
    assert ran.state() == {"a": 15, "b": 22, "c": 4}


def test_operators_may_be_named_like_tables(tmp_path: Path, spark: SparkSession) -> None:
    """Names of operators and of our own tables are kept apart."""
    site = Site(tmp_path, spark).put(ROWS)
    for uid in ("checkpoints", "operator_state", "dead_letters"):
        site.directory = tmp_path / uid
        site.sink = tmp_path / uid / "sink"
        site.engine().run(site.job(uid=uid))
        assert site.state(operator=uid) == {"a": 4, "b": 2, "c": 4}


def test_another_jobs_directory_is_refused(ran: Site) -> None:
    shutil.copytree(ran.directory / "root" / "tiny", ran.directory / "root" / "other")
    with pytest.raises(RootError, match="holds the checkpoints of job 'tiny', not of job 'other'"):
        ran.engine().checkpoints("other")
    job = ran.job()
    job.name = "other"
    with pytest.raises(RootError, match="use another root or job name"):
        ran.engine().run(job)


def test_a_job_that_never_ran_has_no_state(ran: Site) -> None:
    assert ran.engine().checkpoints("never") == []
    with pytest.raises(ConfigurationError, match=r"job 'never' has no checkpoint in .* yet: run it first"):
        ran.engine().read_state("never", "sums", "total")


def test_the_output_type_may_not_change_what_the_sink_holds(ran: Site) -> None:
    from state_engine.core.errors import SinkError

    with pytest.raises(SinkError, match="the output has"):
        ran.engine().run(ran.job(output=OUTPUT.replace("total", "sum_so_far")))
    assert len(ran.engine().checkpoints("tiny")) == 1
