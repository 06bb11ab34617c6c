"""The hooks of a function in one micro-batch: the order of calls, their arguments, and the snapshot."""

from __future__ import annotations

from typing import Any

import pytest

from state_engine.core.errors import ConfigurationError, StateAccessError, StateMigrationError, ValueTypeError
from state_engine.core.functions.checkpointed import CheckpointedFunction, ListCheckpointed
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.operator.operator_lifecycle import OperatorLifecycle, Resumption
from state_engine.core.operator_state.operator_snapshot import StateElements, SubtaskSnapshot
from state_engine.core.state.descriptors import ListStateDescriptor, ValueStateDescriptor
from state_engine.core.state.keyed_state import KeyedStateStore
from state_engine.core.state.state_table import KeyContext


def lifecycle(
    function: Any,
    restored: SubtaskSnapshot | None = None,
    *,
    restored_id: int | None = None,
    checkpoint_id: int = 1,
    keyed: bool = False,
) -> OperatorLifecycle:
    context = KeyContext()
    return OperatorLifecycle(
        function,
        info=TaskInfo("sink", 1, 2, 8),
        resumption=Resumption(checkpoint_id, restored, restored_id),
        clock_ms=5,
        keyed_store=KeyedStateStore("sink", context, lambda descriptor: {}) if keyed else None,
        context=context,
    )


