"""Run a function without Spark, in milliseconds: the same operator loop and handles as in production.

``OperatorHarness`` runs any function class, ``KeyedHarness`` those of keyed streams. State is kept in memory and
behaves as on the engine between micro-batches: every ``process`` is one batch and one checkpoint, after which changes
are captured, folded into the stored state and loaded again for the next; a batch that fails changes nothing. Plays the
part of Flink's ``KeyedOneInputStreamOperatorTestHarness`` and its relatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from state_engine.core.errors import ConfigurationError
from state_engine.core.function import Function
from state_engine.core.functions.every_function import SourceFunction
from state_engine.core.functions.function_calls import (
    emits_changes,
    refusal_of_changes,
    takes_broadcast,
    takes_changes,
    takes_two_inputs,
)
from state_engine.core.functions.metrics import summed
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.vectorized_functions import VectorizedKeyedFunction
from state_engine.core.harness.harness_batch import HarnessBatch, watermarks
from state_engine.core.harness.harness_run import BatchSettings, HarnessRun, Unchanged
from state_engine.core.harness.harness_state import HarnessState
from state_engine.core.harness.subtask_elements import HarnessOperator
from state_engine.core.keys.key_form import DeclaredKey, KeyForm
from state_engine.core.keys.key_groups import assign_to_key_group, check_parallelism, subtask_for_key_group
from state_engine.core.operator.element_kinds import (
    ElementChange,
    own_kind,
    rows_of_kinds,
    shown_changes,
    split,
)
from state_engine.core.operator.outputs import Refusal
from state_engine.core.operator_state.operator_snapshot import SubtaskSnapshot
from state_engine.core.state.state_table import NO_KEY
from state_engine.core.types.columns import as_in_a_stream
from state_engine.core.types.every_type import TypeInformation
from state_engine.core.types.row import Row, RowKind
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import arrow_type, to_type
from state_engine.machine.defects import guarded_class
from state_engine.state_backends.state_backend import StateBackend
from state_engine.testing.harness_tables import table_of

Harness = TypeVar("Harness", bound="OperatorHarness")
_NAME = "harness"
Selector = Callable[[Any], Any]
"""From an element to its key, or to its event time in milliseconds."""


@guarded_class
@dataclass
class OperatorHarness:
    """Runs a function over lists of elements.

    Args:
        function: the function under test; every subtask and batch works on its own copy.
        key_by: gives an element's key; a pair of callables where the function has two inputs; None: not keyed.
        parallelism, max_parallelism: of the pretended operator.
        clock_ms: processing time.
        backend: where subtasks keep their working state, a StateBackend; None keeps entries in dicts.
        output_type: of the outputs, which come back as the next operator would get them, through the forms that they
            have on the engine; left as they are without it.
        input_type: of the elements, which reach the function through these forms, too; a pair where there are two
            inputs, or broadcast elements beside the others. Left as they are without it.
        key_type: of keys, likewise.
        timestamp_of: gives an element's event time in milliseconds; a pair where there are two inputs, or where a
            function takes broadcast elements, the second for these. One callable serves both. Of two inputs, one may
            have None: it has no event times, and holds back no watermark.
        max_out_of_orderness_ms: how late elements may come: after an element the watermark is the newest time less
            this, less one millisecond; of two inputs each has its own, and the smaller one counts. Without it only
            ``set_watermark`` moves it.
        partition_by: gives the subtask of an element where there is no key; without it elements are dealt in turn.
        on_error: ``fail`` raises what the function raised; ``dead_letter`` collects it in ``refused``.
        side_outputs: the tags that may be yielded to; None takes any.
        parameters: of the job.
        ordered: as of ``connect(…, ordered=True)``: broadcast elements stand among the others, and come with them in
            ``process_pairs``, as the second input.
        changing: whether elements have kinds: Rows of a kind, or pairs ``(RowKind.DELETE, element)``; anything else is
            an insert. Outputs that have kinds come back in the same way; so do those of a function that
            ``emits_changes``.

    Attributes:
        refused: what was set aside, with the elements' positions in their batch.
        metrics: the function's metrics in the last batch, over all subtasks.
        output_timestamps: event times of the outputs of the last batch, in milliseconds; None for one that has none.

    Example:
        >>> from state_engine.core.functions.every_function import MapFunction
        >>> OperatorHarness(MapFunction.of(lambda value: value + 1, what="map"), parallelism=2).process([1, 2, 3])
        [2, 3, 4]
    """

    function: Function
    key_by: Selector | tuple[Selector | None, Selector | None] | None = None
    parallelism: int = 1
    max_parallelism: int = 128
    clock_ms: int = 0
    backend: StateBackend | None = None
    output_type: TypeLike | None = None
    input_type: TypeLike | tuple[TypeLike, TypeLike] | None = None
    key_type: TypeLike | None = None
    timestamp_of: Selector | tuple[Selector | None, Selector | None] | None = None
    max_out_of_orderness_ms: int | None = None
    partition_by: Callable[[Any], int] | None = None
    on_error: str = "fail"
    side_outputs: Sequence[OutputTag] | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    ordered: bool = False
    changing: bool = False
    refused: list[Refusal] = field(default_factory=list, init=False)
    metrics: dict[str, float] = field(default_factory=dict, init=False)
    output_timestamps: list[int | None] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        check_parallelism(max_parallelism=self.max_parallelism, parallelism=self.parallelism)
        if self.backend is not None and not isinstance(self.backend, StateBackend):
            raise ConfigurationError(
                f"backend must be a StateBackend (HashMapStateBackend() and the like) or None, not {self.backend!r}"
            )
        self._side: dict[str, list[Any]] = {}
        if self.ordered and not takes_broadcast(self.function):
            raise ConfigurationError(
                f"ordered=True is for functions that take broadcast elements, not for {type(self.function).__name__}"
            )
        keyed = self.key_by is not None
        if self.changing and not takes_changes(self.function, keyed=keyed):
            raise ConfigurationError(refusal_of_changes(self.function, operator=_NAME, keyed=keyed))
        self._check_it_travels()
        known = isinstance(self.function, Function)
        self._emits_changes = known and emits_changes(self.function, changing=self.changing)
        self._two_inputs = takes_two_inputs(self.function) or self.ordered
        self._stored = HarnessState(watermarks_ms=self._first_watermarks())
        declared = None if self.output_type is None else to_type(self.output_type, parameter="output_type")
        self._output = declared or Unchanged()
        pair = self.input_type if isinstance(self.input_type, tuple) else (self.input_type, self.input_type)
        self._inputs = [None if kind is None else to_type(kind, parameter="input_type") for kind in pair]
        self._key_type = None if self.key_type is None else to_type(self.key_type, parameter="key_type")
        given = (self.key_by, self.input_type, self.key_type, self.output_type)
        if isinstance(self.function, VectorizedKeyedFunction) and None in given:
            raise ConfigurationError(
                f"{type(self.function).__name__} works on columns, so the harness must know their types: give it "
                "key_by, and input_type, key_type and output_type"
            )

    # -- batches ---------------------------------------------------------------------------------------------------

    def process(
        self, elements: Iterable[Any], *, broadcast: Iterable[Any] = (), drain: bool = False
    ) -> list[Any]:
        """One micro-batch: outputs in their total order.

        Args:
            elements: in order.
            broadcast: broadcast elements, which every subtask handles before the others.
            drain: fire all event-time timers at the end.
        """
        if self._two_inputs:
            raise ConfigurationError(
                f"{type(self.function).__name__} has two inputs: use process1, process2 or process_pairs"
            )
        return self._batch(list(elements), list(broadcast), drain)

    def process1(self, elements: Iterable[Any]) -> list[Any]:
        """One micro-batch with elements of the first input alone."""
        return self.process_pairs((1, element) for element in elements)

    def process2(self, elements: Iterable[Any]) -> list[Any]:
        """One micro-batch with elements of the second input alone."""
        return self.process_pairs((2, element) for element in elements)

    def process_pairs(self, pairs: Iterable[tuple[int, Any]], *, drain: bool = False) -> list[Any]:
        """One micro-batch of pairs of an input, 1 or 2, and an element, in their total order.

        Broadcast elements are those of input 2, where they are ``ordered``.
        """
        given = list(pairs)
        wrong = [pair for pair in given if pair[0] not in (1, 2)]
        if wrong or not self._two_inputs:
            raise ConfigurationError(
                f"process_pairs takes pairs of 1 or 2 and an element, for a function of two inputs, or with "
                f"ordered=True for one that takes broadcast elements; got {wrong[:1]} for "
                f"{type(self.function).__name__}"
            )
        return self._batch([(which - 1, element) for which, element in given], [], drain)

    def process_broadcast(self, elements: Iterable[Any]) -> list[Any]:
        """One micro-batch with broadcast elements alone."""
        return self.process((), broadcast=elements)

    def collect(self, max_elements: int) -> list[list[Any]]:
        """One micro-batch of a SourceFunction: what each subtask collected, at most so many elements each."""
        if not isinstance(self.function, SourceFunction):
            raise ConfigurationError(f"{type(self.function).__name__} is not a SourceFunction: use process")
        runs = self._runs(end_watermark_ms=self._stored.watermark_ms)
        for run in runs:
            run.collect(max_elements)
        self._commit(runs)
        return [run.out.values for run in runs]

    def drain(self) -> list[Any]:
        """One micro-batch without elements that fires all event-time timers, as at the end of a bounded input."""
        return self._batch([], [], True)

    def side_output(self, tag: OutputTag) -> list[Any]:
        """All that was yielded to a side output so far."""
        return list(self._side.get(tag.tag_id, []))

    # -- clocks and state ------------------------------------------------------------------------------------------

    def set_clock(self, ms: int) -> None:
        """Set the processing time of the next batches."""
        self.clock_ms = ms

    def set_watermark(self, ms: int) -> None:
        """Set the watermark at the start of the next batches; ``process([])`` fires what is due by then."""
        self._stored.watermarks_ms = tuple(ms for _ in self._stored.watermarks_ms)

    def set_watermark1(self, ms: int) -> None:
        """Set that of the first of two inputs; the function sees the smaller one. Flink's ``processWatermark1``."""
        self._set_watermark_of(0, ms)

    def set_watermark2(self, ms: int) -> None:
        """Set that of the second of two inputs; the function sees the smaller one. Flink's ``processWatermark2``."""
        self._set_watermark_of(1, ms)

    def set_idle1(self, idle: bool = True) -> None:
        """Let the first of two inputs hold back the other one no longer, until its next element.

        The watermark that the function sees never goes back. Flink's ``processWatermarkStatus1``.
        """
        self._set_idle(0, idle)

    def set_idle2(self, idle: bool = True) -> None:
        """The same for the second of two inputs. Flink's ``processWatermarkStatus2``."""
        self._set_idle(1, idle)

    def snapshot(self) -> HarnessState:
        """The stored state; later batches do not change it.

        It is a full snapshot: where a state asks for it, what has expired is left out, here and not in the harness.
        """
        return self._stored.snapshot(clock_ms=self.clock_ms)

    @classmethod
    def restored(
        cls: type[Harness],
        function: Function,
        snapshot: HarnessState,
        *,
        parallelism: int = 1,
        **options: Any,
    ) -> Harness:
        """A harness that continues from a snapshot, at any parallelism; ``options`` as for a new one.

        The function may declare its states in another way, as far as ``core.state.evolution`` supports the change; its
        first batch raises StateMigrationError otherwise.

        Raises:
            RescaleError: there is state that cannot be divided, and the parallelism is another one.
        """
        harness = cls(function, parallelism=parallelism, **{"clock_ms": snapshot.clock_ms, **options})
        harness._stored = snapshot.restart()
        harness._assigned()  # so that what cannot be divided is refused at once
        return harness

    def state(self, name: str) -> Any:
        """What is stored of one state.

        Of keyed state the entries by key: a value, a list, or a dict. Of operator state a list per subtask, of
        broadcast state a dict per subtask.
        """
        return self._stored.values(name)

    def table(self, state: str, *, key: TypeLike | None = None, map_key: str | None = "map_key") -> list[Any]:
        """What ``publish_state(state, …)`` would show: the rows of the table, by key.

        Args:
            state: name of a keyed state.
            key: columns of the key, ``"account string"``; by default those of ``key_type``.
            map_key: name of the column of a map's keys; None for a column of each field of keys that are records.

        Raises:
            ConfigurationError: there is no such state yet, the columns of the key are not known, or two columns would
                have one name.
        """
        kind = self._key_type if key is None else to_type(key, parameter="key")
        return table_of(self._stored.keyed, state, kind, map_key=map_key, operator=_NAME)

    def subtask_of(self, key: Any) -> int:
        """The subtask that owns a key."""
        group = assign_to_key_group(key, self.max_parallelism)
        return subtask_for_key_group(self.max_parallelism, self.parallelism, group)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _check_it_travels(self) -> None:
        """Refuse what a run could not send to subtasks."""
        from state_engine.spark.pickled_code import check_it_travels  # PySpark is imported on first use

        check_it_travels([self.function, self.key_by], what=f"operator '{_NAME}'")

    def _first_watermarks(self) -> tuple[int, ...]:
        """Of every input; one without event times holds back none."""
        if not self._two_inputs:
            return (MIN_TIMESTAMP,)
        of = self.timestamp_of if isinstance(self.timestamp_of, tuple) else (self.timestamp_of,) * 2
        timed = [one is not None for one in of]
        return tuple(MIN_TIMESTAMP if one or not any(timed) else MAX_TIMESTAMP for one in timed)

    def _set_watermark_of(self, which: int, ms: int) -> None:
        if not self._two_inputs:
            raise ConfigurationError(f"{type(self.function).__name__} has one input: use set_watermark")
        marks = list(self._stored.watermarks_ms)
        marks[which] = ms
        self._stored.watermarks_ms = tuple(marks)

    def _set_idle(self, which: int, idle: bool) -> None:
        if not self._two_inputs:
            raise ConfigurationError(
                f"{type(self.function).__name__} has one input, and while it is idle the watermark stays"
            )
        self._stored.reached_ms = self._stored.watermark_ms
        self._stored.idle = self._stored.idle | {which} if idle else self._stored.idle - {which}

    def _batch(self, given: list[Any], broadcast: list[Any], drain: bool) -> list[Any]:
        broadcast, of_broadcast = self._kinds(broadcast)
        broadcast = rows_of_kinds(self._passed(broadcast, self._inputs[1]), of_broadcast)
        batch = self._dealt(*self._received(given))
        timed = [
            (one, self._broadcast_time(one), kind) for one, kind in zip(broadcast, of_broadcast, strict=True)
        ]
        runs = self._runs(end_watermark_ms=batch.marks[-1], drain=drain)
        for run in runs:
            run.run(batch.of(run.subtask, timed))

        def apart(refusal: Refusal) -> bool:
            return refusal.broadcast and not self.ordered

        for run in runs:
            self.refused += [
                r if r.index is None or apart(r) else replace(r, index=batch.parts[run.subtask][r.index])
                for r in run.out.refused
            ]
        self._commit(runs)
        self._stored.watermarks_ms, self._stored.idle = tuple(batch.ends_ms), batch.idle
        if batch.idle or self._stored.reached_ms != MIN_TIMESTAMP:
            self._stored.reached_ms = batch.marks[-1]
        self._stored.elements += len(given)
        for tag in sorted({tag for run in runs for tag in run.out.side}):
            self._side.setdefault(tag, []).extend(self._given_on(batch.in_order(runs, tag)[0], typed=False))
        outputs, self.output_timestamps = batch.in_order(runs, None)
        return self._given_on(outputs, typed=self.output_type is not None)

    def _given_on(self, outputs: list[Any], *, typed: bool) -> list[Any]:
        """Outputs as the next operator would get them: each Row has its kind, and anything else stands beside it."""
        kinds, values = split(outputs) if self._emits_changes else ([], outputs)
        values = as_in_a_stream(values, self._output) if typed and values else values
        return shown_changes(values, kinds) if self._emits_changes else values

    def _kinds(self, given: list[Any]) -> tuple[list[Any], list[RowKind]]:
        changes = [own_kind(one) if self.changing else ElementChange(RowKind.INSERT, one) for one in given]
        kinds, values = split(changes)
        for value in () if self.changing else values:
            if isinstance(value, Row) and value.get_row_kind() is not RowKind.INSERT:
                raise ConfigurationError(
                    f"{value!r} has the kind {value.get_row_kind()}: give the harness changing=True, for a function "
                    "whose stream changes"
                )
        return values, kinds

    def _dealt(self, given: list[Any], kinds: list[RowKind]) -> HarnessBatch:
        """The elements with their keys and times, dealt out to the subtasks."""
        keys = None if self.key_by is None else [self._key_of(e) for e in given]
        stamps = [None if self.timestamp_of is None else self._of(self.timestamp_of, e) for e in given]
        parts: list[list[int]] = [[] for _ in range(self.parallelism)]
        for index, element in enumerate(given):
            if self.ordered and element[0] == 1:
                for part in parts:
                    part.append(index)
                continue
            if keys is not None:
                subtask = self.subtask_of(keys[index])
            elif self.partition_by is not None:
                subtask = self.partition_by(element[1] if self._two_inputs else element)
            else:
                subtask = (self._stored.elements + index) % self.parallelism
            parts[subtask].append(index)
        start_ms, delay_ms = self._stored.watermarks_ms, self.max_out_of_orderness_ms
        inputs = [element[0] if len(start_ms) > 1 else 0 for element in given]
        idle = self._stored.idle - set(inputs)
        marks, ends_ms = watermarks(
            start_ms,
            stamps,
            inputs,
            out_of_orderness_ms=delay_ms,
            idle=idle,
            least_ms=self._stored.reached_ms,
        )
        of_each = kinds if self.changing else None
        return HarnessBatch(given, keys, stamps, marks, ends_ms, parts, idle, of_each)

    def _received(self, given: list[Any]) -> tuple[list[Any], list[RowKind]]:
        """The elements as the engine would hand them to the function, and their kinds."""
        if not self._two_inputs:
            values, kinds = self._kinds(given)
            return rows_of_kinds(self._passed(values, self._inputs[0]), kinds), kinds
        values, kinds = self._kinds([value for _, value in given])
        elements = list(given)
        for which, kind in enumerate(self._inputs):
            at = [place for place, (one, _) in enumerate(given) if one == which]
            passed = self._passed([values[place] for place in at], kind)
            for place, value in zip(at, rows_of_kinds(passed, [kinds[p] for p in at]), strict=True):
                elements[place] = (which, value)
        return elements, kinds

    @staticmethod
    def _passed(values: list[Any], kind: TypeInformation | None) -> list[Any]:
        if kind is None or not values:
            return values
        return as_in_a_stream([kind.normalise(v) for v in values], kind)

    def _broadcast_time(self, element: Any) -> int | None:
        """Event time of a broadcast element: by the second of two callables, or by the only one."""
        chosen = self.timestamp_of
        if isinstance(chosen, tuple):
            chosen = chosen[1]
        time: int | None = None if chosen is None else chosen(element)
        return time

    def _key_of(self, element: Any) -> Any:
        """The key of an element, as it is stored where its type is known."""
        if self.ordered and element[0] == 1:
            return NO_KEY
        key = self._of(self.key_by, element)
        if self._key_type is None or key is None:
            return key
        columns = DeclaredKey.of("key", self._key_type).columns([self._key_type.normalise(key)])
        parts = [arrow_type(part.type).from_arrow(part)[0] for part in columns]
        return tuple(parts) if len(parts) > 1 else parts[0]

    def _runs(self, *, end_watermark_ms: int, drain: bool = False) -> list[HarnessRun]:
        """The subtasks of a batch; nothing of the harness changes before all of them are through."""
        operator = HarnessOperator(
            _NAME,
            self.function,
            self._output,
            input_type=self._inputs[0],
            second_type=self._inputs[1],
            key_type=self._key_type,
            key_form=self._key_form(),
            side_outputs=None
            if self.side_outputs is None
            else {tag.tag_id: tag for tag in self.side_outputs},
            has_event_time=self.timestamp_of is not None,
            ordered=self.ordered,
            emits_changes=self._emits_changes,
            dead_letters=self.on_error == "dead_letter",
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            parameters=self.parameters,
        )
        settings = BatchSettings(
            operator,
            clock_ms=self.clock_ms,
            watermark_ms=self._stored.watermark_ms,
            end_watermark_ms=end_watermark_ms,
            checkpoint_id=self._stored.checkpoint_id + 1,
            state=self._stored.keyed,
            drain=drain,
            backend=self.backend,
        )
        return [HarnessRun(settings, subtask, start) for subtask, start in enumerate(self._assigned())]

    def _key_form(self) -> KeyForm | None:
        return None if self._key_type is None else DeclaredKey.of("key", self._key_type).form

    def _commit(self, runs: list[HarnessRun]) -> None:
        self._stored.commit(runs)
        self.metrics = summed(run.metrics for run in runs)

    def _assigned(self) -> list[SubtaskSnapshot | None]:
        return self._stored.assigned(
            _NAME, parallelism=self.parallelism, max_parallelism=self.max_parallelism
        )

    def _of(self, chosen: Any, element: Any) -> Any:
        if not self._two_inputs:
            return (chosen[0] if isinstance(chosen, tuple) else chosen)(element)
        which, value = element
        chosen = chosen[which] if isinstance(chosen, tuple) else chosen
        return None if chosen is None else chosen(value)


@guarded_class
class KeyedHarness(OperatorHarness):
    """Runs a function of keyed streams over lists of elements; ``key_by`` must be given.

    Example:
        >>> from state_engine.core.state.descriptors import ValueStateDescriptor
        >>> from state_engine.core.functions.every_function import KeyedProcessFunction
        >>> class Count(KeyedProcessFunction):
        ...     def open(self, runtime_context):
        ...         self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int, default=0))
        ...     def process_element(self, value, ctx):
        ...         self.seen.update(self.seen.value() + 1)
        ...         yield value, self.seen.value()
        >>> harness = KeyedHarness(Count(), key_by=lambda value: value)
        >>> harness.process(["a", "b"]), harness.process(["a"]), harness.state("seen")
        ([('a', 1), ('b', 1)], [('a', 2)], {'a': 2, 'b': 1})
    """

    def __post_init__(self) -> None:
        if self.key_by is None:
            raise ConfigurationError("a KeyedHarness needs key_by, which gives an element's key")
        super().__post_init__()
