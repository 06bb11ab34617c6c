"""The examples of Flink's documents, restored after every element, at parallelism 1 and 4; hooks and refusals."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from state_engine.core.errors import ConfigurationError, StateAccessError, ValueTypeError
from state_engine.core.functions.checkpointed import CheckpointedFunction, CheckpointListener
from state_engine.core.functions.every_function import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    SinkFunction,
)
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.descriptors import ListStateDescriptor
from state_engine.operators.rolling import MapWithState
from state_engine.testing import KeyedHarness, OperatorHarness
from tests.support.flink_examples import (
    AVERAGE,
    AVERAGE_OUTPUTS,
    COUNTS,
    COUNTS_OUTPUTS,
    FIRST_ENTRY,
    FIRST_ENTRY_OUTPUTS,
    Buffering,
    CounterSource,
    CountWindowAverage,
    CountWindowFirstEntry,
    running_count,
)

parallelisms = pytest.mark.parametrize("parallelism", [1, 4])


def restoring(function: Any, elements: list[Any], *, parallelism: int, **options: Any) -> list[Any]:
    """The outputs of one batch per element, each in a new harness."""
    harness = OperatorHarness(function, parallelism=parallelism, **options)
    outputs = []
    for element in elements:
        outputs += harness.process([element])
        harness = OperatorHarness.restored(function, harness.snapshot(), parallelism=parallelism, **options)
    return outputs


@parallelisms
@pytest.mark.parametrize(
    ("function", "elements", "expected"),
    [
        (CountWindowAverage(), AVERAGE, AVERAGE_OUTPUTS),
        (CountWindowFirstEntry(), FIRST_ENTRY, FIRST_ENTRY_OUTPUTS),
        (MapWithState(running_count, int), COUNTS, COUNTS_OUTPUTS),
    ],
)
def test_the_keyed_examples(function: Any, elements: Any, expected: Any, parallelism: int) -> None:
    by: dict[str, Any] = {"key_by": lambda pair: pair[0]}
    assert restoring(function, elements, parallelism=parallelism, **by) == expected
    assert KeyedHarness(function, parallelism=parallelism, **by).process(elements) == expected


class BufferingSink(SinkFunction, Buffering):
    """Sends groups of ``threshold`` elements to ``sent``."""

    sent: ClassVar[list[list[Any]]] = []

    def __init__(self, threshold: int) -> None:
        super().__init__(threshold, tuple[str, int])

    def invoke(self, value: Any, context: SinkFunction.Context) -> None:
        self.sent.extend(self.groups(value))


@pytest.fixture
def sent() -> list[list[Any]]:
    BufferingSink.sent = []
    return BufferingSink.sent


@parallelisms
def test_buffering_sink_sends_whole_groups_across_restarts(parallelism: int, sent: list[Any]) -> None:
    elements = [(f"e{n}", n) for n in range(26)]
    assert restoring(BufferingSink(3), elements, parallelism=parallelism) == []
    assert {len(group) for group in sent} == {3}
    for subtask in range(parallelism):
        mine = elements[subtask::parallelism]
        assert [g for g in sent if g[0] in mine] == [mine[i : i + 3] for i in range(0, len(mine) // 3 * 3, 3)]


def test_buffering_sink_keeps_every_element_across_rescales(sent: list[Any]) -> None:
    elements = [(f"e{n}", n) for n in range(59)]
    harness = OperatorHarness(BufferingSink(4), parallelism=2)
    for start, parallelism in zip(range(0, 60, 5), [3, 1, 4, 2, 5, 1, 2, 2, 3, 4, 1, 2], strict=True):
        harness.process(elements[start : start + 5])
        harness = OperatorHarness.restored(BufferingSink(4), harness.snapshot(), parallelism=parallelism)
    harness.process([])
    left = [tuple(element) for part in harness.state("buffered_elements") for element in part]
    assert {len(group) for group in sent} == {4}
    assert left
    assert sorted([element for group in sent for element in group] + left) == sorted(elements)


@parallelisms
@pytest.mark.parametrize("size", [1, 3])
def test_counter_source_has_no_gap_and_no_repeat(parallelism: int, size: int) -> None:
    harness = OperatorHarness(CounterSource(), parallelism=parallelism)
    seen: list[list[int]] = [[] for _ in range(parallelism)]
    for _ in range(5):
        for subtask, values in enumerate(harness.collect(size)):
            seen[subtask] += values
        harness = OperatorHarness.restored(CounterSource(), harness.snapshot(), parallelism=parallelism)
    assert seen == [list(range(5 * size))] * parallelism


def test_a_source_that_fails_has_collected_nothing() -> None:
    harness = OperatorHarness(CounterSource(fail_at=5))
    assert harness.collect(3) == [[0, 1, 2]]
    with pytest.raises(RuntimeError, match="on purpose"):
        harness.collect(3)
    assert harness.collect(1) == [[3]]
    with pytest.raises(ConfigurationError, match="is not a SourceFunction: use process"):
        OperatorHarness(MapFunction.of(str, what="map")).collect(1)


def test_hooks_are_called_in_order_on_every_subtask() -> None:
    calls: list[tuple[int, str]] = []

    class RecordsHooks(ProcessFunction, CheckpointedFunction, CheckpointListener):
        subtask = -1

        def initialize_state(self, context: Any) -> None:
            calls.append((-1, f"initialize {context.is_restored()} {context.get_restored_checkpoint_id()}"))

        def open(self, runtime_context: RuntimeContext) -> None:
            self.subtask = runtime_context.get_index_of_this_subtask()
            calls.append((self.subtask, "open"))

        def process_element(self, value: Any, ctx: ProcessFunction.Context) -> None:
            calls.append((self.subtask, f"element {value}"))

        def snapshot_state(self, context: Any) -> None:
            calls.append((self.subtask, f"snapshot {context.get_checkpoint_id()}"))

        def close(self) -> None:
            calls.append((self.subtask, "close"))

        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            calls.append((self.subtask, f"complete {checkpoint_id}"))

    harness = OperatorHarness(RecordsHooks(), parallelism=2)
    harness.process(["a"])
    assert calls == [
        (-1, "initialize False None"), (0, "open"), (0, "element a"), (0, "snapshot 1"), (0, "close"),
        (-1, "initialize False None"), (1, "open"), (1, "snapshot 1"), (1, "close"),
        (0, "complete 1"), (1, "complete 1"),
    ]  # fmt: skip
    calls.clear()
    harness.process(["b"])
    assert calls[:3] == [(-1, "initialize True 1"), (0, "open"), (0, "snapshot 2")]
    assert (1, "element b") in calls


def test_map_flat_map_and_filter_run_with_and_without_keys() -> None:
    functions: list[tuple[Any, list[Any]]] = [
        (MapFunction.of(lambda v: v * 2, what="map"), [2, 4, 6]),
        (FlatMapFunction.of(lambda v: [v] * (v - 1), what="flat_map"), [2, 3, 3]),
        (FilterFunction.of(lambda v: v % 2, what="filter"), [1, 3]),
    ]
    for function, expected in functions:
        assert OperatorHarness(function, parallelism=2).process([1, 2, 3]) == expected
        assert KeyedHarness(function, key_by=lambda v: v, parallelism=2).process([1, 2, 3]) == expected
        assert (
            OperatorHarness(function, partition_by=lambda v: v % 3, parallelism=3).process([1, 2, 3])
            == expected
        )


def test_what_a_flat_map_returns_is_reported_by_its_name() -> None:
    with pytest.raises(ValueTypeError, match="flat_map returned 'ab': yield the outputs"):
        OperatorHarness(FlatMapFunction.of(lambda v: v, what="flat_map")).process(["ab"])


def test_keyed_state_needs_a_keyed_stream() -> None:
    with pytest.raises(StateAccessError, match="is not on a keyed stream, so it has no keyed state"):
        OperatorHarness(CountWindowAverage()).process([(1, 1)])
    with pytest.raises(ConfigurationError, match=r"is a KeyedProcessFunction.*call key_by first"):
        OperatorHarness(KeyedProcessFunction()).process([1])
    with pytest.raises(ConfigurationError, match="a KeyedHarness needs key_by"):
        KeyedHarness(CountWindowAverage())


def test_a_failing_subtask_leaves_the_state_of_all_of_them_as_it_was() -> None:
    function = MapWithState(lambda v, s: (1 // v[1], (s or 0) + 1), int)
    harness = KeyedHarness(function, key_by=lambda v: v[0], parallelism=4)
    harness.process([(key, 1) for key in "abcdefgh"])
    for key in "abcdefgh":
        with pytest.raises(ZeroDivisionError):
            harness.process([(other, 0 if other == key else 1) for other in "abcdefgh"])
    assert harness.state("state") == dict.fromkeys("abcdefgh", 1)


def test_refusals_of_all_subtasks_know_the_position_in_the_batch() -> None:
    function = MapFunction.of(lambda v: 1 // v, what="map")
    harness = OperatorHarness(function, parallelism=3, on_error="dead_letter")
    assert harness.process([1, 0, 1, 1, 1, 0, 0]) == [1, 1, 1, 1]
    assert sorted(r.index for r in harness.refused if r.index is not None) == [1, 5, 6]


class Union(MapFunction, CheckpointedFunction):
    """Keeps what it was given in a union list; gives its length."""

    def initialize_state(self, context: Any) -> None:
        self.stored = context.get_operator_state_store().get_union_list_state(
            ListStateDescriptor("seen", int)
        )

    def map(self, value: int) -> int:
        self.stored.add(value)
        return len(self.stored.get())

    def snapshot_state(self, context: Any) -> None:
        pass


def test_a_restore_deals_union_state_to_everyone_and_a_batch_boundary_does_not() -> None:
    harness = OperatorHarness(Union(), parallelism=2)
    assert [harness.process([1, 2]), harness.process([3, 4])] == [[1, 1], [2, 2]]
    harness = OperatorHarness.restored(Union(), harness.snapshot(), parallelism=2)
    assert [harness.process([5, 6]), harness.process([7, 8])] == [[5, 5], [6, 6]]
