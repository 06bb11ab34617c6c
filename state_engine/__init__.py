"""Statelake: Flink's state model for scheduled, incremental PySpark batches, kept in Delta tables.

This module is the public API; everything else may change.
"""

from state_engine.core.checkpoint import CheckpointRow
from state_engine.core.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from state_engine.core.errors import StatelakeError
from state_engine.core.functions import KeyedProcessFunction, TimerService
from state_engine.core.list_state import ListState
from state_engine.core.map_state import MapState
from state_engine.core.row import Row
from state_engine.core.runtime_context import RuntimeContext
from state_engine.core.value_state import ValueState
from state_engine.runtime.engine import StateEngine
from state_engine.runtime.job import DataStream, KeyedStream, StatefulJob
from state_engine.runtime.reports import BatchReport, OperatorReport, RunReport
from state_engine.runtime.sinks.delta import DeltaSink
from state_engine.runtime.sinks.files import FileSink
from state_engine.runtime.sources.delta import DeltaSource
from state_engine.runtime.sources.file import FileSource

__all__ = [
    # jobs
    "StatefulJob", "DataStream", "KeyedStream", "FileSource", "DeltaSource", "DeltaSink", "FileSink",
    # engine
    "StateEngine", "RunReport", "BatchReport", "OperatorReport", "CheckpointRow",
    # functions
    "KeyedProcessFunction", "RuntimeContext", "TimerService", "Row",
    # state
    "ValueStateDescriptor", "ListStateDescriptor", "MapStateDescriptor",
    "ValueState", "ListState", "MapState",
    "StatelakeError",
]  # fmt: skip
