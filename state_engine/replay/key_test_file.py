"""A file for pytest with what one key did: its inputs, the state it had, and the recorded results, to be edited.

The test runs without Spark. It compares outputs, states and timers of each micro-batch with what is recorded. Outputs
that no sink shows by key are those of today's function, with a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.vectorized_functions import VectorizedKeyedFunction
from state_engine.core.harness.key_run import KeyBatch, KeyElement
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.types.ddl import ddl_text
from state_engine.core.types.row import Row, RowKind
from state_engine.job.graph import declared_inputs, declared_key, type_in_code
from state_engine.job.typed_by_input import Typed
from state_engine.microbatch.subtask.subtask_spec import OutputSpec
from state_engine.replay.key_recording import KeyState, RecordedBatch
from state_engine.replay.python_literals import Literals
from state_engine.replay.stand_ins import StandIns

if TYPE_CHECKING:
    from state_engine.replay.key_debug import DebuggedBatch, DebuggedKey, KeyDebug

_ROOM = 100
"""Characters of a line, where it can be broken."""
_OF_BATCH = ("watermark_ms", "end_watermark_ms", "checkpoint_watermark_ms", "drain")
_OF_ELEMENT = ("timestamp", "watermark", "input", "kind", "late", "late_to")


def key_test_text(debugged: KeyDebug, *, replace: Sequence[str] = ()) -> str:
    """The text of the file.

    Args:
        replace: names of columns whose values get stand-ins, in inputs, keys, states and results.

    Raises:
        ConfigurationError: nothing happened to the key, or something cannot be written or replaced.
    """
    written = [_WrittenKey(debugged.job, one, StandIns(replace), Literals()) for one in debugged.operators]
    written = [one for one in written if one.batches]
    if not written:
        raise ConfigurationError(
            f"job '{debugged.job}': nothing came for the key in the micro-batches that were looked at, so there is no "
            "test to write: name others with --checkpoint, or --from and --to"
        )
    bodies = ["\n".join(one.lines()) for one in written]
    imports = {line for one in written for line in one.literals.imports}
    names = ", ".join(sorted({"KeyElement", "KeyHarness", *_taken(imports, "state_engine.testing")}))
    theirs = sorted(_taken(imports, "state_engine"))
    ours = [
        *([f"from state_engine import {', '.join(theirs)}"] if theirs else []),
        "from state_engine.registry import project_job",
        f"from state_engine.testing import {names}",
    ]
    rest = sorted(one for one in imports if not one.startswith("from state_engine"))
    head = [
        f'"""What a key of job \'{debugged.job}\' did, and what came out, as it is recorded.',
        "",
        "`statelake debug --write-test` wrote this. Write into it what should have come out, and correct the function.",
        '"""',
        "",
        *([*rest, ""] if rest else []),
        *ours,
    ]
    return "\n".join([*head, "\n", "\n\n\n".join(bodies), ""])


def _taken(imports: set[str], module: str) -> set[str]:
    start = f"from {module} import "
    return {line.removeprefix(start) for line in imports if line.startswith(start)}


