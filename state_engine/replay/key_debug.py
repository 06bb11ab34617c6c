"""One key, debugged: today's function runs over its recorded inputs in this process, and is compared with the record.

Starts from the state that the key had, goes on with its own from micro-batch to micro-batch, and compares states,
timers and outputs of each with the recorded ones. A debugger stops in the function as in any other. It names missing
files, and goes on behind them from the recorded state. Flink has no counterpart.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint, StagedSink
from state_engine.core.checkpoints.dead_letters import LETTERS
from state_engine.core.errors import ConfigurationError, StatelakeError, UserFunctionError
from state_engine.core.functions.function_calls import has_operator_state
from state_engine.core.functions.vectorized_functions import PerElement, StandsForElements, vectorized_form
from state_engine.core.harness.harness_state import stored_elements
from state_engine.core.harness.key_run import KeyRun, KeyStep, Timers, holds_anything
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.operator.element_kinds import own_kind, split
from state_engine.core.operator_state.operator_snapshot import BROADCAST, SubtaskSnapshot
from state_engine.core.state.descriptors import TIMERS, MapStateDescriptor, StateDescriptor
from state_engine.core.state.memory_state import UNSTAMPED
from state_engine.core.state.ttl_rule import without_expired
from state_engine.core.time.timers import EVENT, TimersDescriptor
from state_engine.core.types.columns import elements, to_table
from state_engine.job.graph import OperatorNode, declared_key, output_of
from state_engine.microbatch.subtask.subtask_spec import OutputSpec
from state_engine.queries.spark_sql import plain_message
from state_engine.queries.stored_entries import stored_key
from state_engine.replay.key_recording import (
    KeyRecorder,
    KeyState,
    RecordedBatch,
    RecordedKey,
    StoredKey,
    has_key,
    keyed_like,
)
from state_engine.replay.key_test_file import key_test_text
from state_engine.sources.stream_columns import KIND_FIELD, kind_column, kinds_of


@dataclass(frozen=True)
class DebuggedState:
    """A state of the key after a micro-batch; None where there is nothing.

    Attributes:
        name: of the state.
        value: of today's function.
        recorded: of the checkpoint.
        same: whether they are one.
        is_recorded: whether the checkpoint holds anything.
    """

    name: str
    value: Any
    recorded: Any
    same: bool
    is_recorded: bool = field(default=False, repr=False)


@dataclass(frozen=True)
class DebuggedOutput:
    """What went out to a sink.

    Attributes:
        sink: name; empty where no sink takes the output as it is.
        tag: id of the side output; empty for the main one.
        count: rows of today's function.
        missing: recorded rows that did not come; known where the rows of the sink show the key.
        extra: rows that came and are not recorded.
        shows_key: whether the rows of the sink show the key; else they are looked for among those of its subtask.
        problem: why there is nothing to compare with; empty where there is.
        recorded: the recorded rows as elements, in order; None where the sink does not show which they are.
    """

    sink: str
    tag: str = ""
    count: int = 0
    missing: list[Any] = field(default_factory=list)
    extra: list[Any] = field(default_factory=list)
    shows_key: bool = False
    problem: str = ""
    recorded: list[Any] | None = field(default=None, repr=False)

    @property
    def same(self) -> bool:
        """True where no difference is known."""
        return not (self.missing or self.extra)


@dataclass(frozen=True)
class DebuggedBatch:
    """One micro-batch of the key.

    Attributes:
        checkpoint_id, created_at: of the checkpoint that it made.
        recorded: the input; None where it is not known.
        steps: element by element.
        states, outputs: compared with the record.
        timers, recorded_timers: after it.
        problems: what is not known, and why.
        start: the recorded state that it started with; None where the key went on with its own.
        over_columns: whether a form over columns gives what is recorded, and the function by element does not.
    """

    checkpoint_id: int
    created_at: datetime
    recorded: RecordedBatch | None = field(default=None, repr=False)
    start: KeyState | None = field(default=None, repr=False)
    over_columns: bool = field(default=False, repr=False)
    steps: list[KeyStep] = field(default_factory=list)
    states: list[DebuggedState] = field(default_factory=list)
    timers: Timers = field(default_factory=list)
    recorded_timers: Timers = field(default_factory=list)
    outputs: list[DebuggedOutput] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """True where all that can be compared equals the record."""
        kept = all(one.same for one in self.states) and self.timers == self.recorded_timers
        return kept and all(one.same for one in self.outputs)


@dataclass(frozen=True)
class DebuggedKey:
    """A key of one operator.

    Attributes:
        operator: its uid.
        key: as the operator shows it, by column.
        batches: micro-batches, oldest first; those in which the operator did not run are left out.
        notes: what holds for all of them.
    """

    operator: str
    key: dict[str, Any]
    recorded_key: RecordedKey = field(repr=False)
    batches: list[DebuggedBatch]
    notes: list[str]

    @property
    def same(self) -> bool:
        """True where all that can be compared equals the record."""
        return all(batch.same for batch in self.batches)


@dataclass(frozen=True)
class KeyDebug:
    """What ``StateEngine.debug`` returns.

    Attributes:
        job: name.
        operators: the key in each operator that is keyed like it.
    """

    job: str
    operators: list[DebuggedKey]

    @property
    def same(self) -> bool:
        """True where all that can be compared equals the record."""
        return all(one.same for one in self.operators)

    def write_test(self, file: str | Path, *, replace: Sequence[str] = ()) -> None:
        """Write a file for pytest with the key's history and the recorded results; see ``statelake debug``.

        Args:
            replace: names of columns whose values get stand-ins, in inputs, keys, states and results.

        Raises:
            ConfigurationError: there is such a file, nothing happened to the key, or something cannot be written or
                replaced.
        """
        path = Path(file)
        if path.exists():
            raise ConfigurationError(f"there is a file {path}: remove it, or name another one")
        text = key_test_text(self, replace=replace)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


OnBatch = Callable[[CheckpointRow], object]


@dataclass(frozen=True)
class KeyDebugger:
    """Debugs keys of one job.

    Attributes:
        last: without any checkpoints given, so many micro-batches are searched for the newest that touched the key.
    """

    recorder: KeyRecorder
    last: int = 20

    def debug(
        self,
        key: Any,
        *,
        operator: str | None,
        first: int | None,
        last: int | None,
        on_progress: OnBatch | None,
    ) -> KeyDebug:
        recorder = self.recorder
        path = recorder.history.main_path
        chosen = self._chosen(path, first, last)
        keys = self._keys(path, key, operator)
        made = [self._debugged(path, chosen, one, first is not None, on_progress) for one in keys]
        return KeyDebug(recorder.job.name, made)

    # -- what to run -----------------------------------------------------------------------------------------------

    def _chosen(
        self, path: Sequence[CheckpointRow], first: int | None, last: int | None
    ) -> list[CheckpointRow]:
        batches = [row for row in path if row.kind.is_micro_batch]
        known = [row.checkpoint_id for row in batches]
        for asked in (first, last):
            if asked is not None and asked not in known:
                raise ConfigurationError(
                    f"job '{self.recorder.job.name}': checkpoint {asked} is no micro-batch on the path of the head; "
                    f"those are {known}"
                )
        if first is None and last is None:
            return batches[-self.last :]
        begin = 0 if first is None else known.index(first)
        end = len(known) if last is None else known.index(last) + 1
        if begin >= end:
            raise ConfigurationError(
                f"job '{self.recorder.job.name}': the first checkpoint, {first}, comes after the last one, {last}"
            )
        return batches[begin:end]

    def _keys(self, path: Sequence[CheckpointRow], key: Any, only: str | None) -> list[RecordedKey]:
        job, newest = self.recorder.job, dict[str, OperatorCheckpoint]()
        for row in path:
            newest |= {o.uid: o for o in row.operators}
        schemas = {
            uid: KeySchema.recorded(o.key_schema, o.key_type)
            for uid, o in sorted(newest.items())
            if uid in job.operators and job.operators[uid].keyed
        }
        known = "operators of its code that have run, and their keys"
        fitting = keyed_like(key, schemas, only, job=job.name, known=known)
        return [self._key(job.operators[uid], schema, key) for uid, schema in fitting.items()]

    def _key(self, node: OperatorNode, schema: KeySchema, key: Any) -> RecordedKey:
        what = f"job '{self.recorder.job.name}', operator '{node.uid}'"
        return RecordedKey(node, schema, *stored_key(key, schema, what=what))

    # -- one operator ----------------------------------------------------------------------------------------------

    def _debugged(
        self,
        path: Sequence[CheckpointRow],
        chosen: Sequence[CheckpointRow],
        key: RecordedKey,
        asked: bool,
        on_progress: OnBatch | None,
    ) -> DebuggedKey:
        notes, run, batches = [], None, list[DebuggedBatch]()
        if has_operator_state(key.node.function):
            notes.append(
                "the function has state of its own beside that of keys: here one key alone changes it"
            )
        recorded = self._recorded(path, chosen, key, on_progress)
        for made, batch in recorded if asked else self._newest(recorded, key):
            if batch is None:
                run = None  # goes on from what is recorded
                batches += [made] if made.problems else []
                continue
            debugged, run = self._run(run, path, made, batch, key)
            batches.append(debugged)
        if self.recorder.with_spark:
            notes.append(
                "the input was read with Spark: a source, or DataFrame code before the operator, needs it"
            )
        return DebuggedKey(key.uid, _shown(key), key, batches, notes)

    def _recorded(
        self,
        path: Sequence[CheckpointRow],
        chosen: Sequence[CheckpointRow],
        key: RecordedKey,
        on_progress: OnBatch | None,
    ) -> list[tuple[DebuggedBatch, RecordedBatch | None]]:
        """The recorded input of micro-batches; None where it is not known, or the operator did not run."""
        read: list[tuple[DebuggedBatch, RecordedBatch | None]] = []
        for row in chosen:
            if on_progress is not None:
                on_progress(row)
            read.append(self._of_row(path[: path.index(row) + 1], key))
        return read

    def _of_row(
        self, path: Sequence[CheckpointRow], key: RecordedKey
    ) -> tuple[DebuggedBatch, RecordedBatch | None]:
        row = path[-1]

        def unknown(why: str) -> tuple[DebuggedBatch, None]:
            return DebuggedBatch(row.checkpoint_id, row.created_at, problems=[why]), None

        if row.source(LETTERS) is not None:
            return unknown("the micro-batch sent dead letters again, and they are not read again here")
        try:
            recorded = self.recorder.batch(path, key)
        except UserFunctionError:
            raise
        except StatelakeError as error:
            return unknown(f"its input is gone, or cannot be read: {error}")
        except PySparkException as error:
            return unknown(f"its input cannot be read: {plain_message(error)}")
        return DebuggedBatch(row.checkpoint_id, row.created_at, recorded), recorded

    def _newest(
        self, recorded: Sequence[tuple[DebuggedBatch, RecordedBatch | None]], key: RecordedKey
    ) -> list[tuple[DebuggedBatch, RecordedBatch | None]]:
        """The newest micro-batch that touched the key, with those since whose input is not known."""
        for place in reversed(range(len(recorded))):
            batch = recorded[place][1]
            if batch is not None and self._touches(batch, key):
                return [recorded[place], *(one for one in recorded[place + 1 :] if one[0].problems)]
        return [one for one in recorded if one[0].problems]

    def _touches(self, recorded: RecordedBatch, key: RecordedKey) -> bool:
        batch, ordered = recorded.batch, recorded.operator.ordered
        if any(not (ordered and one.input == 2) for one in batch.elements):
            return True
        try:
            stored = StoredKey(self.recorder.layout, recorded.path, key).load(TimersDescriptor())
        except StatelakeError:
            return False  # said where its state is needed
        return any(
            batch.drain or at_ms <= (batch.end_watermark_ms if domain == EVENT else batch.clock_ms)
            for at_ms, domain in stored.get(key.key, {})
        )

    # -- one micro-batch -------------------------------------------------------------------------------------------

    def _run(
        self,
        run: KeyRun | None,
        path: Sequence[CheckpointRow],
        made: DebuggedBatch,
        recorded: RecordedBatch,
        key: RecordedKey,
    ) -> tuple[DebuggedBatch, KeyRun | None]:
        layout = self.recorder.layout
        if run is None or _changed_meanwhile(recorded, run):
            state = KeyState(stored=StoredKey(layout, recorded.path, key))
            made = replace(made, start=state)
            run = KeyRun(recorded.operator, key.key, state, recorded.restored)
            try:
                state.load(TimersDescriptor(), [], operator=key.uid)
            except StatelakeError as error:
                made.problems.append(f"the state before it is gone: {error}")
                return made, None
        run.operator = recorded.operator
        before = run.copied()
        steps = run.run(recorded.batch)
        debugged = self._result(path, made, recorded, key, run, steps)
        if not debugged.same and (over_columns := _over_columns(before, recorded)) is not None:
            other, taken = over_columns
            in_columns = self._result(path, made, recorded, key, other, taken)
            if in_columns.same:  # as the run had it: the two forms may differ in what has no effect
                return replace(in_columns, steps=steps, over_columns=True), other
        return debugged, run

    def _result(
        self,
        path: Sequence[CheckpointRow],
        made: DebuggedBatch,
        recorded: RecordedBatch,
        key: RecordedKey,
        run: KeyRun,
        steps: list[KeyStep],
    ) -> DebuggedBatch:
        states, timers, problems = self._states(path, recorded, key, run)
        return replace(
            made,
            recorded=recorded,
            steps=steps,
            states=states,
            timers=run.timers(),
            recorded_timers=run.timers() if timers is None else timers,
            outputs=list(self._outputs(recorded, key, steps)),
            problems=problems,
        )

    def _states(
        self, path: Sequence[CheckpointRow], recorded: RecordedBatch, key: RecordedKey, run: KeyRun
    ) -> tuple[list[DebuggedState], Timers | None, list[str]]:
        until = path[: path.index(recorded.row) + 1]
        stored = StoredKey(self.recorder.layout, until, key)
        try:
            timers = sorted(stored.load(TimersDescriptor()).get(key.key, {}))
            states = [
                _compared(descriptor, run, stored, recorded)
                for name, descriptor in run.state.descriptors.items()
                if name != TIMERS
            ]
            own = self.recorder.subtask_state(until, recorded)
        except StatelakeError as error:
            return [], None, [f"the state after it is gone: {error}"]
        return [*states, *_broadcast_states(run.subtask_state, own)], timers, []

    def _outputs(
        self, recorded: RecordedBatch, key: RecordedKey, steps: Sequence[KeyStep]
    ) -> Iterator[DebuggedOutput]:
        gone = [one for step in steps for one in step.outputs]
        for output in recorded.outputs:
            rows = [value for tag, value in gone if (tag or "") == output.name]
            place = (key.uid, output.name)
            sinks = [n for n, one in self.recorder.job.sinks.items() if output_of(one.parent) == place]
            staged = [one for one in recorded.row.sinks if one.name in sinks]
            if not staged and rows:
                yield DebuggedOutput(
                    "",
                    output.name,
                    len(rows),
                    problem="no sink takes them as they are, so they are not recorded",
                )
            for sink in staged:
                yield self._output(sink, output, rows, recorded, key)

    def _output(
        self,
        sink: StagedSink,
        output: OutputSpec,
        values: list[Any],
        recorded: RecordedBatch,
        key: RecordedKey,
    ) -> DebuggedOutput:
        try:
            there = self.recorder.staged(sink, recorded.operator.subtask)
        except (StatelakeError, OSError) as error:
            problem = f"the recorded rows are gone, or cannot be read: {error}"
            return DebuggedOutput(sink.name, output.name, len(values), problem=problem)
        here = _rows(output, values, has_kinds=recorded.operator.emits_changes)
        if there is None:
            return DebuggedOutput(
                sink.name, output.name, len(values), [], here.to_pylist(), shows_key=True, recorded=[]
            )
        here = here.select([name for name in there.column_names if name in here.column_names])
        here = here.cast(pa.schema([there.schema.field(name) for name in here.column_names]))
        of_key, own = has_key(there, key), has_key(here, key)
        shows = of_key is not None and own is not None and all(own.to_pylist())
        rows = there.filter(of_key) if shows else there
        left, came = Counter(map(repr, rows.to_pylist())), Counter(map(repr, here.to_pylist()))
        return DebuggedOutput(
            sink.name,
            output.name,
            len(values),
            _with_texts(rows, left - came) if shows else [],
            _with_texts(here, came - left),
            shows,
            recorded=_elements(rows, output) if shows else None,
        )


def _shown(key: RecordedKey) -> dict[str, Any]:
    declared, parts = declared_key(key.node), key.key
    if declared is not None and declared.form is not None and declared.record is None:
        parts = declared.form(parts)
    return dict(zip(key.schema.names, parts if len(key.schema.names) > 1 else (parts,), strict=True))


def _over_columns(run: KeyRun, recorded: RecordedBatch) -> tuple[KeyRun, list[KeyStep]] | None:
    """The same micro-batch by a function's form over columns, where it has one that can run it."""
    form = vectorized_form(run.operator.function)
    if not isinstance(form, StandsForElements) or not recorded.batch.elements:
        return None
    run.operator = replace(run.operator, function=form)
    try:
        return run, run.run(recorded.batch)
    except PerElement:
        return None


