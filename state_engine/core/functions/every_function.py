"""Functions that users write, in one place. Mirrors ``pyflink.datastream.functions``; a class ports by its imports.

``open`` and ``close`` run once a subtask and micro-batch: instance attributes are no cache across batches.
"""

from __future__ import annotations

from state_engine.core.function import Function
from state_engine.core.functions.broadcast_functions import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
)
from state_engine.core.functions.co_functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
    ProcessJoinFunction,
)
from state_engine.core.functions.key_selector import KeySelector
from state_engine.core.functions.map_functions import FilterFunction, FlatMapFunction, MapFunction
from state_engine.core.functions.process_functions import KeyedProcessFunction, ProcessFunction, TimedFunction
from state_engine.core.functions.sink_function import SinkFunction
from state_engine.core.functions.source_function import SourceFunction
from state_engine.core.functions.vectorized_functions import VectorizedKeyedFunction, VectorizedResult
from state_engine.core.functions.window_functions import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from state_engine.core.state.aggregate_functions import AggregateFunction, FoldFunction, ReduceFunction
from state_engine.core.time.timer_service import MAX_TIMESTAMP, MIN_TIMESTAMP, TimerService

__all__ = [
    "Function", "MapFunction", "FlatMapFunction", "FilterFunction", "ReduceFunction", "AggregateFunction",
    "FoldFunction", "KeySelector", "ProcessFunction", "KeyedProcessFunction", "CoMapFunction", "CoFlatMapFunction",
    "CoProcessFunction", "KeyedCoProcessFunction", "ProcessJoinFunction", "BroadcastProcessFunction",
    "KeyedBroadcastProcessFunction",
    "SinkFunction", "SourceFunction", "VectorizedKeyedFunction", "VectorizedResult",
    "ProcessWindowFunction", "WindowFunction", "ProcessAllWindowFunction", "AllWindowFunction",
    "TimedFunction", "TimerService", "MIN_TIMESTAMP", "MAX_TIMESTAMP",
]  # fmt: skip