@dataclass
class _WrittenKey:
    job: str
    debugged: DebuggedKey
    stand_ins: StandIns
    literals: Literals
    batches: list[DebuggedBatch] = field(init=False)

    def __post_init__(self) -> None:
        self.batches = [
            one for one in self.debugged.batches if one.recorded is not None and not _is_quiet(one)
        ]
        self._learn()

    def lines(self) -> Iterator[str]:
        name = re.sub(r"\W", "_", self.debugged.operator)
        yield f"def test_{name}_from_checkpoint_{self.batches[0].checkpoint_id}() -> None:"
        start: KeyState | None = None
        for batch in self.debugged.batches:
            start = batch.start or start
            for problem in batch.problems:
                said = self.stand_ins.replaced(" ".join(problem.split()))
                yield f"    # checkpoint {batch.checkpoint_id}: {said}"
            if any(batch is one for one in self.batches):
                if start is not None:
                    yield from self._harness_lines(batch, start)
                start = None
                yield from self._batch_lines(batch)

    def _learn(self) -> None:
        """Show the stand-ins all values that the columns may be in."""
        debugged, learn = self.debugged, self.stand_ins.learn
        learn(Row(**debugged.key))
        for batch in self.batches:
            learn(list(_states_of_key(batch.start).values()))
            for element in _elements_of(batch):
                learn(_named(element.value, _names_of_input(batch, element)))
            for output in _of(batch).outputs:
                for value in self._outputs(batch, output)[0]:
                    learn(_named(value, output.kind.columns.names))
        if self.batches:
            self.stand_ins.check()

    # -- lines -----------------------------------------------------------------------------------------------------

    def _batch_lines(self, batch: DebuggedBatch) -> Iterator[str]:
        yield ""
        yield f"    # checkpoint {batch.checkpoint_id}, {batch.created_at:%Y-%m-%d %H:%M:%S} UTC"
        yield from _call("outputs = key.process", self._arguments(batch))
        for output in _of(batch).outputs:
            values, known = self._outputs(batch, output)
            if output.name and not values:
                continue
            if not known:
                yield "    # no sink shows these by key: they are those of the function as it is now"
            left = f"key.side_output({output.name!r})" if output.name else "outputs"
            yield from self._comparison(left, values)
        held = {one.name: one.recorded for one in batch.states if one.is_recorded}
        yield from self._comparison("key.states()", held)
        yield from self._comparison("key.timers()", list(map(tuple, batch.recorded_timers)), replaced=False)

    def _harness_lines(self, batch: DebuggedBatch, start: KeyState) -> Iterator[str]:
        key, recorded = self.debugged.recorded_key, _of(batch)
        arguments = [f"project_job({self.job!r})", repr(self.debugged.operator), self._text(self._key)]
        if states := _states_of_key(start):
            arguments.append(f"states={self._text(states)}")
        if timers := sorted(map(tuple, start.first.get(TIMERS, {}).get(key.key, {}))):
            arguments.append(f"timers={timers!r}")
        if recorded.restored is not None and recorded.restored.states:
            if recorded.restored.raw_operator or recorded.restored.raw_keyed:
                raise ConfigurationError(
                    f"operator '{key.uid}': its raw state cannot be written to a file of tests"
                )
            own = {
                one.name: (one.scheme, one.type, list(map(self.stand_ins.replaced_json, one.elements)))
                for one in recorded.restored.states
            }
            arguments.append(f"subtask_states={own!r}")
        typed = isinstance(key.node.function, Typed | VectorizedKeyedFunction) or key.node.output_type is None
        if typed and declared_inputs(key.node, type_in_code) is None:
            types = [ddl_text(pa.struct(list(kind.arrow))) for kind in _inputs_of(self.batches)]
            arguments.append(f"input_types={types!r}")
        if declared_key(key.node, type_in_code) is None:
            arguments.append(f"key_type={key.schema.declared_text!r}")
        if recorded.operator.parallelism != 1:
            arguments.append(f"parallelism={recorded.operator.parallelism}")
        if recorded.operator.parameters:
            arguments.append(f"parameters={dict(recorded.operator.parameters)!r}")
        yield from _call("key = KeyHarness", arguments)

    def _arguments(self, batch: DebuggedBatch) -> list[str]:
        """Of ``KeyHarness.process``; all other settings have their defaults."""
        recorded = _of(batch).batch
        given = [self._list([self._element(one) for one in recorded.elements])]
        if recorded.broadcast:
            given.append(f"broadcast={self._list([self._element(one) for one in recorded.broadcast])}")
        given.append(f"checkpoint_id={recorded.checkpoint_id}")
        given.append(f"clock_ms={recorded.clock_ms}")
        given += self._others(recorded, KeyBatch(), _OF_BATCH)
        return [*given, *(["over_columns=True"] if batch.over_columns else [])]

    def _element(self, one: KeyElement) -> str:
        arguments = [self._text(one.value), *self._others(one, KeyElement(None), _OF_ELEMENT)]
        return f"KeyElement({', '.join(arguments)})"

    def _others(self, given: Any, default: Any, names: Sequence[str]) -> list[str]:
        values = {name: getattr(given, name) for name in names}
        return [f"{n}={self.literals.text(v)}" for n, v in values.items() if v != getattr(default, n)]

    def _comparison(self, left: str, right: Any, *, replaced: bool = True) -> Iterator[str]:
        value = self.stand_ins.replaced(right) if replaced else right
        if isinstance(value, list):
            text = self._list([self.literals.text(one, compared=True) for one in value])
        else:
            text = self.literals.text(value, compared=True)
        yield f"    assert {left} == {text}"

    def _list(self, texts: list[str]) -> str:
        line = f"[{', '.join(texts)}]"
        if len(line) <= _ROOM:
            return line
        inside = "".join(f"        {text},\n" for text in texts)
        return f"[\n{inside}    ]"

    # -- values ----------------------------------------------------------------------------------------------------

    @property
    def _key(self) -> Any:
        """As ``KeyHarness`` takes it: bare where it has one column."""
        parts = self.stand_ins.replaced(Row(**self.debugged.key)).as_dict()
        return parts if len(parts) > 1 else next(iter(parts.values()))

    def _text(self, value: Any) -> str:
        return self.literals.text(self.stand_ins.replaced(value))

    def _outputs(self, batch: DebuggedBatch, output: OutputSpec) -> tuple[list[Any], bool]:
        """The recorded elements of an output, and whether they are; else those of today's function."""
        compared = [one for one in batch.outputs if one.tag == output.name and one.sink and not one.problem]
        different = [one for one in compared if not one.same]
        if different and different[0].recorded is not None:
            return different[0].recorded, True
        gone = [value for step in batch.steps for tag, value in step.outputs if (tag or "") == output.name]
        has_kinds = _of(batch).operator.emits_changes
        return output.kind.in_a_stream(gone, has_kinds=has_kinds), bool(compared) and not different