def _changed_meanwhile(recorded: RecordedBatch, run: KeyRun) -> bool:
    """Whether something else than micro-batches changed the state of the key since, or its subtask is another one."""
    before, operator = recorded.path[-1] if recorded.path else None, recorded.operator
    moved = (operator.parallelism, operator.max_parallelism) != (
        run.operator.parallelism,
        run.operator.max_parallelism,
    )
    return moved or (before is not None and before.kind.begins_job)


def _compared(
    descriptor: StateDescriptor, run: KeyRun, stored: StoredKey, recorded: RecordedBatch
) -> DebuggedState:
    clock_ms, watermark_ms = recorded.row.clock_ms, recorded.row.watermark_of(recorded.operator.uid)
    here, there = (
        without_expired(descriptor, entries, clock_ms=clock_ms, watermark_ms=watermark_ms).get(run.key)
        for entries in (run.state.entries[descriptor.name], stored.load(descriptor))
    )
    same = _stored_form(descriptor, here) == _stored_form(descriptor, there)
    is_recorded = holds_anything(there, descriptor)
    value = copy.deepcopy(_plain(descriptor, here))  # the key goes on with its own
    return DebuggedState(descriptor.name, value, _plain(descriptor, there), same, is_recorded)


def _plain(descriptor: StateDescriptor, item: Any) -> Any:
    if item is None or descriptor.ttl is None:
        return item
    return UNSTAMPED[descriptor.shape](item)


