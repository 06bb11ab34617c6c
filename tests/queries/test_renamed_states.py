"""All reads and changes of keyed state, on states and fields that were renamed and on one that was removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from state_engine import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
    open_state,
)
from state_engine.core.errors import ConfigurationError
from tests.support.tiny import Site


@dataclass(frozen=True)
class Before:
    delay: int
    tags: dict[str, int]


@dataclass(frozen=True)
class After:
    """Its first field is renamed and in another place."""

    tags: dict[str, int]
    minutes: int = field(metadata={"alias": "delay"})


class Old(KeyedProcessFunction):
    """A sum, the last record, all records in a list and by number, and a count."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("sum", int))
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Before))
        self.all = runtime_context.get_list_state(ListStateDescriptor("many", Before))
        self.by = runtime_context.get_map_state(MapStateDescriptor("by_number", int, Before))
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.total.update((self.total.value() or 0) + value.v)
        record = Before(value.v, {"v": value.v})
        self.last.update(record)
        self.all.add(record)
        self.by.put(value.v, record)
        self.seen.update(1)
        return [(value.k, value.v, self.total.value())]


class New(KeyedProcessFunction):
    """The same, with other names, and without the count."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int).renamed_from("sum"))
        self.last = runtime_context.get_state(ValueStateDescriptor("last", After))
        self.all = runtime_context.get_list_state(ListStateDescriptor("every", After).renamed_from("many"))
        by = MapStateDescriptor("by_value", int, After).renamed_from("by_number")
        self.by = runtime_context.get_map_state(by)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.total.update((self.total.value() or 0) + value.v)
        record = After({"v": value.v}, value.v)
        self.last.update(record)
        self.all.add(record)
        self.by.put(value.v, record)
        return [(value.k, value.v, self.total.value())]


def changed_job(site: Site) -> StatefulJob:
    job = site.job(New())
    job.stream(job.operators["sums"]).drop_states("seen")
    return job


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Site:
    """After a batch with the old names and one with the new ones."""
    site = Site(tmp_path, spark).put({"k": ["a", "b", "c", "a"], "v": [1, 2, 3, 4]})
    site.engine().run(site.job(Old()))
    site.put({"k": ["a"], "v": [10]}, "1").engine().run(changed_job(site))
    return site


def plain(value: Any) -> Any:
    """Rows as dicts, at any depth."""
    if isinstance(value, Row):
        return {name: plain(part) for name, part in value.asDict().items()}
    return [plain(part) for part in value] if isinstance(value, list) else value


def state_of(engine: StateEngine, name: str, job: str = "tiny") -> dict[Any, Any]:
    """A state by key, or by key and map key."""
    rows = engine.read_state(job, "sums", name).collect()
    return {r[0] if len(r) == 2 else (r[0], r[1]): plain(r[-1]) for r in rows}


def record(v: int) -> dict[str, Any]:
    return {"tags": {"v": v}, "minutes": v}


A, B, C = [1, 4, 10], [2], [3]
STATES: dict[str, dict[Any, Any]] = {
    "total": {"a": 15, "b": 2, "c": 3},
    "last": {"a": record(10), "b": record(2), "c": record(3)},
    "every": {"a": [*map(record, A)], "b": [record(2)], "c": [record(3)]},
    "by_value": {("a", v): record(v) for v in A} | {("b", 2): record(2), ("c", 3): record(3)},
}


def all_states(engine: StateEngine, job: str = "tiny") -> dict[str, dict[Any, Any]]:
    return {name: state_of(engine, name, job) for name in STATES}


@pytest.mark.long
def test_a_renamed_state_with_a_renamed_field_is_transformed(site: Site) -> None:
    engine = site.engine()

    def hours(state: DataFrame) -> DataFrame:
        return state.withColumn("value", F.col("value").withField("minutes", F.col("value.minutes") * 60))

    (change,) = engine.state_processor("tiny").transform_state("sums", "last", map=hours).states
    assert (change.state, change.changed, change.added, change.deleted) == ("last", 3, 0, 0)
    (change,) = engine.state_processor("tiny").transform_state("sums", "total", filter="value > 2").states
    assert (change.state, change.before, change.after) == ("total", 3, 2)
    assert all_states(engine) == STATES | {
        "total": {"a": 15, "c": 3},
        "last": {k: {"tags": r["tags"], "minutes": r["minutes"] * 60} for k, r in STATES["last"].items()},
    }
    for name in ("sum", "seen"):
        with pytest.raises(ConfigurationError, match=rf"no state '{name}'; there are \['"):
            engine.state_processor("tiny").transform_state("sums", name, filter="true")


@pytest.mark.long
def test_all_that_reads_shows_the_names_of_the_code(site: Site) -> None:
    engine = site.engine()
    assert all_states(engine) == STATES
    views = {view.name for view in engine.list_views("tiny")}
    assert views >= {*STATES, *(f"sums__{name}" for name in STATES)}
    assert not views & {"sum", "many", "by_number", "seen"}
    (counts,) = engine.sql(
        "tiny",
        "SELECT t.value AS total, l.value.minutes AS minutes, e.value[1].tags['v'] AS second, b.value.minutes AS first "
        "FROM total t JOIN last l USING (k) JOIN every e USING (k) JOIN by_value b USING (k) "
        "WHERE k = 'a' AND b.map_key = 1",
    ).collect()
    assert tuple(counts) == (15, 10, 4, 1)
    opened = open_state.read_state(site.directory / "root", "tiny", "sums", "last")
    assert {r["k"]: r["value"]["minutes"] for r in opened.to_pylist()} == {"a": 10, "b": 2, "c": 3}


@pytest.mark.long
def test_a_diff_compares_a_renamed_state_with_itself(site: Site) -> None:
    engine = site.engine()
    diffs = {one.state: one for one in engine.diff("tiny", 1, 2)}
    assert {name: one.counts() for name, one in diffs.items()} == {
        "total": {"added": 0, "removed": 0, "changed": 1},
        "last": {"added": 0, "removed": 0, "changed": 1},
        "every": {"added": 0, "removed": 0, "changed": 1},
        "by_value": {"added": 1, "removed": 0, "changed": 0},
        "seen": {"added": 0, "removed": 3, "changed": 0},
    }
    (row,) = diffs["last"].changes.collect()
    assert (plain(row["before"]), plain(row["after"])) == (record(4), record(10))
    for name in ("sum", "total"):
        (one,) = engine.diff("tiny", 1, 2, state=name)
        assert one.state == "total"


MAPS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "total": lambda s: s.withColumn("value", F.col("value") + 1),
    "every": lambda s: s.withColumn("value", F.reverse("value")),
    "by_value": lambda s: s.withColumn("map_key", F.col("map_key") + 100),
}


@pytest.mark.long
def test_states_of_every_shape_change_and_go_on(site: Site) -> None:
    engine = site.engine()
    for name, function in MAPS.items():
        (change,) = engine.state_processor("tiny").transform_state("sums", name, map=function).states
        assert change.state == name
    engine.state_processor("tiny").transform_state("sums", "by_value", filter="value.minutes <> 4")
    engine.state_processor("tiny").transform_state("sums", "last", delete_keys=["b"])
    expected: dict[str, dict[Any, Any]] = {
        "total": {"a": 16, "b": 3, "c": 4},
        "last": {"a": record(10), "c": record(3)},
        "every": {k: v[::-1] for k, v in STATES["every"].items()},
        "by_value": {(k, v + 100): r for (k, v), r in STATES["by_value"].items() if v != 4},
    }
    assert all_states(engine) == expected
    engine.compact("tiny")
    assert all_states(engine) == expected

    site.put({"k": ["b"], "v": [7]}, "2").engine().run(site.job(New()))
    expected["total"]["b"], expected["last"]["b"] = 10, record(7)
    expected["every"]["b"] = [record(2), record(7)]
    expected["by_value"]["b", 7] = record(7)
    assert all_states(engine) == expected
    engine.state_processor("tiny").transform_state("sums", delete_keys=["a"])
    assert all(not any("a" in key for key in map(str, entries)) for entries in all_states(engine).values())
    assert state_of(engine, "total") == {"b": 10, "c": 4}


@pytest.mark.long
def test_a_key_is_forgotten_under_every_name(site: Site) -> None:
    """The removed state is included: its entries are still in files of changes."""
    engine = site.engine()
    planned = engine.state_processor("tiny").erase_keys({"k": "a"}, dry_run=True)
    shown = {s.state: s.deleted for s in planned.transform.states if s.deleted}
    assert shown == {"total": 1, "last": 1, "every": 1, "by_value": 3}
    engine.state_processor("tiny").erase_keys({"k": "a"}, purge=True)
    assert all_states(engine) == {
        "total": {"b": 2, "c": 3},
        "last": {"b": record(2), "c": record(3)},
        "every": {"b": [record(2)], "c": [record(3)]},
        "by_value": {("b", 2): record(2), ("c", 3): record(3)},
    }
    still = [
        t
        for t in engine.state_processor("tiny").erase_keys({"k": "a"}, dry_run=True).traces
        if t.kind == "checkpoint"
    ]
    assert still == []


@pytest.mark.long
@pytest.mark.parametrize("compacted", [False, True], ids=["changes", "base"])
def test_a_savepoint_is_restored_elsewhere_and_a_replay_says_the_same(site: Site, compacted: bool) -> None:
    engine = site.engine()
    if compacted:
        engine.compact("tiny")
    location = site.directory / "savepoint"
    engine.savepoints("tiny").create("renamed", location)
    other = Site(site.directory / "other", site.spark)
    other.put({"k": ["b"], "v": [5]}, "9")
    other.engine().restore(other.job(New()), savepoint=location)
    assert all_states(other.engine()) == STATES
    other.engine().run(other.job(New()))
    assert state_of(other.engine(), "total") == {"a": 15, "b": 7, "c": 3}
    assert state_of(other.engine(), "every")["b"] == [record(2), record(5)]

    engine.replay(site.job(New()), from_checkpoint=0, branch="again")
    compared = engine.compare("tiny", "again")
    assert compared.is_equal, compared.summary()
    assert {s.state for s in compared.states} == set(STATES)

    engine.restore("tiny", checkpoint_id=1)  # and back to the old names
    assert state_of(engine, "sum") == {"a": 5, "b": 2, "c": 3}
    assert state_of(engine, "seen") == {"a": 1, "b": 1, "c": 1}
    assert plain(engine.read_state("tiny", "sums", "last").where("k = 'a'").collect()[0]["value"]) == {
        "delay": 4,
        "tags": {"v": 4},
    }
