"""The exported names, and their page: a name that goes, or comes, is a decision and not an accident."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import state_engine
from docs import api
from state_engine import errors
from state_engine.core import errors as core_errors
from tests.docs.test_english import public

NAMES = {
    "AggregateFunction", "AggregatingState", "AggregatingStateDescriptor", "AppendingState", "BatchReport",
    "CheckpointRow", "DataStream", "DeltaSink", "DeltaSource", "DeltaStateTable", "Duration", "FileSink", "FileSource",
    "FoldFunction", "FoldingState", "FoldingStateDescriptor", "Instant", "KeyedProcessFunction", "KeyedStream",
    "ListState", "ListStateDescriptor", "MapState", "MapStateDescriptor", "MergingState", "OperatorReport",
    "ReduceFunction", "ReducingState", "ReducingStateDescriptor", "Row", "RowKind", "RunReport", "RuntimeContext",
    "SortedMapState", "SortedMapStateDescriptor", "State",
    "StateEngine", "StateTtlConfig", "StatefulJob", "StatelakeError", "Time", "TimeDomain", "TimerService",
    "Types", "PythonDataSource", "ChangeFormat", "SnapshotFormat", "ConnectedStreams", "BroadcastStream",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction", "BroadcastState", "CheckpointListener", "CheckpointedFunction", "CoFlatMapFunction",
    "CoMapFunction", "CoProcessFunction", "FilterFunction", "FlatMapFunction", "Function",
    "FunctionInitializationContext", "FunctionSnapshotContext", "KeySelector", "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction", "ListCheckpointed", "MapFunction", "MetricGroup", "OperatorStateStore", "OutputTag",
    "ProcessFunction", "ReadOnlyBroadcastState", "SinkFunction", "SourceFunction",
    "ValueState", "ValueStateDescriptor", "SqlSink", "ForeachBatchSink", "SqlStateTable",
    "CustomStateBackend", "EmbeddedRocksDBStateBackend", "FsStateBackend", "HashMapStateBackend",
    "MemoryStateBackend", "PredefinedOptions", "RocksDBStateBackend", "StateBackend",
    "CompactionPolicy", "RetentionPolicy", "TimePartitions", "CloseableIterator", "DeadLetterLimit",
    "RowsBetween", "ShareOfLast", "NoKeyTwice", "SameSum",
    "TimestampAssigner", "WatermarkStrategy", "TtlTime", "TtlUpdateType", "TtlVisibility",
    "StateProcessor", "JobSavepoints", "JobPublished", "SparkState", "Settings", "SparkSettings",
    "load_settings", "local_session", "StoreAccess", "LocalCopies",
    "BackfillReport", "BootstrapReport", "CompactionReport", "ComparisonReport", "DeadLetterReport", "EraseReport",
    "ErasedTable", "JobPlan", "KeyTypeReport", "OperatorDropReport", "PartPlan",
    "PlannedReplay", "ReplayReport", "RescaleReport", "RestoreReport",
    "SavepointReport", "TransformReport", "TableReport",
    "UpgradeReport", "VacuumReport",
    "RegistrationReport", "RegisteredName", "DeadLetter", "Disposal", "PartitionStatus", "PinnedCheckpoint", "SqlView",
    "count", "sum_", "avg", "min_", "max_", "Timestamped",
    "count_distinct", "collect_set", "collect_list", "first", "last", "min_by", "max_by", "stddev", "variance",
    "aggregate_with", "step",
    "WindowedStream", "Tumbling", "Sliding", "Cumulating", "Session", "TimeWindow",
    "AllWindowedStream", "CountWindow", "GlobalWindow", "ProcessWindowFunction", "WindowFunction",
    "ProcessAllWindowFunction", "AllWindowFunction", "TumblingEventTimeWindows", "SlidingEventTimeWindows",
    "EventTimeSessionWindows", "DynamicEventTimeSessionWindows", "TumblingProcessingTimeWindows",
    "SlidingProcessingTimeWindows", "ProcessingTimeSessionWindows", "DynamicProcessingTimeSessionWindows",
    "CountTumblingWindowAssigner", "CountSlidingWindowAssigner", "GlobalWindows", "SessionWindowTimeGapExtractor",
    "EventTimeTrigger", "ProcessingTimeTrigger", "CountTrigger", "PurgingTrigger",
    "StateDiff", "TaskProgress", "KeyHistory", "KeyEvent", "RowsOfKey", "StateOfKey", "TimersOfKey",
    "KeyDebug", "DebuggedKey", "DebuggedBatch", "DebuggedState", "DebuggedOutput", "KeyStep", "KeyElement",
    "IntervalJoined", "ProcessJoinFunction",
    "LastRow", "Scd2", "TopN", "KafkaSource", "KafkaSink", "VectorizedKeyedFunction", "VectorizedResult",
}  # fmt: skip


def test_the_exported_names_are_these() -> None:
    assert set(state_engine.__all__) == NAMES
    assert len(state_engine.__all__) == len(NAMES)


def test_every_error_is_a_name_of_one_module() -> None:
    defined = {
        name
        for name, cls in inspect.getmembers(core_errors, inspect.isclass)
        if cls.__module__ == core_errors.__name__
    }
    assert set(errors.__all__) == defined
    assert all(getattr(errors, name) is getattr(core_errors, name) for name in defined)


def test_what_a_call_gives_is_exported() -> None:
    """Classes of the engine in what public methods return, or hand to ``on_progress``, can be imported."""
    for cls in CALLED:
        for name, function in inspect.getmembers(cls, inspect.isfunction):
            if name.startswith("_"):
                continue
            named = re.findall(
                r"\b[A-Z]\w+", str(inspect.signature(inspect.unwrap(function)).return_annotation)
            )
            for class_name in set(named) - {
                "DataFrame",
                "None",
                "Sequence",
                "SparkSession",
                "DeltaKernel",
                "Self",
            }:
                assert class_name in NAMES, f"{cls.__name__}.{name} returns {class_name}"


@pytest.mark.parametrize("exported", public(), ids=lambda exported: exported.__name__)
def test_a_public_name_and_its_members_are_documented(exported: Any) -> None:
    """The linter asks for no docstring of a function or a class, because those inside of the engine may need none."""
    assert inspect.getdoc(exported)
    members = inspect.getmembers(exported, lambda member: isinstance(member, FunctionType | property))
    for name, member in members if inspect.isclass(exported) else []:
        module = getattr(member, "fget", member).__module__
        if not name.startswith("_") and module.startswith("state_engine"):
            assert inspect.getdoc(member), f"{exported.__name__}.{name}"


SIGNATURES = {
    "run": [
        "job",
        "partition",
        "max_batches",
        "clock",
        "parameters",
        "requested_by",
        "drain",
        "accept_clock",
        "register",
        "on_progress",
    ],
    "register": ["catalog", "schema", "jobs", "dry_run"],
    "checkpoints": ["job"],
    "read_state": ["job", "operator", "state", "checkpoint_id", "as_of", "include_expired", "metadata"],
    "sql": ["job", "text", "checkpoint_id", "as_of", "unrestricted"],
    "list_views": ["job", "checkpoint_id", "as_of"],
    "diff": ["job", "before", "after", "operator", "state"],
    "dead_letters": ["job"],
    "list_dead_letters": ["job", "sent"],
    "replay_dead_letters": [
        "job",
        "ids",
        "operator",
        "max_rows",
        "clock",
        "parameters",
        "requested_by",
        "accept_clock",
        "dry_run",
        "on_progress",
    ],
    "close": [],
}


def test_the_engine_is_called_as_promised() -> None:
    for method, parameters in SIGNATURES.items():
        parameter_names = list(inspect.signature(getattr(state_engine.StateEngine, method)).parameters)
        assert parameter_names == ["self", *parameters], method


CALLED = (
    state_engine.StateEngine, state_engine.StateProcessor, state_engine.JobSavepoints, state_engine.JobPublished,
)  # fmt: skip
CALLS = {
    f"{cls.__name__}.{name}": inspect.signature(function).parameters
    for cls in CALLED
    for name, function in inspect.getmembers(cls, inspect.isfunction)
    if not name.startswith("_")
}
LOOKS = {
    "branches", "checkpoints", "read_state", "sql", "list_views", "diff", "dead_letters", "list_dead_letters",
    "partitions", "plan", "compare", "explain", "debug", "list", "verify", "close", "savepoints",
    "state_processor", "published",
}  # fmt: skip
RUNS = {"run", "replay", "create", "tidy"}
"""A replay is what a run would do; a savepoint adds files of its own; ``tidy`` changes no row."""


def test_a_parameter_means_the_same_everywhere() -> None:
    for call, parameters in CALLS.items():
        if "job" in parameters:
            assert list(parameters)[1] == "job", call
        for name in ("checkpoint_id", "dry_run", "on_progress", "clock", "requested_by", "as_of"):
            if name in parameters:
                assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY, f"{call}, {name}"


def test_what_changes_something_can_be_tried_first_and_says_who_asked() -> None:
    for call, parameters in CALLS.items():
        name = call.partition(".")[2]
        if name not in LOOKS:
            assert "dry_run" in parameters or name in RUNS, call
            assert "requested_by" in parameters or name in ("publish_pending", "tidy", "register"), call


def test_a_name_in_place_of_a_job_whose_code_is_needed_is_refused(tmp_path: Path) -> None:
    engine = state_engine.StateEngine(tmp_path)
    calls: list[Callable[[Any], Any]] = [
        engine.run,
        engine.plan,
        engine.rescale,
        engine.replay,
        engine.replay_dead_letters,
        engine.partitions,
        lambda job: engine.backfill(job, "2026-01-01", "2026-01-02"),
        lambda job: engine.state_processor(job).bootstrap({}),
        lambda job: engine.state_processor(job).change_key_type("sums"),
    ]
    for call in calls:
        with pytest.raises(errors.ConfigurationError, match="needs the job itself, not only its name 'sums'"):
            call("sums")


def test_functions_port_by_their_imports() -> None:
    """Names that a PyFlink function uses."""
    for cls, members in {
        state_engine.KeyedProcessFunction: ["open", "close", "process_element", "Context"],
        state_engine.KeyedProcessFunction.Context: ["get_current_key", "timestamp", "timer_service"],
        state_engine.KeyedProcessFunction.OnTimerContext: ["time_domain", "timestamp", "get_current_key"],
        state_engine.KeyedCoProcessFunction: ["process_element1", "process_element2", "on_timer", "OnTimerContext"],
        state_engine.KeyedBroadcastProcessFunction: [
            "process_element", "process_broadcast_element", "on_timer", "Context", "ReadOnlyContext", "OnTimerContext",
        ],
        state_engine.MetricGroup: ["counter", "gauge", "meter", "distribution", "add_group"],
        state_engine.TimerService: [
            "current_processing_time", "current_watermark", "register_event_time_timer", "delete_event_time_timer",
            "register_processing_time_timer", "delete_processing_time_timer",
        ],
        state_engine.RuntimeContext: [
            "get_state", "get_list_state", "get_map_state", "get_task_name", "get_index_of_this_subtask",
            "get_number_of_parallel_subtasks", "get_max_number_of_parallel_subtasks", "get_attempt_number",
            "get_job_parameter", "get_metrics_group",
        ],
        state_engine.ValueState: ["value", "update", "clear"],
        state_engine.ListState: ["get", "add", "add_all", "update", "clear", "__iter__"],
        state_engine.MapState: [
            "get", "put", "put_all", "remove", "contains", "items", "keys", "values", "is_empty", "clear",
            "__contains__", "__getitem__", "__setitem__", "__delitem__", "__iter__",
        ],
        state_engine.ValueStateDescriptor: ["get_name"],
    }.items():  # fmt: skip
        missing = [m for m in members if not hasattr(cls, m)]
        assert not missing, f"{cls}: {missing}"


def test_the_page_is_written_from_the_code_of_today() -> None:
    assert api.PAGE.read_text() == api.page(), "a public name changed; run: python -m docs.api"


def test_every_exported_name_has_its_place() -> None:
    placed = Counter(name for _, names in api.GROUPS.values() for name in names)
    assert set(placed) == set(state_engine.__all__) - {"StatelakeError"}
    assert set(placed.values()) == {1}


@pytest.mark.parametrize("cls", CALLED, ids=lambda cls: cls.__name__)
def test_errors_that_a_call_names_are_errors_of_ours(cls: type) -> None:
    for name, function in inspect.getmembers(cls, inspect.isfunction):
        named = set(re.findall(r"\b\w+Error\b", inspect.getdoc(function) or ""))
        assert named <= set(errors.__all__), name


def test_a_changed_signature_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: object, job: object, *, other: bool = False) -> None:
        """Run."""

    monkeypatch.setattr(state_engine.StateEngine, "run", run)
    assert "run(job: object, *, other: bool = False) -> None" in api.page()
    assert api.PAGE.read_text() != api.page()
