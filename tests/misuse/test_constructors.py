"""What makes sources, sinks, states, strategies, engines and jobs takes a wrong argument as one.

And what it advises is taken.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from state_engine import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ChangeFormat,
    CompactionPolicy,
    DeadLetterLimit,
    DeltaSink,
    DeltaSource,
    DeltaStateTable,
    Duration,
    EmbeddedRocksDBStateBackend,
    FileSink,
    FileSource,
    FoldingStateDescriptor,
    ForeachBatchSink,
    FsStateBackend,
    KafkaSink,
    KafkaSource,
    LastRow,
    ListStateDescriptor,
    LocalCopies,
    MapStateDescriptor,
    OutputTag,
    PythonDataSource,
    ReducingStateDescriptor,
    RetentionPolicy,
    Scd2,
    SnapshotFormat,
    SortedMapStateDescriptor,
    SparkState,
    SqlSink,
    SqlStateTable,
    StateEngine,
    StatefulJob,
    StateTtlConfig,
    StoreAccess,
    Time,
    TimePartitions,
    TopN,
    TtlTime,
    TtlUpdateType,
    TtlVisibility,
    ValueStateDescriptor,
    WatermarkStrategy,
    load_settings,
)
from state_engine.core.errors import ConfigurationError, InternalError, StatelakeError
from state_engine.dagster import (
    JobOptions,
    PipesLaunch,
    StateEngineResource,
    output_check,
    state_check,
    statelake_assets,
    statelake_definitions,
)
from state_engine.expectations.suites import Expectation, OfSink, OfState, Suite
from state_engine.registry import RegisteredJob
from tests.metamorphic.functions import Lines, UpTo


def copying() -> StatefulJob:
    job = StatefulJob("j")
    rows = job.from_collection([("a", 1)], "k string, v bigint", name="rows")
    rows.key_by("k").filter(lambda row: row.v > 0, uid="positive").sink("out", DeltaSink("/out"))
    return job


FIVE_MINUTES = StateTtlConfig.new_builder("5 min")
CLEAN_UP = StateTtlConfig.CleanupStrategies({}, True)
EXPECTED: dict[str, Any] = {"name": "e", "type": "expect_column_to_exist", "arguments": {"column": "k"}}
MADE: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (FileSource, {"path": "/in", "schema": "k string"}),
    (FileSource, {"path": "/in", "schema": "k string", "format": "csv"}),
    (DeltaSource, {"path": "/in"}),
    (DeltaSource, {"table": "lake.in"}),
    (KafkaSource, {"servers": "b:1", "topic": "t", "schema": "k string"}),
    (KafkaSource, {"servers": "b:1", "pattern": "t", "schema": "k string"}),
    (PythonDataSource, {"data_source": Lines}),
    (ChangeFormat.columns, {"op": "op", "insert": ["i"], "update": ["u"], "delete": ["d"]}),
    (ChangeFormat.debezium, {}),
    (SnapshotFormat, {"key": ["id"]}),
    (TimePartitions, {"column": "day", "start": "2024-01-01"}),
    (DeltaSink, {"path": "/out"}),
    (DeltaSink, {"path": "/out", "key": ["k"]}),
    (FileSink, {"path": "/out"}),
    (SqlSink, {"url": "sqlite:////tmp/x.db", "table": "t"}),
    (KafkaSink, {"servers": "b:1", "topic": "t"}),
    (ForeachBatchSink, {"function": print, "name": "n"}),
    (DeltaStateTable, {"path": "/out"}),
    (SqlStateTable, {"url": "sqlite:////tmp/x.db", "table": "t"}),
    (ValueStateDescriptor, {"name": "n", "value_type_info": int}),
    (ListStateDescriptor, {"name": "n", "elem_type_info": int}),
    (MapStateDescriptor, {"name": "n", "key_type_info": str, "value_type_info": int}),
    (SortedMapStateDescriptor, {"name": "n", "key_type_info": str, "value_type_info": int}),
    (ReducingStateDescriptor, {"name": "n", "reduce_function": max, "type_info": int}),
    (OutputTag, {"tag_id": "t", "type_info": "k string"}),
    (RetentionPolicy, {}),
    (CompactionPolicy, {}),
    (StatefulJob, {"name": "j"}),
    (StateEngine, {"root": "/state"}),
    (StoreAccess, {}),
    (LocalCopies, {}),
    (load_settings, {}),
    (DeadLetterLimit, {"rows": 1}),
    (SparkState, {}),
    (EmbeddedRocksDBStateBackend, {}),
    (FsStateBackend, {}),
    (LastRow, {"row_type": "k string, v bigint", "key": ["k"]}),
    (TopN, {"row_type": "k string, v bigint", "n": 1, "by": "v"}),
    (Scd2, {"row_type": "k string, v bigint, at timestamp", "valid_from": "at"}),
    (AggregatingStateDescriptor, {"name": "n", "agg_function": AggregateFunction(), "state_type_info": int}),
    (FoldingStateDescriptor, {"name": "n", "initial_value": 0, "fold_function": max, "type_info": int}),
    (ValueStateDescriptor("n", int).enable_time_to_live, {"ttl_config": FIVE_MINUTES.build()}),
    (ValueStateDescriptor("n", int).renamed_from, {"former_name": "o"}),
    (Time.hours, {"hours": 1}),
    (Duration.of_days, {"days": 1}),
    (WatermarkStrategy, {}),
    (WatermarkStrategy.for_bounded_out_of_orderness, {"max_out_of_orderness": "5 min"}),
    (WatermarkStrategy().with_timestamp_assigner, {"timestamp_assigner": len}),
    (WatermarkStrategy().with_timestamp_column, {"name": "at", "unit": "s"}),
    (WatermarkStrategy().with_idleness, {"idle_timeout": "5 min"}),
    (StateTtlConfig, {"update_type": TtlUpdateType.OnReadAndWrite, "state_visibility": TtlVisibility(0),
                      "ttl_time_characteristic": TtlTime.EventTime, "ttl": "5 min", "cleanup_strategies": CLEAN_UP}),
    (StateTtlConfig.CleanupStrategies, {"strategies": {}, "is_cleanup_in_background": True}),
    (StateTtlConfig.new_builder, {"ttl": "5 min"}),
    (FIVE_MINUTES.set_ttl, {"ttl": "5 min"}),
    (FIVE_MINUTES.set_update_type, {"update_type": TtlUpdateType.OnReadAndWrite}),
    (FIVE_MINUTES.set_state_visibility, {"state_visibility": TtlVisibility.NeverReturnExpired}),
    (FIVE_MINUTES.set_ttl_time_characteristic, {"ttl_time_characteristic": TtlTime.EventTime}),
    (FIVE_MINUTES.cleanup_incrementally, {"cleanup_size": 5, "run_cleanup_for_every_record": True}),
    (FIVE_MINUTES.cleanup_in_rocksdb_compact_filter, {"query_time_after_num_entries": 5}),
    (OfSink, {"sink": "out"}),
    (OfState, {"operator": "o", "state": "s"}),
    (Expectation, EXPECTED),
    (Suite, {"name": "s", "of": OfSink("out"), "expectations": (Expectation(**EXPECTED),)}),
    (RegisteredJob, {"job": copying()}),
    (JobOptions, {}),
    (PipesLaunch, {"command": ["spark-submit", "run.py"]}),
    (StateEngineResource, {"root": "/state"}),
    (output_check, {"job": copying(), "sink": "out"}),
    (state_check, {"job": copying(), "operator": "positive", "state": "s"}),
    (statelake_assets, {"job": copying(), "root": "/state"}),
    (statelake_definitions, {"jobs": [copying()], "root": "/state"}),
]  # fmt: skip
WRONG: list[Any] = [
    None, 7, 0, -1, 1.5, True, "x", "", "a\0b", b"x", [], ["x"], [7], {}, {"a": 1}, {1}, object(), int, len,
]  # fmt: skip


@pytest.mark.parametrize("made", MADE, ids=lambda made: f"{made[0].__qualname__} {', '.join(made[1])}")
def test_a_wrong_argument_is_taken_or_refused_as_one(made: tuple[Callable[..., Any], dict[str, Any]]) -> None:
    cls, valid = made
    with warnings.catch_warnings(action="ignore"):
        cls(**valid)
    raw = []
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        for wrong in WRONG:
            try:
                with warnings.catch_warnings(action="ignore"):
                    cls(**valid | {name: wrong})
            except StatelakeError as error:
                if isinstance(error, InternalError):
                    raw.append(f"{name}={wrong!r}: {error}")
            except Exception as error:
                raw.append(f"{name}={wrong!r}: {type(error).__name__}: {error}")
    assert not raw


LITE, BROKER = "sqlite:////tmp/x.db", "b:1"
ROWS: dict[str, Any] = {"path": "/in", "schema": "k string, at timestamp", "format": "csv"}


def source(**options: Any) -> Any:
    return StatefulJob("j").source("rows", FileSource(**ROWS), **{"event_time": "at"} | options)


def counter(**options: Any) -> Any:
    return StatefulJob("j").source("numbers", UpTo(3), output_type="bigint", **options)


FOLLOWED: list[tuple[Callable[..., Any], dict[str, Any], str, Callable[[Any], dict[str, Any]]]] = [
    (FileSource, ROWS | {"schema": None}, "needs a schema, for example '(k bigint)'", lambda m: {"schema": m[1]}),
    (FileSource, ROWS | {"format": "xml"}, "use (parquet), csv or json", lambda m: {"format": m[1]}),
    (FileSource, ROWS | {"max_rows_per_batch": 5}, "use (max_files_per_batch)",
     lambda m: {"max_rows_per_batch": None, m[1]: 5}),
    (FileSource, {"path": "/in", "schema": int}, "such as '(k bigint)'", lambda m: {"schema": m[1]}),
    (FileSource, ROWS | {"missing": "x"}, "must be '(null)' or '(refuse)'", lambda m: {"missing": m[2]}),
    (DeltaSource, {"path": "/t", "changes": True, "on_change": "skip"}, "use 'fail' or '(restart)'",
     lambda m: {"on_change": m[1]}),
    (DeltaSource, {"path": "/t", "with_metadata": True}, "it needs (changes)=(True)", lambda m: {m[1]: True}),
    (DeltaSource, {"path": "/t", "table": "lake.t"}, "takes the (path) of .*, or (table)=.*both", lambda m: {m[1]: ""}),
    (DeltaSource, {"path": "/t", "starting_version": "first"}, "must be '(snapshot)', '(latest)' or a version",
     lambda m: {"starting_version": m[2]}),
    (DeltaSink, {"path": "/t", "key": "k"}, r"must be a list of columns: (\['k'\])", lambda m: {"key": literal(m[1])}),
    (KafkaSource, {"servers": BROKER, "topic": "t", "schema": "k int", "changes": True, "key": "k"},
     r"a list of columns: (\['k'\])", lambda m: {"key": literal(m[1])}),
    (DeltaSink, {"path": "/t", "sequence": ["n"]}, r"add (key)=\[…\]", lambda m: {m[1]: ["k"]}),
    (DeltaSink, {"path": "/t", "key": ["k"], "sequence": ["k"]}, "(sequence)= names 'k', which is part of the key",
     lambda m: {m[1]: ["n"]}),
    (DeltaSink, {"path": "/t", "key": ["k"], "lineage": True}, "(lineage)=True .* Leave it out",
     lambda m: {m[1]: False}),
    (DeltaSink, {"path": "/t", "key": ["k"], "shared": True}, "(shared)=True .* say (adopt)=True",
     lambda m: {m[1]: False, m[2]: True}),
    (KafkaSource, {"servers": BROKER, "topic": "t"}, "for example '(user string, at timestamp)'",
     lambda m: {"schema": m[1]}),
    (KafkaSource, {"servers": BROKER, "topic": "t", "pattern": "t", "schema": "k int"}, "or a (pattern) of topics; one",
     lambda m: {m[1]: None}),
    (KafkaSource, {"servers": BROKER, "topic": "t", "format": "raw", "schema": "k int"}, "leave out (schema),",
     lambda m: {m[1]: None}),
    (KafkaSink, {"servers": BROKER, "topic": "t", "key_format": "raw"}, "(key)=\\['…'\\]", lambda m: {m[1]: ["k"]}),
    (KafkaSink, {"servers": BROKER, "topic": "t", "marker_topic": "t"}, "another (marker_topic)",
     lambda m: {m[1]: "m"}),
    (KafkaSink, {"servers": BROKER, "topic": "t", "schema": "k int"}, "or leave it out", lambda m: {"schema": ""}),
    (TimePartitions, {"column": "day"}, "(start)='([-0-9]+)'", lambda m: {m[1]: m[2]}),
    (TimePartitions, {"column": "day", "start": "2024-01-01", "timezone": "Mars"}, "such as '(America/New_York)'",
     lambda m: {"timezone": m[1]}),
    (TimePartitions, {"column": "day", "start": "2024-01-01", "every": "year"}, "one of (hour|day)",
     lambda m: {"every": m[1]}),
    (ChangeFormat.columns, {"op": "op"}, r"insert=(\['I'\]), update=(\['U'\]), delete=(\['D'\])",
     lambda m: {name: literal(m[n]) for n, name in enumerate(("insert", "update", "delete"), 1)}),
    (ChangeFormat.columns, {"op": "op", "insert": "I"}, r"write (\['I'\])", lambda m: {"insert": literal(m[1])}),
    (StatefulJob, {"name": "j", "max_clock_jump": "soon"}, "such as .*'(30 min)'", lambda m: {"max_clock_jump": m[1]}),
    (StatefulJob, {"name": "j", "max_clock_jump": 1.5}, "text such as '(30 min)'", lambda m: {"max_clock_jump": m[1]}),
    (source, {"watermark": "clock"}, "for example watermark='(clock)', (clock_delay)='(10 min)'",
     lambda m: {"watermark": m[1], m[2]: m[3]}),
    (source, {"clock_delay": "10 min"}, "for example (watermark)='(clock)'", lambda m: {m[1]: m[2]}),
    (source, {"idle_after": 0}, "(idle_after) must be above zero", lambda m: {m[1]: 1}),
    (counter, {}, "(max_rows_per_batch) must say, with a number of at least (1)", lambda m: {m[1]: int(m[2])}),
]  # fmt: skip
"""What is made, with what; the advice; and from it what to give instead."""


def literal(text: str) -> Any:
    return ast.literal_eval(text)


@pytest.mark.parametrize("case", FOLLOWED, ids=lambda case: f"{case[0].__qualname__}: {case[2][:40]}")
def test_the_advice_about_an_argument_is_taken(case: Any) -> None:
    make, given, advice, instead = case
    with pytest.raises(ConfigurationError) as refused:
        make(**given)
    advised = re.search(advice, str(refused.value))
    assert advised, refused.value
    make(**given | instead(advised))
