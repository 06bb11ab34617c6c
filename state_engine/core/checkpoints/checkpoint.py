"""A checkpoint: one row of the ``checkpoints`` table, the commit point of a micro-batch or an operation.

The row lists, by exact name, every file that its attempt wrote, so that the state as of a checkpoint can be read from
the rows on its path alone. The classes below are both the Python objects and the table's schema (``ROW_TYPE``).
Plays the part of Flink's ``CompletedCheckpoint`` and its metadata file. Decision 0002.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import get_type_hints

from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.names import stored_name
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.types.every_type import StructType
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.core.types.type_parsing import to_type

MAIN = "main"
"""The branch that publishes to sinks."""
DAGSTER_RUN = "dagster run "
"""What rows that a run of Dagster commits record as ``requested_by``, before its id."""


@dataclass(frozen=True)
class DataFile:
    """One file that a subtask wrote.

    Attributes:
        path: relative to the table or sink directory it belongs to.
        key_group_min, key_group_max: key groups inside, inclusive; None where rows have none.
        key_hash_min, key_hash_max: hashes inside; None where rows have none.
        footer: CRC-32 of its footer, compared before it is opened; None where nothing was recorded: in files of other
            formats than Parquet, and of older versions.
    """

    path: str
    bytes: int
    rows: int
    subtask: int
    key_group_min: int | None = None
    key_group_max: int | None = None
    key_hash_min: int | None = None
    key_hash_max: int | None = None
    footer: int | None = None


@dataclass(frozen=True)
class BaseFile(DataFile):
    """One file of a base.

    Attributes:
        entries: how many entries are in it, by column name of their state; None in files of older versions.
    """

    entries: dict[str, int] | None = field(default=None, hash=False)  # files are elements of sets


@dataclass(frozen=True)
class BaseRange:
    """Which compaction base holds a range of key groups, and the checkpoint that it stands for."""

    key_group_start: int
    key_group_end: int
    base_id: str
    checkpoint_id: int


@dataclass(frozen=True)
class FirstTimers:
    """When the first timers are due that the keys of one subtask have.

    Attributes:
        times_ms: time of the first one, by domain; of a domain without timers there is none.
    """

    key_group_start: int
    key_group_end: int
    times_ms: dict[str, int] = field(hash=False)


@dataclass(frozen=True)
class OperatorCheckpoint:
    """What a checkpoint holds of one keyed operator.

    Attributes:
        key_schema: stored type of the key, as text.
        states: declared states, also those that this batch did not touch.
        changelog: files of changes that this attempt wrote.
        bases: compaction bases in force, empty before the first compaction.
        changed_entries: rows in ``changelog``.
        key_type: declared type of the key, as text; empty on streams without key.
        next_timers_ms: time of the first timer that is left, by domain.
        base_files: files of the base that this attempt wrote, whose ``base_id`` is the attempt's ``write_id``.
        expired: files, as of changes, with the entries of published states that the base of this attempt left out.
        directory: name of the operator's directory, where that is another one than its uid; derived from the uid by
            ``stored_name`` and never read back, for those who look at the tables from outside.
        entries: how many entries there are as of this checkpoint, by column name, of the states that are counted; see
            ``entry_counts``.
        first_timers: of each subtask that ran last; empty where that is not known: in older rows, of an operator that
            never had timers, and after timers were changed otherwise than by a micro-batch.
        asked_late: names of states that the function asks for later than in ``open``.
        second_key: names of the key's columns in the second of two connected streams; empty where there is none, or
            where it is not known: in state from a bootstrap, until rows come.
        shape: what the states mean beyond their types, see ``Function``; empty where the function says nothing.
        input_type: columns of the elements, as DDL, where they are needed though no row may come; else empty.
    """

    uid: str
    parallelism: int
    max_parallelism: int
    key_schema: str
    states: list[StateSchema]
    changelog: list[DataFile]
    bases: list[BaseRange]
    changed_entries: int
    key_type: str = ""
    next_timers_ms: dict[str, int] = field(default_factory=dict)
    base_files: list[BaseFile] = field(default_factory=list)
    expired: list[DataFile] = field(default_factory=list)
    directory: str | None = None
    entries: dict[str, int] = field(default_factory=dict)
    first_timers: list[FirstTimers] = field(default_factory=list)
    asked_late: list[str] = field(default_factory=list)
    second_key: list[str] = field(default_factory=list)
    shape: str = ""
    input_type: str = ""

    def __post_init__(self) -> None:
        name = stored_name(self.uid)
        object.__setattr__(self, "directory", None if name == self.uid else name)

    def unwritten(self) -> OperatorCheckpoint:
        """The same state, in a row whose attempt wrote nothing of it."""
        return replace(self, changelog=[], base_files=[], expired=[], changed_entries=0)


@dataclass(frozen=True)
class OperatorStatePart:
    """Where the list of one state of one subtask lies, and how long it is.

    Attributes:
        subtask: whose list it is; 0 for broadcast state, of which one copy is stored.
        write_id: the attempt whose files hold it: this one, or an earlier one where it did not change since.
        elements: rows in the table: elements, entries of a map, or key groups; 0 for an empty list.
        digest: of the elements in order, as hexadecimal text: differs where the list changed.
    """

    subtask: int
    write_id: str
    elements: int
    digest: str = ""


@dataclass(frozen=True)
class OperatorStateSchema:
    """One state of an operator that belongs to subtasks and not to keys.

    Attributes:
        scheme: even_split, union, broadcast, raw_operator or raw_keyed.
        parts: one a subtask that has the state, also where its list is empty.
    """

    name: str
    scheme: str
    type: str
    parts: list[OperatorStatePart]


@dataclass(frozen=True)
class OperatorStateRef:
    """Where the operator state of one operator or source lies: written by this attempt, or by an earlier one.

    Attributes:
        write_id: the last attempt that changed any of it.
        elements: rows over all states and subtasks; of a source, those that this attempt appended.
        states: by name; none for a source, whose position is folded along the path of checkpoints.
        last_run: the last attempt that ran the operator, whether it changed anything or not: a restore after it hands
            the lists out again, and a checkpoint since it was not yet notified to listeners; empty for a source.
        asked_late: names of states that the function asks for later than in ``open``.
    """

    operator: str
    write_id: str
    elements: int
    parallelism: int = 1
    states: list[OperatorStateSchema] = field(default_factory=list)
    last_run: str = ""
    asked_late: list[str] = field(default_factory=list)

    def write_ids(self) -> set[str]:
        """The attempts whose files hold elements."""
        return {part.write_id for state in self.states for part in state.parts if part.elements}


@dataclass(frozen=True)
class SourceProgress:
    """What a checkpoint consumed from one source.

    Attributes:
        position_from, position_to: summaries of the position before and after, as JSON.
        rows: rows read in this batch, as counted by the subtasks.
        watermark_ms: event-time watermark of the source after this batch.
        floor_ms: what the clock or the end of a time partition made the watermark at least; None where neither did.
        idle: whether the source was idle in this batch, and held back no other one.
        last_rows_ms: clock of the batch that had its last rows, or that knew it first; None in older rows.
        behind_watermark: of ``rows``, those that were late, by the first operator that reads the source and has a
            watermark before each row; 0 where there is none. Not ``late_rows`` of the checkpoint, which came after
            their time partition had been run.
    """

    name: str
    position_from: str
    position_to: str
    rows: int
    watermark_ms: int | None
    floor_ms: int | None = None
    idle: bool = False
    last_rows_ms: int | None = None
    behind_watermark: int = 0


@dataclass(frozen=True)
class ExpectationCount:
    """What a micro-batch counted of one rule by row, see ``DataStream.expect``.

    Attributes:
        name, rule: of the rule, and its text.
        otherwise: what becomes of rows that break it: ``fail``, ``dead_letter``, ``drop`` or ``warn``.
        rows: number of judged rows.
        broken: number of these that break it.
    """

    name: str
    rule: str
    otherwise: str
    rows: int
    broken: int


@dataclass(frozen=True)
class GateVerdict:
    """What a gate said of a micro-batch, see ``StatefulJob.gate``.

    Attributes:
        name, bound: of the gate, and what its bound says.
        otherwise: what follows where it is broken: ``stop`` or ``hold``.
        broken: how it is broken; empty where it is met.
    """

    name: str
    bound: str
    otherwise: str
    broken: str = ""


@dataclass(frozen=True)
class StagedSink:
    """Files that wait to be published to one sink, with all that publishing needs.

    Attributes:
        kind: how outputs wait and become visible, see ``SinkKind``.
        identity: of the table or directory when the files were staged; another one is never written to.
    """

    name: str
    kind: str
    path: str
    identity: str
    schema: str
    files: list[DataFile]
    withdrawn: list[DataFile] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows over all files."""
        return sum(f.rows for f in self.files)

    @property
    def changes_sink(self) -> bool:
        return bool(self.files or self.withdrawn) or SinkKind(self.kind).shows_every_checkpoint