def _stored_form(descriptor: StateDescriptor, item: Any) -> str:
    """What is stored of a key, as text: two states are the same where theirs is.

    NaN equals itself here, and the order of a map's entries does not count.
    """
    plain = _plain(descriptor, item)
    if plain is None or (descriptor.shape != "value" and not plain):
        return ""
    held = [item] if descriptor.shape == "value" else list(item.values() if isinstance(item, dict) else item)
    values = [one.value for one in held] if descriptor.ttl is not None else held
    parts = [descriptor.value_type.to_arrow(values, storage=True).to_pylist()]
    if descriptor.ttl is not None:
        parts.append([one.at for one in held])
    if not isinstance(descriptor, MapStateDescriptor):
        return repr(parts)
    map_keys = descriptor.key_type.to_arrow(list(item), storage=True).to_pylist()
    return repr(sorted(map(repr, zip(map_keys, *parts, strict=True))))


def _broadcast_states(here: SubtaskSnapshot | None, there: SubtaskSnapshot | None) -> Iterator[DebuggedState]:
    for state in () if here is None else here.states:
        if state.scheme != BROADCAST:
            continue
        recorded = None if there is None else there.state(state.name)
        same = state.elements == (() if recorded is None else recorded.elements)
        entries = None if recorded is None else stored_elements(recorded)
        yield DebuggedState(state.name, stored_elements(state), entries, same, bool(entries))


