"""What the subtasks of one operator are told (``SubtaskSpec``), and what each of them answers (``SubtaskReport``).

Plays the part of Flink's ``TaskDeploymentDescriptor`` and of the message that acknowledges a checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from state_engine.backends.delta.changelog import ListedFile
from state_engine.backends.delta.layout import JobLayout
from state_engine.core.checkpoint import DataFile, StateSchema
from state_engine.core.functions import KeyedProcessFunction
from state_engine.core.types import StructType
from state_engine.runtime.routing import RoutedLayout
from state_engine.runtime.sinks.base import SinkTarget

REPORT_SCHEMA = "report string"


@dataclass(frozen=True)
class StateFile:
    """A changelog file of the path and the key groups inside."""

    listed: ListedFile
    key_group_min: int
    key_group_max: int


@dataclass(frozen=True)
class SubtaskSpec:
    """Everything that the subtasks of one operator need; the same object for all of them.

    Attributes:
        layout: where the job's tables are.
        write_id: names the attempt.
        uid, parallelism, max_parallelism: of the operator.
        function: the user's; every subtask gets its own copy by pickling.
        routed: columns of the input.
        output_type: columns of the output.
        scalar: whether outputs are bare values of the one column.
        state_files: changelog files of the path, oldest first.
        recorded_states: states as of the parent, by name.
        sinks: sinks that take the output as it is.
        exchange: whether a chained step reads the output.
        dead_letters: whether refused rows are set aside.
        clock_ms, watermark_ms: of the batch.
        labels: names of the source's files by place.
        source: name of the source that the rows come straight from.
        parameters: of the job.
    """

    layout: JobLayout
    write_id: str
    uid: str
    parallelism: int
    max_parallelism: int
    function: KeyedProcessFunction
    routed: RoutedLayout
    output_type: StructType
    scalar: bool
    state_files: list[StateFile]
    recorded_states: dict[str, StateSchema]
    sinks: list[SinkTarget]
    exchange: bool
    dead_letters: bool
    clock_ms: int
    watermark_ms: int
    labels: tuple[str, ...] = ()
    source: str | None = None
    parameters: dict[str, str] = field(default_factory=dict)


@dataclass
class SubtaskReport:
    """What a subtask did. ``error`` is set where it gave up; its files are orphans then."""

    subtask: int
    rows_in: int = 0
    rows_out: int = 0
    rows_refused: int = 0
    keys: int = 0
    changelog: list[DataFile] = field(default_factory=list)
    sinks: dict[str, list[DataFile]] = field(default_factory=dict)
    exchange: list[DataFile] = field(default_factory=list)
    dead_letters: list[DataFile] = field(default_factory=list)
    states: list[StateSchema] = field(default_factory=list)
    group_rows: dict[int, int] = field(default_factory=dict)
    max_event_ms: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    error: dict[str, str | None] | None = None

    def to_json(self) -> str:
        """As text, for the way back to the driver."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SubtaskReport:
        """Back from text."""
        raw = json.loads(text)
        files = lambda found: [DataFile(**f) for f in found]  # noqa: E731
        for name in ("changelog", "exchange", "dead_letters"):
            raw[name] = files(raw[name])
        raw["sinks"] = {name: files(found) for name, found in raw["sinks"].items()}
        raw["states"] = [StateSchema(**s) for s in raw["states"]]
        raw["group_rows"] = {int(k): v for k, v in raw["group_rows"].items()}
        return cls(**raw)
