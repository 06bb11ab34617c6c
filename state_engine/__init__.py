"""Statelake: Flink's state model for scheduled, incremental PySpark batches, kept in Delta tables.

This module is the public API; everything else may change. A job is described without Spark: what needs it at once
is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from state_engine.backends.custom_backend import CustomStateBackend
from state_engine.backends.heap_backend import HashMapStateBackend
from state_engine.backends.legacy_backends import FsStateBackend, MemoryStateBackend, RocksDBStateBackend
from state_engine.backends.rocksdb_backend import EmbeddedRocksDBStateBackend
from state_engine.backends.rocksdb_options import PredefinedOptions
from state_engine.backends.state_backend import StateBackend
from state_engine.core.aggregates import AggregateFunction, FoldFunction, ReduceFunction
from state_engine.core.aggregating_state import AggregatingState
from state_engine.core.broadcast_state import BroadcastState, ReadOnlyBroadcastState
from state_engine.core.checkpoint import CheckpointRow
from state_engine.core.checkpointed import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    ListCheckpointed,
)
from state_engine.core.compaction_policy import CompactionPolicy
from state_engine.core.dead_letters import DeadLetterLimit
from state_engine.core.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.errors import StatelakeError
from state_engine.core.folding_state import FoldingState
from state_engine.core.functions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    SinkFunction,
    SourceFunction,
    TimerService,
)
from state_engine.core.list_state import ListState
from state_engine.core.map_state import MapState
from state_engine.core.metrics import MetricGroup
from state_engine.core.operator_state import OperatorStateStore
from state_engine.core.output_tag import OutputTag
from state_engine.core.partitions import TimePartitions
from state_engine.core.reducing_state import ReducingState
from state_engine.core.retention import RetentionPolicy
from state_engine.core.row import Row, RowKind
from state_engine.core.runtime_context import RuntimeContext
from state_engine.core.sorted_map_state import SortedMapState
from state_engine.core.state import AppendingState, MergingState, State
from state_engine.core.time import Duration, Instant, Time, TimeDomain
from state_engine.core.ttl import StateTtlConfig
from state_engine.core.types_namespace import Types
from state_engine.core.value_state import ValueState
from state_engine.core.watermark_strategy import TimestampAssigner, WatermarkStrategy
from state_engine.runtime.collector import CollectionReport
from state_engine.runtime.connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
from state_engine.runtime.job import StatefulJob
from state_engine.runtime.maintenance import Compaction
from state_engine.runtime.operations import HeadMove
from state_engine.runtime.reports import BatchReport, OperatorReport, RunReport
from state_engine.runtime.sinks.delta import DeltaSink
from state_engine.runtime.sinks.files import FileSink
from state_engine.runtime.sinks.foreach_batch import ForeachBatchSink
from state_engine.runtime.sinks.sql import SqlSink
from state_engine.runtime.sources.delta import DeltaSource
from state_engine.runtime.sources.file import FileSource
from state_engine.runtime.stream_shortcuts import CloseableIterator
from state_engine.runtime.streams import DataStream, KeyedStream

if TYPE_CHECKING:
    from state_engine.runtime.comparison import Comparison
    from state_engine.runtime.engine import StateEngine
    from state_engine.runtime.replay import ReplayReport
    from state_engine.runtime.savepoints import Savepoint
    from state_engine.runtime.sources.python_data_source import PythonDataSource

_WITH_SPARK = {
    "StateEngine": "engine",
    "Comparison": "comparison",
    "ReplayReport": "replay",
    "Savepoint": "savepoints",
    "PythonDataSource": "sources.python_data_source",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_SPARK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"state_engine.runtime.{_WITH_SPARK[name]}"), name)


__all__ = [
    # jobs
    "StatefulJob", "DataStream", "KeyedStream", "ConnectedStreams", "BroadcastStream", "BroadcastConnectedStream",
    "CloseableIterator",
    "FileSource", "DeltaSource", "PythonDataSource", "DeltaSink", "FileSink", "SqlSink",
    "ForeachBatchSink",
    # engine
    "StateEngine", "RunReport", "BatchReport", "OperatorReport", "CheckpointRow", "CompactionPolicy",
    "RetentionPolicy", "TimePartitions", "DeadLetterLimit",
    "Compaction", "CollectionReport", "HeadMove", "ReplayReport", "Comparison",
    "Savepoint",
    # functions
    "Function", "MapFunction", "FlatMapFunction", "FilterFunction", "KeySelector", "ReduceFunction",
    "AggregateFunction", "FoldFunction", "ProcessFunction", "KeyedProcessFunction", "CoMapFunction",
    "CoFlatMapFunction", "CoProcessFunction", "KeyedCoProcessFunction", "BroadcastProcessFunction",
    "KeyedBroadcastProcessFunction", "SourceFunction", "SinkFunction", "RuntimeContext", "TimerService", "OutputTag",
    "MetricGroup",
    # checkpoint hooks and operator state
    "CheckpointedFunction", "FunctionInitializationContext", "FunctionSnapshotContext", "ListCheckpointed",
    "CheckpointListener", "OperatorStateStore", "BroadcastState", "ReadOnlyBroadcastState",
    # state
    "ValueStateDescriptor", "ListStateDescriptor", "MapStateDescriptor", "SortedMapStateDescriptor",
    "ReducingStateDescriptor", "AggregatingStateDescriptor", "FoldingStateDescriptor",
    "State", "AppendingState", "MergingState", "ValueState", "ListState", "MapState", "SortedMapState", "ReducingState",
    "AggregatingState", "FoldingState",
    # types
    "Types", "Row", "RowKind",
    # state backends
    "StateBackend", "HashMapStateBackend", "EmbeddedRocksDBStateBackend", "CustomStateBackend", "PredefinedOptions",
    "MemoryStateBackend", "FsStateBackend", "RocksDBStateBackend",
    # time
    "StateTtlConfig", "Time", "Duration", "Instant", "TimeDomain", "WatermarkStrategy", "TimestampAssigner",
    "StatelakeError",
]  # fmt: skip
