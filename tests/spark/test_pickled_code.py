"""What cannot travel to subtasks is refused with its place in the code, however many rows there are."""

from __future__ import annotations

import functools
import re
import socket
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import (
    AggregateFunction,
    DataStream,
    FileSink,
    FilterFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    StateEngine,
    StatefulJob,
    TimestampAssigner,
    WatermarkStrategy,
)
from state_engine.core.errors import ConfigurationError
from state_engine.spark.pickled_code import copied
from state_engine.testing import CollectSink, KeyedHarness, OperatorHarness, run_in_memory
from tests.support.limits import SetLimits

LOCK = threading.Lock()


class Session:
    """A client as libraries have them: it looks harmless and holds a lock."""

    def __init__(self) -> None:
        self.pool = {"first": [threading.Lock()]}


@dataclass
class Settings:
    name: str = "n"
    session: Session = field(default_factory=Session)


class Enrich(MapFunction):
    def __init__(self, client: Any) -> None:
        self.client = client

    def map(self, value: Any) -> Any:
        return value


def closure(thing: Any) -> Callable[[Any], Any]:
    return lambda value: (value, thing)[0]


def with_global(value: Any) -> Any:
    with LOCK:
        return value


def with_two(client: Any, value: Any) -> Any:
    return value


class Callback:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def method(self, value: Any) -> Any:
        return value


class Slotted:
    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.RLock()


def generator() -> Any:
    yield 1


def opened(mode: str) -> Any:
    return Path(__file__).open(mode)


PLACES: dict[str, tuple[Callable[[], Any], str]] = {
    "an attribute": (lambda: Enrich(threading.Lock()), r"Enrich\.client is a lock"),
    "deep in an attribute": (
        lambda: Enrich(Session()),
        r"Enrich\.client\.Session\.pool\['first'\]\[0\] is a lock",
    ),
    "a field of a dataclass": (lambda: Enrich(Settings()), r"Settings\.session\.Session\.pool\[.* is a lock"),
    "a closure": (lambda: closure(threading.Lock()), r"<lambda>\.thing is a lock"),
    "a global name": (lambda: with_global, r"with_global\.LOCK is a lock"),
    "an argument of a partial": (
        lambda: functools.partial(with_two, threading.Lock()),
        r"partial\.args\[0\] is a lock",
    ),
    "a keyword of a partial": (
        lambda: functools.partial(with_two, client=threading.Lock()),
        r"client is a lock",
    ),
    "a default": (lambda: lambda value, lock=threading.Lock(): value, r"default\[0\] is a lock"),  # noqa: B008
    "the object of a method": (lambda: Callback().method, r"Callback\.Callback\.lock is a lock"),
    "a slot": (lambda: Enrich(Slotted()), r"Slotted\.lock is a RLock"),
    "a list": (lambda: Enrich([1, (2, threading.Lock())]), r"client\[1\]\[1\] is a lock"),
}
KINDS: dict[str, tuple[Callable[[], Any], str]] = {
    "a lock": (threading.Lock, "lock"),
    "a condition": (threading.Condition, "RLock"),
    "a socket": (socket.socket, "socket"),
    "a connection": (lambda: sqlite3.connect(":memory:"), "Connection"),
    "a generator": (generator, "generator"),
    "a file to read": (lambda: opened("r"), "TextIOWrapper"),
    "a file of bytes": (lambda: opened("rb"), "BufferedReader"),
    "a thread": (lambda: threading.Thread(target=print), ""),
}


@pytest.mark.parametrize("what", PLACES)
def test_the_place_of_what_cannot_travel_is_named(what: str) -> None:
    make, path = PLACES[what]
    with pytest.raises(ConfigurationError) as caught:
        copied(make(), what="operator 'enrich'")
    assert re.search(f"^operator 'enrich': .*{path}, which cannot be sent to subtasks", str(caught.value)), (
        caught.value
    )
    assert "Make it in open() of the function" in str(caught.value)


@pytest.mark.parametrize("what", KINDS)
def test_the_kind_of_what_cannot_travel_is_named(what: str) -> None:
    make, kind = KINDS[what]
    thing = make()
    with pytest.raises(ConfigurationError, match=rf"Enrich\.client.* is a .*{kind}, which cannot be sent"):
        copied(Enrich(thing), what="operator 'enrich'")
    if hasattr(thing, "close"):
        thing.close()


def test_what_can_travel_does() -> None:
    assert copied(closure({"a": [1]}), what="f")(3) == 3
    assert copied(Enrich(Settings), what="f").client().name == "n"


class Locked:
    """Mixed into a function of any kind."""

    def __init__(self) -> None:
        self.client = threading.Lock()