@dataclass(frozen=True)
class PinnedCheckpoint:
    """Keeps a checkpoint from expiring while a savepoint copies it, and as long as the savepoint exists.

    Attributes:
        name: of the savepoint.
        checkpoint_id: what it is a copy of.
        path: directory of the savepoint.
    """

    name: str
    checkpoint_id: int
    path: str


@dataclass(frozen=True)
class RescaledOperator:
    """The parallelism that an operation gave to an operator, until the job declares another one than ``declared``."""

    uid: str
    parallelism: int
    declared: int


@dataclass(frozen=True)
class CheckpointRow:
    """One committed checkpoint; see the module docstring.

    Attributes:
        checkpoint_id: grows by one per committed row, over all branches.
        parent_id: the checkpoint it continues; None for the first.
        branch: ``main``, or the name of a replay.
        kind: what it stands for; see ``CheckpointKind``.
        write_id: names the attempt that wrote the files.
        created_at: when the attempt started.
        clock_ms: processing time of the batch, in milliseconds; never below the parent's.
        watermark_ms: event-time watermark after the batch, in milliseconds: the smallest of all sources, idle ones
            included; None without event time.
        rows_in: rows that reached operators and sinks from the sources, after DataFrame code in between.
        rows_refused: of these, rows set aside as dead letters.
        durations_ms: by step, as far as known at the commit.
        metrics: sums of user metrics over subtasks.
        delta_versions: version of each table that this attempt committed to, by table name.
        job: name of the job, code_version: as given by the job, requested_by: who or what asked for it.
        replaced_id: head that this row abandons: of a restore or promotion; None elsewhere.
        retired: checkpoints that can no longer be restored from this row on: of a retention row.
        pinned: savepoints whose checkpoints are kept from this row on, unpinned: names of those that no longer are.
        rescaled: operators whose parallelism an operation changed, as long as that is in force.
        partition: key of the time partition that the job has reached; empty for a continuous job.
        partition_start_ms, partition_end_ms: its bounds in event time, the end exclusive; None for a continuous job.
        late_rows: rows that this micro-batch found in the sources although their partition had been run before.
        backfill: the backfill that this row belongs to, as text; empty for none.
        operator_watermarks_ms: watermarks after the batch, by uid, of operators one of whose sources may be idle, or
            that read an operator which may hold its watermark back: they never go back, whatever comes.
        drained: whether this micro-batch fired all event-time timers, because the input had ended.
        kept_states: by uid, the names of states that ``keep_states`` names and no function asked for.
        expectations: what this micro-batch counted of each rule by row; without rules that judged no row.
        gates: what the gates of the job said of this micro-batch.
        declared: what the code declared that ran the last micro-batch, part by part, see ``declared_parts``; empty in
            rows of older versions.
        digest: of all the rest of the row, set when it is committed and compared when it is loaded; empty in rows of
            older versions. See ``row_digest``.
    """

    checkpoint_id: int
    parent_id: int | None
    branch: str
    kind: CheckpointKind
    write_id: str
    created_at: datetime
    clock_ms: int
    watermark_ms: int | None
    rows_in: int
    rows_refused: int
    operators: list[OperatorCheckpoint]
    operator_state: list[OperatorStateRef]
    operator_state_files: list[DataFile]
    sources: list[SourceProgress]
    sinks: list[StagedSink]
    dead_letters: list[DataFile]
    durations_ms: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    delta_versions: dict[str, int] = field(default_factory=dict)
    job: str = ""
    code_version: str = ""
    requested_by: str = ""
    replaced_id: int | None = None
    retired: list[int] = field(default_factory=list)
    pinned: list[PinnedCheckpoint] = field(default_factory=list)
    unpinned: list[str] = field(default_factory=list)
    rescaled: list[RescaledOperator] = field(default_factory=list)
    partition: str = ""
    partition_start_ms: int | None = None
    partition_end_ms: int | None = None
    late_rows: int = 0
    backfill: str = ""
    drained: bool = False
    operator_watermarks_ms: dict[str, int] = field(default_factory=dict)
    kept_states: dict[str, list[str]] = field(default_factory=dict)
    expectations: list[ExpectationCount] = field(default_factory=list)
    gates: list[GateVerdict] = field(default_factory=list)
    declared: str = ""
    digest: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", CheckpointKind(self.kind))

    @property
    def behind_watermark(self) -> int:
        """How many rows were late, over all sources; see ``SourceProgress``."""
        return sum(source.behind_watermark for source in self.sources)

    def watermark_of(self, uid: str) -> int | None:
        """The watermark that state of an operator expires by: that of the row, or the operator's where it is behind."""
        own = self.operator_watermarks_ms.get(uid, MAX_TIMESTAMP)
        return None if self.watermark_ms is None else min(self.watermark_ms, own)

    def operator(self, uid: str) -> OperatorCheckpoint | None:
        """The part of one operator; None where this checkpoint has none."""
        return next((o for o in self.operators if o.uid == uid), None)

    def source(self, name: str) -> SourceProgress | None:
        """What was consumed of one source; None where this checkpoint does not know it."""
        return next((s for s in self.sources if s.name == name), None)

    def state_names(self, uid: str) -> set[str]:
        """The names of all states of an operator, keyed and of subtasks."""
        keyed, own = self.operator(uid), (ref for ref in self.operator_state if ref.operator == uid)
        names = {state.name for ref in own for state in ref.states}
        return names | {state.name for state in (keyed.states if keyed else ())}

    def sink(self, name: str) -> StagedSink | None:
        """What is staged for one sink; None where nothing is."""
        return next((s for s in self.sinks if s.name == name), None)


def _row_type() -> StructType:
    fields = get_type_hints(CheckpointRow) | {"kind": str}
    types = [to_type(declared, parameter=name) for name, declared in fields.items()]
    return StructType(fields, types, CheckpointRow)


ROW_TYPE = _row_type()
"""The schema of the table; a kind is stored as its text."""
