"""Writes the page of all public names from the code: ``python -m docs.api`` writes ``docs/api.md``.

A name, its signature, the first sentence of its documentation, and the errors that the documentation names; grouped by
what people do with it. A test compares the page with the code, so a name that comes, goes or changes is seen in review.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import state_engine
from state_engine.core import errors

PAGE = Path(__file__).parent / "api.md"
_WIDTH = 110

GROUPS: dict[str, tuple[str, list[str]]] = {
    "Describing a job": (
        "A job is a graph of streams with names; describing it reads nothing and starts nothing.",
        ["StatefulJob", "TimePartitions", "DeadLetterLimit", "RowsBetween", "ShareOfLast", "NoKeyTwice", "SameSum",
         "CompactionPolicy", "DataStream", "KeyedStream",
         "ConnectedStreams", "BroadcastStream", "BroadcastConnectedStream", "WatermarkStrategy", "TimestampAssigner",
         "CloseableIterator", "step"],
    ),
    "Reading and writing": (
        "Sources and sinks are made here and used by the engine.",
        ["FileSource", "DeltaSource", "KafkaSource", "PythonDataSource", "ChangeFormat", "SnapshotFormat", "DeltaSink",
         "FileSink", "SqlSink", "KafkaSink", "ForeachBatchSink", "DeltaStateTable", "SqlStateTable"],
    ),
    "Running, looking, operating": (
        "Every operation on the jobs of a state root. `job` is a job, or its name where the code takes no part.",
        ["StateEngine", "JobSavepoints", "JobPublished", "StateProcessor", "SparkState", "RetentionPolicy", "Settings",
         "SparkSettings", "StoreAccess", "LocalCopies", "load_settings", "local_session"],
    ),
    "What calls return and report": (
        "Values that calls of the engine give, or hand to `on_progress`.",
        ["RunReport", "BatchReport", "OperatorReport", "TaskProgress", "CheckpointRow", "PinnedCheckpoint",
         "PartitionStatus", "SqlView", "StateDiff", "KeyHistory", "KeyEvent", "RowsOfKey", "StateOfKey", "TimersOfKey",
         "KeyDebug", "DebuggedKey", "DebuggedBatch", "DebuggedState", "DebuggedOutput", "KeyStep", "KeyElement",
         "DeadLetter", "DeadLetterReport", "RestoreReport", "RescaleReport", "TableReport",
         "JobPlan", "PartPlan", "PlannedReplay",
         "ReplayReport", "ComparisonReport", "BackfillReport", "SavepointReport", "CompactionReport", "VacuumReport",
         "RegistrationReport", "RegisteredName",
         "Disposal", "BootstrapReport", "TransformReport", "KeyTypeReport", "OperatorDropReport", "EraseReport",
         "ErasedTable", "UpgradeReport"],
    ),
    "Writing functions": (
        "Function classes as in PyFlink; a plain callable goes wherever one takes a single method.",
        ["Function", "MapFunction", "FlatMapFunction", "FilterFunction", "KeySelector", "ReduceFunction",
         "AggregateFunction", "FoldFunction", "ProcessFunction", "KeyedProcessFunction", "CoMapFunction",
         "CoFlatMapFunction", "CoProcessFunction", "KeyedCoProcessFunction", "BroadcastProcessFunction",
         "KeyedBroadcastProcessFunction", "SourceFunction", "SinkFunction", "RuntimeContext", "TimerService",
         "OutputTag", "Timestamped", "MetricGroup", "VectorizedKeyedFunction", "VectorizedResult", "LastRow", "Scd2",
         "TopN"],
    ),
    "Windows": (
        "Windows of the rows of a key, for `keyed.window(Session(\"30 min\")).aggregate(n=count())`.",
        ["WindowedStream", "AllWindowedStream", "Tumbling", "Sliding", "Cumulating", "Session", "ProcessWindowFunction",
         "WindowFunction", "ProcessAllWindowFunction", "AllWindowFunction", "TimeWindow", "CountWindow", "GlobalWindow",
         "TumblingEventTimeWindows", "SlidingEventTimeWindows", "EventTimeSessionWindows",
         "DynamicEventTimeSessionWindows", "TumblingProcessingTimeWindows", "SlidingProcessingTimeWindows",
         "ProcessingTimeSessionWindows", "DynamicProcessingTimeSessionWindows", "CountTumblingWindowAssigner",
         "CountSlidingWindowAssigner", "GlobalWindows", "SessionWindowTimeGapExtractor", "EventTimeTrigger",
         "ProcessingTimeTrigger", "CountTrigger", "PurgingTrigger"],
    ),
    "Joins": (
        "Joins of two keyed streams, `left.join(right, within=\"1 h\")`, by the names of Flink.",
        ["IntervalJoined", "ProcessJoinFunction"],
    ),
    "Aggregates": (
        "Aggregates of the rows of a key, for `keyed.aggregate(n=count(), total=sum_(\"amount\"))`.",
        [
            "count", "sum_", "avg", "min_", "max_", "count_distinct", "collect_set", "collect_list", "first", "last",
            "min_by", "max_by", "stddev", "variance", "aggregate_with",
        ],
    ),
    "Keyed state": (
        "Descriptors declare a state in `open`; handles read and write it for the current key.",
        ["ValueStateDescriptor", "ListStateDescriptor", "MapStateDescriptor", "SortedMapStateDescriptor",
         "ReducingStateDescriptor", "AggregatingStateDescriptor", "FoldingStateDescriptor", "State", "AppendingState",
         "MergingState", "ValueState", "ListState", "MapState", "SortedMapState", "ReducingState", "AggregatingState",
         "FoldingState", "StateTtlConfig", "TtlTime", "TtlUpdateType", "TtlVisibility"],
    ),
    "Operator state and checkpoint hooks": (
        "State of a subtask, redistributed when the parallelism changes.",
        ["CheckpointedFunction", "FunctionInitializationContext", "FunctionSnapshotContext", "ListCheckpointed",
         "CheckpointListener", "OperatorStateStore", "BroadcastState", "ReadOnlyBroadcastState"],
    ),
    "Types and time": (
        "Types of elements, keys and state, and spans of time. `TypeLike` in a signature is a type in any form: one of "
        "`Types`, a Python type, a NamedTuple or dataclass, a pyarrow or Spark type or schema, or DDL text.",
        ["Types", "Row", "RowKind", "Time", "Duration", "Instant", "TimeDomain"],
    ),
    "State backends": (
        "Where a subtask keeps the state that a micro-batch touches.",
        ["StateBackend", "HashMapStateBackend", "EmbeddedRocksDBStateBackend", "PredefinedOptions",
         "CustomStateBackend", "MemoryStateBackend", "FsStateBackend", "RocksDBStateBackend"],
    ),
}  # fmt: skip
"""Every name that ``state_engine`` exports, but its root error, in the order in which a reader needs it."""

MODULES = {
    "state_engine.registry": [
        "RegisteredJob",
        "JobParameters",
        "load_jobs",
        "project_job",
        "beside",
        "data_directory",
    ],
    "state_engine.testing": [
        "run_in_memory",
        "MemoryRun",
        "CollectSink",
        "OperatorHarness",
        "KeyedHarness",
        "KeyHarness",
        "KeyElement",
        "Stamped",
        "subtasks_in_process",
    ],
    "state_engine.open_state": ["checkpoints", "read_state"],
    "state_engine.expectations": ["Suite", "Expectation", "OfSink", "OfState"],
    "state_engine.pipes": ["run_for_dagster"],
    "state_engine.dagster": [
        "statelake_definitions",
        "statelake_assets",
        "JobOptions",
        "HealthLimits",
        "PipesLaunch",
        "StatelakeTranslator",
        "StatelakeTranslatorData",
        "StateEngineResource",
        "JobComponent",
        "output_check",
        "state_check",
    ],
}
"""Public modules besides ``state_engine`` itself and ``state_engine.errors``."""

_CONSTRUCTED = {
    *GROUPS["Reading and writing"][1],
    "TimePartitions",
    "DeadLetterLimit",
    "SparkState",
    "OutputTag",
    "CollectSink",
}
"""Of these the constructor is public; their methods are for the engine."""

_GIVEN = re.compile(
    r"\w*(Stream|State|Context|Processor|Savepoints|Group|Service|Strategy|Config|Store|Iterator|Builder|Row|Run)"
)
"""Of these the methods are public; users get them from a call."""

_FOR_THE_ENGINE = {
    "add_operator", "bind", "check_parallelism", "column_type", "new_uid", "nodes", "of", "parallelism_of", "rename",
    "same_state", "stored", "stored_as", "stream",
}  # fmt: skip
"""Methods without underscore that other rooms call, and users do not."""


def page() -> str:
    """The text of the page."""
    parts = [
        "# Public names\n",
        "Written by `python -m docs.api` from the code, and compared with it by a test. Everything else may change.",
        "Names below are imported from `state_engine`, unless the heading says otherwise.\n",
    ]
    for title, (about, names) in GROUPS.items():
        parts += [f"## {title}\n", f"{about}\n", *_entries(state_engine, names)]
    for module, names in MODULES.items():
        package = import_module(module)
        parts += [f"## `{module}`\n", f"{_summary(package)}\n", *_entries(package, names)]
    tree = (errors.__doc__ or "").partition("\n\n")[2].strip()
    parts += ["## `state_engine.errors`\n", "Every error, and what to do about it.\n", f"```\n{tree}\n```\n"]
    return "\n".join(parts)


def _entries(module: ModuleType, names: list[str]) -> Iterator[str]:
    """Names of a module, each with the public classes that it brings, such as the contexts of a function."""
    shown = {getattr(state_engine, name) for name in state_engine.__all__}
    for name in names:
        named = getattr(module, name)
        yield _entry(name, named)
        for inner in vars(named).values() if inspect.isclass(named) else ():
            public = inspect.isclass(inner) and not inner.__name__.startswith("_")
            if public and inner.__module__.startswith("state_engine") and inner not in shown:
                shown.add(inner)
                yield _entry(inner.__qualname__, inner)


def _entry(name: str, shown: Any) -> str:
    lines = [f"### {name}\n", f"{_summary(shown)}\n"]
    stub = "\n".join(_stub(name, shown)).lstrip("\n")
    return "\n".join([*lines, f"```python\n{stub}\n```\n" if stub else ""])


def _stub(name: str, shown: Any) -> Iterator[str]:
    if inspect.isfunction(shown):
        yield from _called(name, shown)
    elif issubclass(shown, enum.Enum):
        yield ", ".join(member.name for member in shown)
    else:
        yield from _fields(name, shown)
        for member in shown_members(name, shown):
            yield from _member(shown, member)


def _fields(name: str, cls: Any) -> Iterator[str]:
    """The constructor of what users make, the fields of what they are given."""
    made_by_users = name in _CONSTRUCTED or name.endswith(("Policy", "Harness"))
    if dataclasses.is_dataclass(cls) and not made_by_users:
        yield from (f"{f.name}: {_type(f.type)}" for f in dataclasses.fields(cls) if f.name[0] != "_")
    elif hasattr(cls, "model_fields"):
        yield from (f"{n}: {_type(f.annotation)}" for n, f in cls.model_fields.items())
    elif hasattr(cls, "_fields"):
        yield from (f"{n}: {_type(cls.__annotations__[n])}" for n in cls._fields)
    elif "__init__" in vars(cls) and not _GIVEN.fullmatch(name.rpartition(".")[2]):
        yield from _wrapped(name, inspect.signature(cls))


def shown_members(name: str, shown: Any) -> list[str]:
    """The methods and properties that a page shows of a public name: none of a function, or of what users only make."""
    return [] if not inspect.isclass(shown) or name in _CONSTRUCTED else _members(shown)


def _members(cls: type) -> list[str]:
    """Public methods and properties of a class, in the order of the code; not those of a base that is public itself."""
    exported = {getattr(state_engine, name) for name in state_engine.__all__}
    elsewhere = [base for base in cls.__mro__[1:] if base in exported]
    names: dict[str, None] = {}
    for base in cls.__mro__:
        if not base.__module__.startswith("state_engine"):
            continue
        for name, member in vars(base).items():
            described = callable(member) or isinstance(member, _DESCRIBED)
            inherited = name not in vars(cls) and any(hasattr(other, name) for other in elsewhere)
            if described and not inherited and not name.startswith("_") and name not in _FOR_THE_ENGINE:
                names[name] = None
    return [name for name in names if not inspect.isclass(getattr(cls, name))]


_DESCRIBED = (property, classmethod, staticmethod)


def _member(cls: type, name: str) -> Iterator[str]:
    member = inspect.getattr_static(cls, name)
    if isinstance(member, property):
        yield f"\n# {_summary(member)}"
        yield f"{name}: {_type(inspect.signature(member.fget).return_annotation)}"  # type: ignore[arg-type]
        return
    function = getattr(member, "__func__", member)
    yield f"\n# {_summary(function)}"
    if raised := _raised(function):
        yield f"# {raised}"
    yield from _wrapped(name, inspect.signature(function), bound=not isinstance(member, staticmethod))


def _called(name: str, function: Callable[..., Any]) -> Iterator[str]:
    if raised := _raised(function):
        yield f"# {raised}"
    yield from _wrapped(name, inspect.signature(function))


def _wrapped(name: str, signature: inspect.Signature, *, bound: bool = False) -> Iterator[str]:
    """A signature, on one line where it fits."""
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    texts: list[str] = []
    for i, parameter in enumerate(parameters):
        keyword_only = parameter.kind is parameter.KEYWORD_ONLY
        if keyword_only and all(p.kind not in (p.KEYWORD_ONLY, p.VAR_POSITIONAL) for p in parameters[:i]):
            texts.append("*")
        texts.append(_parameter(parameter))
    result = signature.return_annotation
    end = "" if result is signature.empty or name[0].isupper() else f" -> {_type(result)}"
    line = f"{name}({', '.join(texts)}){end}"
    if len(line) <= _WIDTH:
        yield line
        return
    yield f"{name}("
    yield from (f"    {text}," for text in texts)
    yield f"){end}"


def _parameter(parameter: inspect.Parameter) -> str:
    starred: dict[Any, str] = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    stars = starred.get(parameter.kind, "")
    kind = "" if parameter.annotation is parameter.empty else f": {_type(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return f"{stars}{parameter.name}{kind}"
    default = "…" if callable(parameter.default) else repr(parameter.default)
    if isinstance(parameter.default, enum.Enum):
        default = str(parameter.default)
    return f"{stars}{parameter.name}{kind}{' = ' if kind else '='}{default}"


def _type(annotation: Any) -> str:
    """An annotation as one writes it, without modules."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", text)


def _summary(shown: Any) -> str:
    text = " ".join((inspect.getdoc(shown) or "").partition("\n\n")[0].split())
    text = text if isinstance(shown, ModuleType) else re.split(r"(?<=\.) (?=[A-Z`])", text)[0]
    return text.replace("``", "`").replace("; see the module docstring", "")


def _raised(function: Callable[..., Any]) -> str:
    section = (inspect.getdoc(function) or "").partition("Raises:")[2].partition("\n\n")[0]
    names = dict.fromkeys(name for name in re.findall(r"\b\w+Error\b", section) if hasattr(errors, name))
    return f"Raises {', '.join(names)}." if names else ""


if __name__ == "__main__":
    PAGE.write_text(page())
