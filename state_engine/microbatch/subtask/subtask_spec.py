"""What the subtasks of one operator are given (``SubtaskSpec``), and what each of them answers (``SubtaskReport``).

Plays the part of Flink's ``TaskDeploymentDescriptor`` and of the message that acknowledges a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import (
    DataFile,
    FirstTimers,
    OperatorStateRef,
    OperatorStateSchema,
)
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.keys.key_form import KeyForm
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.operator_state.operator_state_ref import schemas_from_json
from state_engine.core.state.state_schema import StateSchema
from state_engine.microbatch.routing.routed import RoutedLayout
from state_engine.sinks.base import SinkTarget
from state_engine.sinks.row_rules import RowRule
from state_engine.sources.output_type import OutputType
from state_engine.state_backends.heap_backend import HashMapStateBackend
from state_engine.state_backends.state_backend import StateBackend
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.copy_directory import NO_COPIES, LocalCopies
from state_engine.storage.state.located_files import StateFile


@dataclass(frozen=True)
class OutputSpec:
    """One output of an operator: the main one, or a side output.

    Attributes:
        tag: of a side output; None for the main one.
        exchange: whether a chained step reads it.
        merged: whether a chained step merges it with another stream.
        changing: whether it holds updates and deletes, and so a column with the kinds of its rows.
    """

    tag: OutputTag | None
    kind: OutputType
    sinks: list[SinkTarget]
    exchange: bool
    merged: bool = False
    changing: bool = False

    @property
    def name(self) -> str:
        """Id of the tag; empty for the main output."""
        return "" if self.tag is None else self.tag.tag_id


@dataclass(frozen=True)
class BatchClocks:
    """Time in one micro-batch, as an operator sees it; milliseconds.

    Attributes:
        out_of_orderness_ms: the largest of the sources: how far elements stand behind the timers that they are ahead of
            in an order by event time.
        checkpoint_watermark_ms: that of the parent checkpoint, held back as the operator's is; None where it has none.
        held_back_ms: by how much the operators before this one hold its watermark back.
    """

    clock_ms: int
    watermark_ms: int
    end_watermark_ms: int
    out_of_orderness_ms: int = 0
    drain: bool = False
    checkpoint_watermark_ms: int | None = None
    held_back_ms: int = 0


@dataclass(frozen=True)
class RestoredOperatorState:
    """What the parent checkpoint holds of an operator's own state.

    Attributes:
        ref: what it is; None where no checkpoint knows any.
        uri: the table of its files.
        restored: whether a restore lies between the operator's last run and now.
        completed: ids of the checkpoints of which listeners are notified now.
    """

    ref: OperatorStateRef | None
    files: list[DataFile]
    uri: str = ""
    restored: bool = False
    known: bool = False
    completed: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SubtaskSpec:
    """Everything that the subtasks of one operator need; the same object for all of them.

    Attributes:
        uid: of the operator; of a sink that no operator writes it is its name.
        function: the user's; every subtask gets its own copy by pickling. None where rows pass through to a sink.
        key_schema: of the key; None without one, and where none is known yet.
        outputs: the main output and the side outputs that somebody reads.
        state_files: files of bases, then changelog files of the path, oldest first.
        earlier_states: by name of storage, the forms that states ever had on the path.
        checkpoint_id, parent_id: that this batch makes, and the micro-batch that it continues.
        labels: by source, names of its files by place.
        letters: where the rows came from, where they are dead letters that are sent again.
        source: name of the source that the rows come straight from; None for several, or after an operator.
        key_form: makes keys what the job declares; None where they are that as they are stored.
        watermark_steps: where in the order the watermark moves; None where the rows carry it themselves.
        judges_lateness: whether the watermark before each row is known, so that late rows are counted.
        late_to: id of the side output that late rows go to, by source; without sources whose late rows stay.
        table_rules: of a keyed sink's operator, the rules of its table for single rows.
        table_name: of a keyed sink's operator, the sink and its table, for messages.
        first_reader: where rows pass through, whether nobody else set the bad rows of their sources aside.
    """

    layout: JobLayout
    write_id: str
    uid: str
    parallelism: int = 1
    max_parallelism: int = 1
    function: Any = None
    routed: RoutedLayout
    keyed: bool = False
    key_schema: KeySchema | None = None
    outputs: list[OutputSpec]
    state_files: list[StateFile] = field(default_factory=list)
    recorded_states: dict[str, StateSchema] = field(default_factory=dict)
    operator_state: RestoredOperatorState = RestoredOperatorState(None, [])
    dead_letters: bool
    clocks: BatchClocks
    checkpoint_id: int
    parent_id: int | None = None
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    letters: tuple[str, ...] = ()
    source: str | None = None
    event_times: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    backend: StateBackend = field(default_factory=HashMapStateBackend)
    earlier_states: dict[str, list[StateSchema]] = field(default_factory=dict)
    dropped_states: tuple[str, ...] = ()
    watermark_steps: pa.Table | None = None
    key_form: KeyForm | None = None
    judges_lateness: bool = False
    late_to: dict[str, str] = field(default_factory=dict)
    first_timers: tuple[FirstTimers, ...] = ()
    local_copies: LocalCopies = NO_COPIES
    table_rules: tuple[RowRule, ...] = ()
    table_name: str = ""
    first_reader: bool = True

    @property
    def has_kinds(self) -> bool:
        """Whether the function gives each output with its kind."""
        return any(output.changing for output in self.outputs)

    @property
    def kind(self) -> str:
        """Whose uid it is, for messages."""
        return "sink" if self.function is None else "operator"

    @property
    def known_key_schema(self) -> KeySchema:
        """Of the key, where it is known that there is one: rows with a key came, or state of keys is recorded."""
        assert self.key_schema is not None
        return self.key_schema


@dataclass
class SubtaskReport:
    """What a subtask did.

    Attributes:
        rows_by_source, max_event_ms: of the rows that come straight from sources, by source.
        behind_watermark: of these rows, those that were late, by source; empty where the operator does not judge.
        exchange: pairs of output and order file, by output.
        next_timers_ms: time of the first timer left, by domain.
        broadcast_refused: places of the broadcast elements that the function refused.
        asked_in_open, asked_late: names of the states that the function asked for, by the end of ``open`` and later.
        judged, broken: of a rule by row, the rows that it judged and those that break it.
        broken_rows: the first of these with their places, as text, where they end the micro-batch.
        began_s: when it began, since 1970, by the clock of its machine.
        attempt: how often Spark tried it before; each of these attempts failed.
    """

    subtask: int
    rows_in: int = 0
    rows_out: int = 0
    rows_refused: int = 0
    keys: int = 0
    rows_by_source: dict[str, int] = field(default_factory=dict)
    max_event_ms: dict[str, int] = field(default_factory=dict)
    behind_watermark: dict[str, int] = field(default_factory=dict)
    changelog: list[DataFile] = field(default_factory=list)
    sinks: dict[str, list[DataFile]] = field(default_factory=dict)
    exchange: dict[str, list[DataFile]] = field(default_factory=dict)
    dead_letters: list[DataFile] = field(default_factory=list)
    states: list[StateSchema] = field(default_factory=list)
    entries_added: dict[str, int | None] = field(default_factory=dict)
    operator_state: list[OperatorStateSchema] = field(default_factory=list)
    operator_state_files: list[DataFile] = field(default_factory=list)
    next_timers_ms: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    group_rows: dict[int, int] = field(default_factory=dict)
    broadcast_refused: list[int] = field(default_factory=list)
    asked_in_open: list[str] = field(default_factory=list)
    asked_late: list[str] = field(default_factory=list)
    judged: int = 0
    broken: int = 0
    broken_rows: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    began_s: float = field(default=0.0, compare=False)
    attempt: int = field(default=0, compare=False)

    def rows_staged(self, sink: str) -> int:
        return sum(file.rows for file in self.sinks.get(sink, []))

    @classmethod
    def of(cls, report: dict[str, Any]) -> SubtaskReport:
        raw = dict(report)

        def files(listed: list[dict[str, Any]]) -> list[DataFile]:
            return [DataFile(**file) for file in listed]

        for name in ("changelog", "dead_letters", "operator_state_files"):
            raw[name] = files(raw[name])
        for name in ("sinks", "exchange"):
            raw[name] = {at: files(written) for at, written in raw[name].items()}
        raw["states"] = [StateSchema(**s) for s in raw["states"]]
        raw["operator_state"] = schemas_from_json(raw["operator_state"])
        raw["group_rows"] = {int(k): v for k, v in raw["group_rows"].items()}
        return cls(**raw)