def _call(left: str, arguments: Sequence[str]) -> Iterator[str]:
    line = f"    {left}({', '.join(arguments)})"
    if len(line) <= _ROOM and "\n" not in line:
        yield line
        return
    yield f"    {left}("
    for argument in arguments:
        yield "        " + argument.replace("\n", "\n    ") + ","
    yield "    )"


def _is_quiet(batch: DebuggedBatch) -> bool:
    """Whether nothing came for the key, and nothing differs."""
    return batch.same and all(step.is_quiet and step.element is None for step in batch.steps)


def _of(batch: DebuggedBatch) -> RecordedBatch:
    assert batch.recorded is not None
    return batch.recorded


def _elements_of(batch: DebuggedBatch) -> list[KeyElement]:
    return [*_of(batch).batch.elements, *_of(batch).batch.broadcast]


def _names_of_input(batch: DebuggedBatch, element: KeyElement) -> tuple[str, ...]:
    recorded = _of(batch)
    place = element.input - 1
    if any(element is one for one in recorded.batch.broadcast):
        place = len(recorded.inputs) - 1
    return tuple(recorded.inputs[place].names) if place < len(recorded.inputs) else ()


def _named(value: Any, names: Sequence[str]) -> Any:
    if type(value) is tuple and value and isinstance(value[0], RowKind):
        return _named(value[1], names)
    if type(value) is tuple and len(value) == len(names):
        return Row(*names)(*value)
    bare = not isinstance(value, tuple | dict) and not hasattr(value, "__dataclass_fields__")
    return Row(*names)(value) if bare and len(names) == 1 else value


def _inputs_of(batches: Sequence[DebuggedBatch]) -> list[Any]:
    """The columns of the inputs, of a micro-batch that had rows."""
    return next((_of(one).inputs for one in batches if _of(one).inputs), [])


def _states_of_key(start: KeyState | None) -> dict[str, Any]:
    first = {} if start is None else start.first
    return {n: item for n, entries in sorted(first.items()) if n != TIMERS for item in entries.values()}