def _rows(output: OutputSpec, values: list[Any], *, has_kinds: bool) -> pa.Table:
    kinds, plain = split([own_kind(value) for value in values]) if has_kinds else ([], values)
    table = to_table(plain, output.kind.columns, scalar=output.kind.scalar)
    return table.append_column(KIND_FIELD, kind_column(kinds)) if output.changing else table


def _elements(rows: pa.Table, output: OutputSpec) -> list[Any] | None:
    """Rows of a sink as elements of the stream, pairs with their kinds where it changes; None if it lacks columns."""
    columns = output.kind.columns
    wanted = [*columns.names, *([KIND_FIELD.name] if output.changing else [])]
    if not set(wanted) <= set(rows.column_names):
        return None
    try:
        cast = rows.select(columns.names).cast(pa.schema(list(columns.arrow)))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    shown = elements(cast, cast.column_names, scalar=output.kind.scalar, declared=columns)
    kinds = kinds_of(rows) if output.changing else None
    return shown if kinds is None else list(zip(kinds, shown, strict=True))


def _with_texts(rows: pa.Table, texts: Counter[str]) -> list[Any]:
    """The rows that these texts show, as often as they do."""
    wanted, chosen = Counter(texts), []
    for row in rows.to_pylist():
        if wanted[repr(row)] > 0:
            wanted[repr(row)] -= 1
            chosen.append(row)
    return chosen
