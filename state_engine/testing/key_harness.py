"""``KeyHarness``: one key of one operator of a job, without Spark: from a state on, micro-batch after micro-batch.

What ``statelake debug --write-test`` writes tests with. The operator is that of the job: its function, types, side
outputs and kinds. The elements come with the watermarks that other keys moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.vectorized_functions import StandsForElements, vectorized_form
from state_engine.core.harness.harness_state import stored_elements
from state_engine.core.harness.key_run import (
    KeyBatch,
    KeyElement,
    KeyRun,
    KeyStep,
    Timers,
    holds_anything,
)
from state_engine.core.harness.subtask_elements import HarnessOperator
from state_engine.core.keys.key_groups import key_group_of_hash, subtask_for_key_group
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.operator_state.operator_snapshot import BROADCAST, StateElements, SubtaskSnapshot
from state_engine.core.state.descriptors import TIMERS, StateDescriptor
from state_engine.core.state.memory_state import UNSTAMPED, MemoryState
from state_engine.core.state.ttl import Stamped
from state_engine.core.state.ttl_rule import without_expired
from state_engine.core.time.timers import Timer, TimersDescriptor
from state_engine.core.types.every_type import StructType
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import to_type
from state_engine.job.changing_streams import is_changing
from state_engine.job.graph import (
    Node,
    OperatorNode,
    SideOutputNode,
    declared_key,
    has_event_time,
    is_scalar,
    output_type_of,
    type_in_code,
    typing_inputs,
)
from state_engine.job.graph import declared_type as type_of
from state_engine.job.job import StatefulJob
from state_engine.job.typed_by_input import Typed
from state_engine.machine.defects import guarded_class
from state_engine.queries.stored_entries import stored_key
from state_engine.sources.output_type import OutputType

SubtaskStates = Mapping[str, tuple[str, str, Sequence[str]]]
"""States of a subtask by name: scheme, type, and elements as JSON, as checkpoints hold them."""


@guarded_class
class KeyHarness:
    """Runs one key of one operator of a job, and shows its outputs, states and timers.

    State is kept in memory and behaves as on the engine between micro-batches. An element has the event time and the
    watermark that it is given, late ones pass by the function, and timers fire as they would.

    Args:
        operator: uid of a keyed operator.
        key: as functions see it, or a dict by column.
        states: the states that the key starts with: by name a value, a list, or a dict. Where a state has a time to
            live, each item is ``Stamped(value, ms)``, with the time of its last access; without it never expires.
        timers: that the key starts with: pairs of a time in milliseconds and ``event`` or ``processing``.
        subtask_states: states of the subtask that it starts with, broadcast state for instance.
        input_types: of the inputs, as DDL such as ``"user string, n bigint"``; needed where the function follows from
            types that no code declares.
        key_type: columns of the key, likewise.
        parallelism: of the operator, as the function sees it; that of the job by default.
        parameters: for ``RuntimeContext.get_job_parameter``.

    Raises:
        ConfigurationError: there is no such keyed operator, or a type is not known.
        InvalidKeyError: the key cannot be one.

    Example:
        >>> from state_engine import FileSource, KeyedProcessFunction, Row, StatefulJob, ValueStateDescriptor
        >>> class Total(KeyedProcessFunction):
        ...     def open(self, runtime_context):
        ...         self.sum = runtime_context.get_state(ValueStateDescriptor("sum", int, default=0))
        ...     def process_element(self, value, ctx):
        ...         self.sum.update(self.sum.value() + value.n)
        ...         yield value.user, self.sum.value()
        >>> job = StatefulJob("clicks")
        >>> clicks = job.source("clicks", FileSource("/data/clicks", schema="user string, n bigint"))
        >>> _ = clicks.key_by("user").process(Total(), uid="total", output_type="user string, total bigint")
        >>> harness = KeyHarness(job, "total", "ada", states={"sum": 3})
        >>> harness.process([KeyElement(Row(user="ada", n=4))]), harness.states()
        ([Row(user='ada', total=7)], {'sum': 7})
    """

    def __init__(
        self,
        job: StatefulJob,
        operator: str,
        key: Any,
        *,
        states: Mapping[str, Any] | None = None,
        timers: Iterable[tuple[int, str]] = (),
        subtask_states: SubtaskStates | None = None,
        input_types: Sequence[TypeLike] | None = None,
        key_type: str | None = None,
        parallelism: int | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        node = job.operators.get(operator)
        if node is None or not node.keyed:
            keyed = sorted(uid for uid, one in job.operators.items() if one.keyed)
            raise ConfigurationError(
                f"job '{job.name}' has no keyed operator '{operator}'; those are {keyed}"
            )
        what = f"job '{job.name}', operator '{operator}'"
        schema = _key_schema(node, key_type, what)
        stored, key_hash = stored_key(key, schema, what=what)
        inputs = _input_kinds(node, input_types, what)
        self._outputs = _output_kinds(node, inputs)
        made = _operator(job, node, schema, inputs, self._outputs)
        parallelism = parallelism or made.parallelism
        group = key_group_of_hash(key_hash, made.max_parallelism)
        subtask = subtask_for_key_group(made.max_parallelism, parallelism, group)
        made = replace(made, parallelism=parallelism, subtask=subtask, parameters=dict(parameters or {}))
        self._run = KeyRun(made, stored, _given(stored, states, timers), _snapshot(subtask_states))
        self._batch = KeyBatch(checkpoint_id=0)
        self._side: dict[str, list[Any]] = {}

    def process(
        self,
        elements: Iterable[KeyElement] = (),
        *,
        broadcast: Iterable[KeyElement] = (),
        checkpoint_id: int | None = None,
        clock_ms: int = 0,
        watermark_ms: int = MIN_TIMESTAMP,
        end_watermark_ms: int = MIN_TIMESTAMP,
        checkpoint_watermark_ms: int | None = None,
        drain: bool = False,
        over_columns: bool = False,
    ) -> list[Any]:
        """One micro-batch: what goes out, as the next operator gets it; pairs of kind and value of a changing stream.

        Args:
            elements: of the key, in order, each with the watermark before it.
            broadcast: broadcast elements, which come before the others.
            checkpoint_id: of the checkpoint that the micro-batch makes; the next number by default.
            clock_ms: processing time.
            watermark_ms, end_watermark_ms: before and after the micro-batch.
            checkpoint_watermark_ms: of the parent checkpoint.
            drain: whether the input has ended for good: every event-time timer fires.
            over_columns: run a ready-made operator by its form over columns, as runs do.

        Raises:
            ConfigurationError: the operator has no form over columns.

        What the function raises comes as it is, unless the job sets refused rows aside.
        """
        before = self._batch.checkpoint_id
        self._batch = KeyBatch(
            elements=list(elements),
            broadcast=list(broadcast),
            checkpoint_id=before + 1 if checkpoint_id is None else checkpoint_id,
            clock_ms=clock_ms,
            watermark_ms=watermark_ms,
            end_watermark_ms=end_watermark_ms,
            checkpoint_watermark_ms=checkpoint_watermark_ms,
            drain=drain,
            parent_id=before or None,
        )
        steps = self._steps(self._batch, over_columns=over_columns)
        gone = [one for step in steps for one in step.outputs]
        self._side = {
            tag: self._shown(tag, [value for to, value in gone if to == tag])
            for tag in sorted({to for to, _ in gone if to is not None})
        }
        return self._shown("", [value for to, value in gone if to is None])

    def side_output(self, tag_id: str) -> list[Any]:
        """What went to a side output in the last micro-batch."""
        return list(self._side.get(tag_id, ()))

    def states(self) -> dict[str, Any]:
        """The states of the key by name, and broadcast states; without those that hold nothing, and what expired."""
        run, batch = self._run, self._batch
        end_ms = None if batch.end_watermark_ms == MIN_TIMESTAMP else batch.end_watermark_ms
        held = {}
        for name, descriptor in run.state.descriptors.items():
            entries = run.state.entries[name]
            kept = without_expired(descriptor, entries, clock_ms=batch.clock_ms, watermark_ms=end_ms)
            if name != TIMERS and holds_anything(kept.get(run.key), descriptor):
                held[name] = _plain(descriptor, kept[run.key])
        own = run.subtask_state.states if run.subtask_state is not None else ()
        broadcast = [state for state in own if state.scheme == BROADCAST and state.elements]
        return held | {state.name: stored_elements(state) for state in broadcast}

    def timers(self) -> Timers:
        """The timers of the key, in order."""
        return self._run.timers()

    def _steps(self, batch: KeyBatch, *, over_columns: bool) -> list[KeyStep]:
        run, operator = self._run, self._run.operator
        if not over_columns:
            return run.run(batch)
        form = vectorized_form(operator.function)
        if not isinstance(form, StandsForElements):
            raise ConfigurationError(
                f"operator '{operator.uid}' has no form over columns: leave over_columns out"
            )
        run.operator = replace(operator, function=form)
        try:
            return run.run(batch)
        finally:
            run.operator = operator

    def _shown(self, output: str, values: list[Any]) -> list[Any]:
        return self._outputs[output].in_a_stream(values, has_kinds=self._run.operator.emits_changes)


@dataclass
class _GivenState(MemoryState):
    """The state of a key in memory, as it is given, in the form of the descriptor that first asks for it."""

    key: Any = None
    given: dict[str, Any] = field(default_factory=dict)

    def load(self, descriptor: StateDescriptor, keys: Iterable[Any], *, operator: str) -> dict[Any, Any]:
        if descriptor.name in self.given:
            item = _item(descriptor, self.given.pop(descriptor.name))
            self.entries[descriptor.name] = {self.key: item}
            self.descriptors[descriptor.name] = descriptor
        return super().load(descriptor, keys, operator=operator)


_EACH: dict[str, Callable[[Callable[[Any], Any], Any], Any]] = {
    "value": lambda of, item: of(item),
    "list": lambda of, items: list(map(of, items)),
    "map": lambda of, items: {key: of(item) for key, item in items.items()},
}


def _item(descriptor: StateDescriptor, given: Any) -> Any:
    def of(one: Any) -> Any:
        if descriptor.ttl is None:
            return one.value if isinstance(one, Stamped) else one
        return one if isinstance(one, Stamped) else Stamped(one, None)

    return _EACH[descriptor.shape](of, given)


def _plain(descriptor: StateDescriptor, item: Any) -> Any:
    return item if descriptor.ttl is None else UNSTAMPED[descriptor.shape](item)


def _given(key: Any, states: Mapping[str, Any] | None, timers: Iterable[tuple[int, str]]) -> MemoryState:
    held = {Timer(*one): True for one in timers}
    return _GivenState(
        {TIMERS: {key: held} if held else {}}, {TIMERS: TimersDescriptor()}, key, dict(states or {})
    )


def _snapshot(states: SubtaskStates | None) -> SubtaskSnapshot | None:
    if states is None:
        return None
    return SubtaskSnapshot(
        tuple(
            StateElements(name, scheme, kind, tuple(texts))
            for name, (scheme, kind, texts) in sorted(states.items())
        )
    )


def _key_schema(node: OperatorNode, given: str | None, what: str) -> KeySchema:
    if given is not None:
        return KeySchema.declared(given)
    declared = declared_key(node, type_in_code)
    if declared is None:
        raise ConfigurationError(
            f"{what}: no code declares the columns of its key: give their types, such as key_type='user string'"
        )
    return declared.schema


def _input_kinds(node: OperatorNode, given: Sequence[TypeLike] | None, what: str) -> list[OutputType]:
    """The kinds of elements of the inputs that say what the function is, as far as that is needed."""
    kinds = []
    for place, one in enumerate(typing_inputs(node)):
        kind = type_of(one.parent, type_in_code)
        if given is not None and place < len(given):
            columns = to_type(given[place], parameter="input_types")
            kind = OutputType(OutputType.of(columns).columns, scalar=is_scalar(one.parent))
        needed = isinstance(node.function, Typed) or node.output_type is None
        if kind is None and needed:
            raise ConfigurationError(
                f"{what}: no code declares the columns of its input {place + 1}: give their types, such as "
                "input_types=['user string, n bigint']"
            )
        kinds += [kind] if kind is not None else []
    return kinds


def _output_kinds(node: OperatorNode, inputs: Sequence[OutputType]) -> dict[str, OutputType]:
    """By the id of a side output; the main one without a name."""
    main = node.output_type or output_type_of(node, inputs)
    return {"": main} | {tag.tag_id: OutputType.of(tag.type_info) for tag in node.side_outputs.values()}


def _operator(
    job: StatefulJob,
    node: OperatorNode,
    schema: KeySchema,
    inputs: Sequence[OutputType],
    outputs: Mapping[str, OutputType],
) -> HarnessOperator:
    ordered, declared = any(one.ordered for one in node.inputs), declared_key(node)
    streams: list[Node] = [node, *(SideOutputNode(node, tag) for tag in node.side_outputs.values())]
    return HarnessOperator(
        uid=node.uid,
        function=node.function.bound(*inputs) if isinstance(node.function, Typed) else node.function,
        output_type=outputs[""].element,
        input_type=inputs[0].columns if inputs else StructType([], []),
        key_type=StructType(list(schema.names), list(schema.kinds)),
        key_form=None if declared is None else declared.form,
        side_outputs={tag.tag_id: tag for tag in node.side_outputs.values()},
        has_event_time=any(has_event_time(one.parent) for one in node.inputs),
        two_inputs=not ordered and sum(not one.broadcast for one in node.inputs) > 1,
        ordered=ordered,
        changing=any(is_changing(one.parent) for one in node.inputs),
        emits_changes=any(is_changing(one) for one in streams),
        dead_letters=job.on_error == "dead_letter",
        parallelism=node.parallelism or job.parallelism,
        max_parallelism=job.max_parallelism,
    )
