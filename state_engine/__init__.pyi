"""What each name of the public API is, for type checkers; at run time, where it is imported from."""

from state_engine.code_changes.job_plan import JobPlan, PartPlan, PlannedReplay
from state_engine.core.checkpoints.checkpoint import CheckpointRow, PinnedCheckpoint
from state_engine.core.checkpoints.compaction_policy import CompactionPolicy
from state_engine.core.checkpoints.dead_letters import DeadLetterLimit
from state_engine.core.checkpoints.file_disposal import Disposal
from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.errors import StatelakeError
from state_engine.core.functions.checkpointed import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    ListCheckpointed,
)
from state_engine.core.functions.every_function import (
    AllWindowFunction,
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
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    SinkFunction,
    SourceFunction,
    TimerService,
    VectorizedKeyedFunction,
    VectorizedResult,
    WindowFunction,
)
from state_engine.core.functions.metrics import MetricGroup
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.timestamped import Timestamped
from state_engine.core.harness.key_run import KeyElement, KeyStep
from state_engine.core.operator_state.broadcast_state import BroadcastState, ReadOnlyBroadcastState
from state_engine.core.operator_state.store import OperatorStateStore
from state_engine.core.state.aggregate_functions import AggregateFunction, FoldFunction, ReduceFunction
from state_engine.core.state.aggregating_state import AggregatingState
from state_engine.core.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.state.folding_state import FoldingState
from state_engine.core.state.list_state import ListState
from state_engine.core.state.map_state import MapState
from state_engine.core.state.reducing_state import ReducingState
from state_engine.core.state.sorted_map_state import SortedMapState
from state_engine.core.state.state import AppendingState, MergingState, State
from state_engine.core.state.ttl import StateTtlConfig, TtlTime, TtlUpdateType, TtlVisibility
from state_engine.core.state.value_state import ValueState
from state_engine.core.time.partitions import TimePartitions
from state_engine.core.time.watermark_strategy import TimestampAssigner, WatermarkStrategy
from state_engine.core.types.durations import Duration, Instant, Time, TimeDomain
from state_engine.core.types.row import Row, RowKind
from state_engine.core.types.types_namespace import Types
from state_engine.databases.sink import SqlSink
from state_engine.databases.state_table import SqlStateTable
from state_engine.engine.dead_letters import DeadLetterReport
from state_engine.engine.engine import StateEngine
from state_engine.engine.published import JobPublished
from state_engine.engine.savepoints import JobSavepoints
from state_engine.engine.state_processor import StateProcessor
from state_engine.job.connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
from state_engine.job.job import StatefulJob
from state_engine.job.joined_streams import IntervalJoined
from state_engine.job.stream_shortcuts import CloseableIterator
from state_engine.job.streams import DataStream, KeyedStream
from state_engine.job.windowed_stream import AllWindowedStream, WindowedStream
from state_engine.machine.settings import Settings, SparkSettings, load_settings
from state_engine.microbatch.dead_letters import DeadLetter
from state_engine.microbatch.partition_runs import PartitionStatus
from state_engine.microbatch.reports import BatchReport, CompactionReport, OperatorReport, RunReport
from state_engine.operations.file_collector import VacuumReport
from state_engine.operations.head_operations import RestoreReport
from state_engine.operations.rescaling import RescaleReport
from state_engine.operations.root_upgrade import UpgradeReport
from state_engine.operations.savepoints import SavepointReport
from state_engine.operators.aggregates.declarations import (
    aggregate_with,
    avg,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    max_,
    max_by,
    min_,
    min_by,
    stddev,
    sum_,
    variance,
)
from state_engine.operators.last_rows import LastRow
from state_engine.operators.scd2 import Scd2
from state_engine.operators.sequence import step
from state_engine.operators.top_n import TopN
from state_engine.operators.windows.assigners import (
    CountWindow,
    Cumulating,
    GlobalWindow,
    Session,
    Sliding,
    TimeWindow,
    Tumbling,
)
from state_engine.operators.windows.flink_names import (
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    DynamicEventTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    PurgingTrigger,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from state_engine.queries.catalog_views import RegisteredName, RegistrationReport
from state_engine.queries.state_views import SqlView
from state_engine.replay.backfill import BackfillReport
from state_engine.replay.comparison import ComparisonReport
from state_engine.replay.differences import StateDiff
from state_engine.replay.key_debug import (
    DebuggedBatch,
    DebuggedKey,
    DebuggedOutput,
    DebuggedState,
    KeyDebug,
)
from state_engine.replay.key_history import KeyEvent, KeyHistory, StateOfKey, TimersOfKey
from state_engine.replay.key_inputs import RowsOfKey
from state_engine.replay.replay import ReplayReport
from state_engine.sinks.bounds import NoKeyTwice, RowsBetween, SameSum, ShareOfLast
from state_engine.sinks.delta import DeltaSink
from state_engine.sinks.files import FileSink
from state_engine.sinks.foreach_batch import ForeachBatchSink
from state_engine.sinks.kafka.kafka_sink import KafkaSink
from state_engine.sources.changes.change_format import ChangeFormat
from state_engine.sources.changes.snapshots import SnapshotFormat
from state_engine.sources.delta import DeltaSource
from state_engine.sources.file import FileSource
from state_engine.sources.kafka.kafka_source import KafkaSource
from state_engine.sources.python_data_source import PythonDataSource
from state_engine.spark.session import local_session
from state_engine.spark.task_progress import TaskProgress
from state_engine.state_backends.custom_backend import CustomStateBackend
from state_engine.state_backends.heap_backend import HashMapStateBackend
from state_engine.state_backends.legacy_backends import (
    FsStateBackend,
    MemoryStateBackend,
    RocksDBStateBackend,
)
from state_engine.state_backends.rocksdb_backend import EmbeddedRocksDBStateBackend
from state_engine.state_backends.rocksdb_options import PredefinedOptions
from state_engine.state_backends.state_backend import StateBackend
from state_engine.state_processor.bootstrap import BootstrapReport
from state_engine.state_processor.erase import EraseReport
from state_engine.state_processor.erase_tables import ErasedTable
from state_engine.state_processor.key_change import KeyTypeReport
from state_engine.state_processor.operator_drop import OperatorDropReport
from state_engine.state_processor.spark_state_reader import SparkState
from state_engine.state_processor.state_transform import TransformReport
from state_engine.state_tables.base import TableReport
from state_engine.state_tables.delta import DeltaStateTable
from state_engine.storage.state.copy_directory import LocalCopies
from state_engine.storage.stores.object_stores import StoreAccess

__all__ = [
    # jobs
    "StatefulJob", "DataStream", "KeyedStream", "ConnectedStreams", "BroadcastStream", "BroadcastConnectedStream",
    "CloseableIterator",
    "FileSource", "DeltaSource", "KafkaSource", "PythonDataSource", "ChangeFormat", "SnapshotFormat", "DeltaSink",
    "FileSink", "SqlSink", "KafkaSink", "DeltaStateTable", "SqlStateTable", "ForeachBatchSink",
    # engine
    "StateEngine", "StoreAccess", "LocalCopies", "StateProcessor", "JobSavepoints", "JobPublished", "CheckpointRow",
    "CompactionPolicy", "RetentionPolicy",
    "TimePartitions", "DeadLetterLimit", "RowsBetween", "ShareOfLast", "NoKeyTwice", "SameSum", "SparkState",
    "Settings", "SparkSettings", "load_settings", "local_session",
    # what its calls give
    "RunReport", "BatchReport", "OperatorReport", "BackfillReport", "BootstrapReport", "CompactionReport",
    "ComparisonReport", "DeadLetterReport", "EraseReport", "ErasedTable", "JobPlan", "KeyTypeReport",
    "OperatorDropReport", "PartPlan", "PlannedReplay", "ReplayReport",
    "RescaleReport",
    "RestoreReport", "SavepointReport", "TableReport", "TransformReport", "UpgradeReport", "VacuumReport",
    "RegistrationReport", "RegisteredName",
    "DeadLetter", "Disposal", "PartitionStatus", "PinnedCheckpoint", "SqlView", "StateDiff", "TaskProgress",
    "KeyHistory", "KeyEvent", "RowsOfKey", "StateOfKey", "TimersOfKey",
    "KeyDebug", "DebuggedKey", "DebuggedBatch", "DebuggedState", "DebuggedOutput", "KeyStep", "KeyElement",
    # functions
    "Function", "MapFunction", "FlatMapFunction", "FilterFunction", "KeySelector", "ReduceFunction",
    "AggregateFunction", "FoldFunction", "ProcessFunction", "KeyedProcessFunction", "CoMapFunction",
    "CoFlatMapFunction", "CoProcessFunction", "KeyedCoProcessFunction", "BroadcastProcessFunction",
    "KeyedBroadcastProcessFunction", "SourceFunction", "SinkFunction", "RuntimeContext", "TimerService", "OutputTag",
    "Timestamped",
    "MetricGroup", "VectorizedKeyedFunction", "VectorizedResult",
    # windows
    "WindowedStream", "AllWindowedStream", "Tumbling", "Sliding", "Cumulating", "Session", "TimeWindow", "CountWindow",
    "GlobalWindow", "ProcessWindowFunction", "WindowFunction", "ProcessAllWindowFunction", "AllWindowFunction",
    "TumblingEventTimeWindows", "SlidingEventTimeWindows", "EventTimeSessionWindows",
    "DynamicEventTimeSessionWindows", "TumblingProcessingTimeWindows", "SlidingProcessingTimeWindows",
    "ProcessingTimeSessionWindows", "DynamicProcessingTimeSessionWindows", "CountTumblingWindowAssigner",
    "CountSlidingWindowAssigner", "GlobalWindows", "SessionWindowTimeGapExtractor", "EventTimeTrigger",
    "ProcessingTimeTrigger", "CountTrigger", "PurgingTrigger",
    # joins
    "IntervalJoined", "ProcessJoinFunction",
    # aggregates
    "count", "sum_", "avg", "min_", "max_", "count_distinct", "collect_set", "collect_list", "first", "last",
    "min_by", "max_by", "stddev", "variance", "aggregate_with", "step",
    # ready-made functions
    "LastRow", "Scd2", "TopN",
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
    "StateTtlConfig", "TtlTime", "TtlUpdateType", "TtlVisibility",
    "Time", "Duration", "Instant", "TimeDomain", "WatermarkStrategy", "TimestampAssigner",
    "StatelakeError",
]  # fmt: skip