class LockedMap(Locked, MapFunction):
    def map(self, value: Any) -> Any:
        return value


class LockedFilter(Locked, FilterFunction):
    def filter(self, value: Any) -> bool:
        return True


class LockedKey(Locked, KeySelector):
    def get_key(self, value: Any) -> Any:
        return value.k


class LockedProcess(Locked, KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.v


class LockedAggregate(Locked, AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


class LockedTimes(Locked, TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return 1


def capturing() -> Callable[[Any], Any]:
    lock = threading.Lock()
    return lambda value: (value.v, lock)[0]


FUNCTIONS: dict[str, tuple[Callable[[DataStream], DataStream], str]] = {
    "map": (lambda s: s.map(LockedMap(), "k string, v bigint", uid="f"), "operator 'f': .*client"),
    "a lambda": (lambda s: s.map(capturing(), int, uid="f"), "operator 'f': .*lock"),
    "filter": (lambda s: s.filter(LockedFilter()), "client"),
    "a key": (
        lambda s: s.key_by(LockedKey(), key_type=str).map(lambda v: v.v, int, uid="f"),
        "key_by of operator 'f': .*client",
    ),
    "process": (lambda s: s.key_by("k").process(LockedProcess(), uid="f", output_type=int), "operator 'f': .*client"),
    "aggregate": (
        lambda s: s.key_by("k").aggregate(LockedAggregate(), accumulator_type=int, output_type=int, uid="f"), "client"
    ),
    "event time": (
        lambda s: s.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(LockedTimes())
        ).map(lambda v: v.v, int, uid="f"),
        "source 'rows': .*client",
    ),
}  # fmt: skip


def job_of(what: str, sink: Any) -> StatefulJob:
    job = StatefulJob("travels")
    stream = FUNCTIONS[what][0](job.from_collection([("a", 1)], "k string, v bigint", name="rows"))
    stream.sink("out", sink)
    return job


@pytest.mark.parametrize("what", FUNCTIONS)
def test_every_function_is_refused_in_memory(what: str) -> None:
    with (
        pytest.raises(ConfigurationError, match=FUNCTIONS[what][1] + ".*cannot be sent to subtasks"),
        run_in_memory(job_of(what, CollectSink())) as run,
    ):
        run.run()


@pytest.mark.spark
@pytest.mark.parametrize("few_rows", [20_000, -1])
def test_few_rows_are_refused_as_many_are(
    tmp_path: Path, spark: SparkSession, limits: SetLimits, few_rows: int
) -> None:
    limits(rows=few_rows)
    for what in FUNCTIONS:
        job = job_of(what, FileSink(str(tmp_path / "out")))
        with (
            StateEngine(tmp_path / f"root_{what}".replace(" ", "_"), spark) as engine,
            pytest.raises(ConfigurationError, match=FUNCTIONS[what][1] + ".*cannot be sent to subtasks"),
        ):
            engine.run(job)


HARNESSES: dict[str, tuple[Callable[[], Any], str]] = {
    "map": (lambda: OperatorHarness(LockedMap()), r"LockedMap\.client"),
    "process": (lambda: KeyedHarness(LockedProcess(), key_by=lambda v: v), r"LockedProcess\.client"),
    "a key": (
        lambda: KeyedHarness(CountsRows(), key_by=LockedKey().get_key),
        r"get_key\.LockedKey\.client|LockedKey\.LockedKey\.client",
    ),
    "restored": (
        lambda: OperatorHarness.restored(LockedMap(), OperatorHarness(Captures(1)).snapshot()),
        r"LockedMap\.client",
    ),
}


@pytest.mark.parametrize("what", HARNESSES)
def test_a_harness_refuses_what_a_run_refuses(what: str) -> None:
    make, words = HARNESSES[what]
    with pytest.raises(ConfigurationError, match=f"operator 'harness': {words}.*cannot be sent to subtasks"):
        make()


def test_a_harness_runs_what_can_travel() -> None:
    """Its functions remember outside of themselves what they saw, as tests have them do."""
    seen: list[int] = []

    def remember(value: int) -> int:
        seen.append(value)
        return value

    assert OperatorHarness(MapFunction.of(remember, what="map")).process([1, 2]) == [1, 2]
    assert seen == [1, 2]


class CountsRows(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield 1


class Captures(MapFunction):
    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def map(self, value: Any) -> Any:
        return value.v


@pytest.mark.spark
def test_a_session_and_a_dataframe_are_refused(spark: SparkSession) -> None:
    for thing in (spark, spark.range(1), spark.sparkContext):
        with pytest.raises(ConfigurationError, match=r"Captures\.thing.*cannot be sent to subtasks"):
            copied(Captures(thing), what="operator 'f'")
