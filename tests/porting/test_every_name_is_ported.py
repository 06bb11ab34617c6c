"""Every function class and every descriptor of the public API is used by a ported program, here or in Flink's.

Looked up in the text of the programs, so that the claim cannot rot: a function class must be the base of a class that
defines all of its methods, and a descriptor must be made.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import state_engine
from tests.porting.ported import PROGRAMS, ported

FUNCTIONS = {
    "MapFunction": ["map"],
    "FlatMapFunction": ["flat_map"],
    "FilterFunction": ["filter"],
    "ReduceFunction": ["reduce"],
    "AggregateFunction": ["create_accumulator", "add", "retract", "get_result", "merge"],
    "FoldFunction": ["fold"],
    "CoMapFunction": ["map1", "map2"],
    "CoFlatMapFunction": ["flat_map1", "flat_map2"],
    "ProcessFunction": ["process_element"],
    "KeyedProcessFunction": ["process_element", "on_timer"],
    "CoProcessFunction": ["process_element1", "process_element2"],
    "KeyedCoProcessFunction": ["process_element1", "process_element2"],
    "BroadcastProcessFunction": ["process_element", "process_broadcast_element"],
    "KeyedBroadcastProcessFunction": ["process_element", "process_broadcast_element"],
    "ProcessJoinFunction": ["process_element"],
    "CheckpointedFunction": ["snapshot_state", "initialize_state"],
    "ListCheckpointed": ["snapshot_state", "restore_state"],
    "CheckpointListener": ["notify_checkpoint_complete"],
    "SourceFunction": ["run", "cancel"],
    "SinkFunction": ["invoke"],
    "ProcessWindowFunction": ["process", "clear"],
    "WindowFunction": ["apply"],
    "ProcessAllWindowFunction": ["process", "clear"],
    "AllWindowFunction": ["apply"],
    "KeySelector": ["get_key"],
}
MADE = [
    "ValueStateDescriptor",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "SortedMapStateDescriptor",
    "ReducingStateDescriptor",
    "AggregatingStateDescriptor",
    "FoldingStateDescriptor",
    "OutputTag",
    "Row",
    "StateTtlConfig.new_builder",
]
CALLED = [
    "assign_timestamps_and_watermarks", "broadcast", "connect", "enable_time_to_live", "get_side_output", "key_by",
    "register_event_time_timer", "delete_event_time_timer", "timer_service", "time_domain", "timestamp",
    "get_current_key", "get_broadcast_state", "get_operator_state_store", "is_restored", "get_checkpoint_lock",
    "current_processing_time", "get_state", "get_list_state", "get_map_state", "get_sorted_map_state",
    "get_reducing_state", "get_aggregating_state", "get_folding_state", "get_job_parameter", "get_task_name",
    "min_by", "max_by", "project", "print", "execute_and_collect", "rebalance", "shuffle", "rescale", "forward",
    "get_row_kind", "set_row_kind", "Row.of_kind", "window", "window_all", "allowed_lateness", "side_output_late_data",
    "trigger", "apply", "global_state", "TumblingEventTimeWindows.of", "SlidingEventTimeWindows.of",
    "EventTimeSessionWindows.with_dynamic_gap", "EventTimeTrigger.create", "interval_join", "between",
    "lower_bound_exclusive",
]  # fmt: skip


@cache
def programs() -> list[ast.AST]:
    examples = Path(__file__).parents[1] / "support" / "flink_examples.py"
    files = [
        examples,
        *(path for path in sorted(Path(__file__).parent.glob("*.py")) if path != Path(__file__)),
    ]
    texts = [path.read_text() for path in files] + [ported(path.stem) for path in PROGRAMS.glob("*.txt")]
    return [node for text in texts for node in ast.walk(ast.parse(text))]


def classes_of(base: str) -> list[set[str]]:
    """The methods of each class that has a base of this name."""
    return [
        {method.name for method in node.body if isinstance(method, ast.FunctionDef)}
        for node in programs()
        if isinstance(node, ast.ClassDef) and base in [ast.unparse(b).split("[")[0] for b in node.bases]
    ]


def calls() -> set[str]:
    """The called names, as written, and their last parts."""
    called = {ast.unparse(node.func) for node in programs() if isinstance(node, ast.Call)}
    return called | {name.rsplit(".", 1)[-1] for name in called}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_class_is_ported(name: str) -> None:
    assert any(methods >= set(FUNCTIONS[name]) for methods in classes_of(name))


@pytest.mark.parametrize("name", [*MADE, *CALLED])
def test_a_descriptor_or_method_is_used(name: str) -> None:
    assert name in calls()


def test_no_function_class_or_descriptor_of_the_public_api_is_left_out() -> None:
    public = {name for name in state_engine.__all__ if name.endswith(("Function", "StateDescriptor"))}
    without_flink = {"Function", "VectorizedKeyedFunction"}  # Flink's vectorized functions keep no state
    assert public - without_flink <= {*FUNCTIONS, *MADE}


def test_programs_import_what_they_port_from_the_public_api_alone() -> None:
    imported = {
        alias.name: node.module
        for node in programs()
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in {*FUNCTIONS, *MADE}
    }
    assert set(imported.values()) == {"state_engine"}