class Recorder(CheckpointedFunction):
    """Records its calls and the values of the contexts."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def initialize_state(self, context: Any) -> None:
        self.calls.append(("initialize", context.is_restored(), context.get_restored_checkpoint_id()))
        self.raw = context.raw_operator_state.read(), list(context.raw_keyed_state)
        self.count = context.get_operator_state_store().get_list_state(ListStateDescriptor("count", int))

    def open(self, runtime_context: Any) -> None:
        self.calls.append(("open", runtime_context.get_index_of_this_subtask()))

    def snapshot_state(self, context: Any) -> None:
        self.calls.append(("snapshot", context.get_checkpoint_id(), context.get_checkpoint_timestamp()))
        self.count.update([sum(self.count.get()) + 1])

    def close(self) -> None:
        self.calls.append("close")


def test_the_hooks_are_called_in_order() -> None:
    function = Recorder()
    run = lifecycle(function, checkpoint_id=7)
    run.initialize()
    run.open()
    left = run.snapshot()
    run.close()
    assert function.calls == [("initialize", False, None), ("open", 1), ("snapshot", 7, 5), "close"]
    assert left == SubtaskSnapshot((StateElements("count", "even_split", "bigint", ("1",)),))


def test_every_start_but_the_first_is_restored() -> None:
    left: SubtaskSnapshot | None = None
    for number in (1, 2, 3):
        function = Recorder()
        run = lifecycle(function, left, restored_id=number - 1 or None, checkpoint_id=number)
        run.initialize()
        left = run.snapshot()
        assert function.calls[0] == ("initialize", number > 1, number - 1 or None)
        assert left.states[0].elements == (str(number),)


def test_an_operator_that_no_checkpoint_knows_is_not_restored() -> None:
    """The job has checkpoints already, but the operator is new."""
    function = Recorder()
    lifecycle(function, None, restored_id=4).initialize()
    assert function.calls == [("initialize", False, None)]


def test_an_operator_that_left_nothing_is_restored_all_the_same() -> None:
    function = Recorder()
    lifecycle(function, SubtaskSnapshot(), restored_id=4).initialize()
    assert function.calls == [("initialize", True, 4)]


def test_a_function_without_hooks_keeps_what_was_restored() -> None:
    restored = SubtaskSnapshot((StateElements("old", "union", "x", ("1",)),), b"raw", ((5, b"group"),))
    for function in (object(), Plain()):
        run = lifecycle(function, restored)
        run.initialize()
        run.open()
        assert run.snapshot() == restored
        run.close()


class Plain:
    opened = False

    def open(self, runtime_context: Any) -> None:
        self.opened = True


def test_a_plain_function_is_opened() -> None:
    function = Plain()
    lifecycle(function).open()
    assert function.opened


# -- raw state ---------------------------------------------------------------------------------------------------------


class Raw(Recorder):
    def snapshot_state(self, context: Any) -> None:
        super().snapshot_state(context)
        self.streams = context.raw_operator_state, context.raw_keyed_state
        context.raw_operator_state.write(self.raw[0] + b"!")
        for group in context.raw_keyed_state.get_key_group_list():
            if group % 2:
                context.raw_keyed_state.start_key_group(group)
                context.raw_keyed_state.write(bytes([group]))


def test_raw_state_comes_back_as_it_was_written() -> None:
    first = Raw()
    run = lifecycle(first, keyed=True)
    run.initialize()
    assert first.raw == (b"", [])
    left = run.snapshot()
    assert (left.raw_operator, left.raw_keyed) == (b"!", ((5, b"\x05"), (7, b"\x07")))

    second = Raw()
    lifecycle(second, left, keyed=True).initialize()
    assert second.raw == (b"!", [(5, b"\x05"), (7, b"\x07")])


def test_raw_state_is_written_anew_every_time() -> None:
    run = lifecycle(Recorder(), SubtaskSnapshot(raw_operator=b"old", raw_keyed=((5, b"old"),)), keyed=True)
    run.initialize()
    left = run.snapshot()
    assert (left.raw_operator, left.raw_keyed) == (b"", ())


def test_raw_streams_cannot_be_kept() -> None:
    function = Raw()
    run = lifecycle(function, keyed=True)
    run.initialize()
    run.snapshot()
    with pytest.raises(StateAccessError, match="inside snapshot_state only"):
        function.streams[0].write(b"x")


def test_there_is_no_raw_keyed_state_outside_of_keyed_streams() -> None:
    run = lifecycle(Raw())
    run.initialize()
    with pytest.raises(StateAccessError, match="not on a keyed stream"):
        run.snapshot()


# -- keyed state in initialize_state -----------------------------------------------------------------------------------


class Keyed(CheckpointedFunction):
    def initialize_state(self, context: Any) -> None:
        self.state = context.get_keyed_state_store().get_state(ValueStateDescriptor("v", int))

    def snapshot_state(self, context: Any) -> None:
        pass


def test_keyed_state_can_be_asked_for_and_not_used_yet() -> None:
    function = Keyed()
    lifecycle(function, keyed=True).initialize()
    with pytest.raises(StateAccessError, match="without a current key"):
        function.state.value()


def test_there_is_no_keyed_state_outside_of_keyed_streams() -> None:
    with pytest.raises(StateAccessError, match="operator 'sink' is not on a keyed stream"):
        lifecycle(Keyed()).initialize()


# -- ListCheckpointed --------------------------------------------------------------------------------------------------


class Items(ListCheckpointed):
    restored: list[Any] | None = None

    def __init__(self, items: Any = None) -> None:
        self.items: Any = items

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[Any]:
        self.snapshot_of = checkpoint_id, timestamp
        return self.items

    def restore_state(self, state: list[Any]) -> None:
        self.restored = state


def after(items: Any, function: type[Items] = Items) -> SubtaskSnapshot:
    run = lifecycle(function(items))
    run.initialize()
    return run.snapshot()


def test_a_list_comes_back_with_its_types() -> None:
    items = [1, 1.0, "a", b"b", (1, None), {"k": [2]}]
    first = Items(items)
    run = lifecycle(first, checkpoint_id=9)
    run.initialize()
    left = run.snapshot()
    assert first.restored is None
    assert first.snapshot_of == (9, 5)
    assert [(s.name, s.scheme, s.type) for s in left.states] == [("list_checkpointed", "even_split", "plain")]

    second = Items([])
    lifecycle(second, left).initialize()
    assert second.restored == items
    assert [type(v) for v in second.restored or []] == [type(v) for v in items]


def test_restore_state_is_called_with_an_empty_list_where_nothing_was_left() -> None:
    for left in (after([]), after(None), after(()), SubtaskSnapshot()):
        function = Items([])
        lifecycle(function, left).initialize()
        assert function.restored == []


def test_the_returned_list_replaces_the_old_one() -> None:
    run = lifecycle(Items([3]), after([1, 2]))
    run.initialize()
    assert run.snapshot().states[0].elements == ("3",)


@pytest.mark.parametrize("wrong", [5, "text", {"a": 1}, iter([1])])
def test_anything_but_a_list_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueTypeError, match=r"operator 'sink': snapshot_state of Items returned .*return a"):
        after(wrong)


def test_an_element_that_is_not_plain_names_the_way_out() -> None:
    with pytest.raises(ValueTypeError, match="state_type"):
        after([object()])


class Ints(Items):
    state_type = int


def test_elements_may_have_a_declared_type() -> None:
    assert after([1], Ints).states[0].type == "bigint"
    with pytest.raises(ValueTypeError):
        after(["a"], Ints)
    with pytest.raises(StateMigrationError, match="is stored as even_split of plain"):
        lifecycle(Ints([1]), after([1])).initialize()


class Both(CheckpointedFunction, Items):  # type: ignore[misc]
    pass


def test_a_function_is_one_or_the_other() -> None:
    with pytest.raises(ConfigurationError, match="operator 'sink': Both is both"):
        lifecycle(Both()).initialize()
