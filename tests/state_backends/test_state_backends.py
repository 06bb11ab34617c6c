"""One contract for every state backend: all states, with and without time to live, restored between every two steps."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.errors import StateAccessError, StateMigrationError
from state_engine.core.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    SortedMapStateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.state.state_table import KeyContext
from state_engine.core.state.ttl import Stamped, StateTtlConfig
from state_engine.state_backends.state_backend import SnapshotTask, StateBackend
from tests.core.state.models import (
    CONFIGS,
    KINDS,
    StateModel,
    check_random_operations,
    check_stored,
    ops_of,
    steps_of,
)
from tests.core.state.steps import Steps, ttl, with_ttl
from tests.state_backends.backends import BACKENDS, keyed, on

EVERY_BACKEND = pytest.mark.parametrize("backend", [make() for make in BACKENDS.values()], ids=list(BACKENDS))


@EVERY_BACKEND
@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=10)
@given(data=st.data(), always=st.booleans())
def test_random_operations_equal_the_model(
    backend: StateBackend, config: StateTtlConfig | None, kind: str, data: st.DataObject, always: bool
) -> None:
    steps = steps_of(kind, config, restoring=always, opener=on(backend))
    check_random_operations(kind, config, steps, data.draw(ops_of(kind)))


@EVERY_BACKEND
@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=10)
@given(data=st.data())
def test_a_refused_element_changes_nothing(backend: StateBackend, kind: str, data: st.DataObject) -> None:
    """Groups of operations, of which some are rolled back."""
    steps = Steps(KINDS[kind].make(), restoring=False, opener=on(backend))
    models = {0: StateModel(KINDS[kind], None), 1: StateModel(KINDS[kind], None)}
    ops = data.draw(ops_of(kind))
    for start in range(0, len(ops), 3):
        group, refused = ops[start : start + 3], data.draw(st.booleans())
        before = {key: list(model.entries) for key, model in models.items()}
        steps.open()
        undo: list[Callable[[], Any]] = []
        steps.context.undo = undo
        for op, key, _, _ in group:
            handle = steps.open()[0]
            steps.context.key = key
            assert KINDS[kind].apply(handle, op) == models[key].apply(op, 0), (op, key)
        if refused:
            steps.context.roll_back()
            for key, entries in before.items():
                models[key].entries = entries
        undo.clear()
        steps.context.undo = None
        for hook in steps.context.on_element:
            hook()
        if data.draw(st.booleans()):
            steps.checkpoint()
    check_stored(kind, steps, models)


@EVERY_BACKEND
def test_a_refused_element_leaves_the_order_of_a_map(backend: StateBackend) -> None:
    """An entry that it removes, puts again or adds; random elements seldom do that to a map of several entries."""
    steps = Steps(MapStateDescriptor("s", str, int), restoring=False, opener=on(backend))
    steps.stored = {"s": {1: {"x": 1, "y": 2}}}
    steps.open()
    steps.context.undo = []
    steps.at(0, lambda s: (s.remove("x"), s.put("z", 9), s.put("x", 7)))
    steps.context.roll_back()
    steps.context.undo = None
    assert steps.at(0, lambda s: list(s.items())) == [("x", 1), ("y", 2)]
    assert list(steps.physical()) == ["x", "y"]


DESCRIPTORS: list[Callable[[], Any]] = [
    lambda: ValueStateDescriptor("value", int),
    lambda: ListStateDescriptor("list", int),
    lambda: MapStateDescriptor("map", str, int),
    lambda: SortedMapStateDescriptor("sorted", int, int),
]
STORED: dict[str, Any] = {
    "value": {"a": 1},
    "list": {"a": [1, 2]},
    "map": {"a": {"x": 1, "y": 2}},
    "sorted": {"a": {2: 2, -1: 1}},
}


class Four:
    """A value, a list, a map and a sorted map on one backend."""

    def __init__(self, backend: StateBackend) -> None:
        self.context = KeyContext()
        self.keyed = keyed(backend, self.context, lambda d: {k: _copy(v) for k, v in STORED[d.name].items()})
        self.value, self.list, self.map, self.sorted = (
            self.keyed.store.handle(d, d.kind) for d in (make() for make in DESCRIPTORS)
        )
        self.context.key = "a"

    def write(self, n: int) -> None:
        self.value.update(n)
        self.list.add(n)
        self.map.put("x", n)
        self.map.remove("y")
        self.map.put("z", n)
        self.sorted.put(-n, n)

    def seen(self) -> tuple[Any, ...]:
        return self.value.value(), self.list.get(), list(self.map.items()), list(self.sorted.items())


def _copy(stored: Any) -> Any:
    return stored.copy() if isinstance(stored, list | dict) else stored


def rows(task: SnapshotTask) -> list[tuple[Any, ...]]:
    return [(d.name, tuple(c)) for d, changes in task.result() for c in changes]


FIRST = [
    ("value", ("a", "put", 10)),
    ("list", ("a", "append", [10])),
    ("map", ("a", "delete", ("y", None))),
    ("map", ("a", "put", ("x", 10))),
    ("map", ("a", "put", ("z", 10))),
    ("sorted", ("a", "put", (-10, 10))),
]


@EVERY_BACKEND
def test_a_snapshot_stays_as_it_was_while_state_changes(backend: StateBackend) -> None:
    four = Four(backend)
    with four.keyed:
        four.write(10)
        task = four.keyed.snapshot(7)
        four.write(20)
        four.list.clear()
        four.map.clear()
        four.sorted.clear()
        four.value.clear()
        four.keyed.compact()
        assert rows(task) == FIRST
        assert task.checkpoint_id == 7
        assert four.seen() == (None, [], [], [])
        assert rows(four.keyed.snapshot(8)) == [
            ("value", ("a", "delete", None)),
            *[(name, ("a", "clear", None)) for name in ("list", "map", "sorted")],
        ]


@EVERY_BACKEND
def test_what_was_not_touched_is_no_change(backend: StateBackend) -> None:
    four = Four(backend)
    with four.keyed:
        assert four.seen() == (1, [1, 2], [("x", 1), ("y", 2)], [(-1, 1), (2, 2)])
        assert rows(four.keyed.snapshot(1)) == []


@EVERY_BACKEND
def test_changes_since_loading_also_after_another_snapshot(backend: StateBackend) -> None:
    four = Four(backend)
    with four.keyed:
        four.write(5)
        four.keyed.snapshot(1).result()
        four.value.update(10)
        assert rows(four.keyed.snapshot(2))[0] == ("value", ("a", "put", 10))
        assert len(rows(four.keyed.snapshot(2))) == len(FIRST)


@EVERY_BACKEND
def test_the_asynchronous_part_may_run_in_another_thread(backend: StateBackend) -> None:
    four = Four(backend)
    begun, go = threading.Event(), threading.Event()

    def write(parts: Any) -> list[Any]:
        begun.set()
        assert go.wait(60)
        return [(d.name, tuple(c)) for d, changes in parts for c in changes]

    with four.keyed, ThreadPoolExecutor(1) as pool:
        four.write(10)
        task = four.keyed.snapshot(1, write)
        assert not task.done()
        running = pool.submit(task.run)
        assert begun.wait(60)
        four.write(20)
        four.list.clear()
        go.set()
        running.result()
        assert task.done()
        assert task.result() == FIRST


@EVERY_BACKEND
def test_a_cancelled_snapshot_releases_what_it_froze(backend: StateBackend) -> None:
    four = Four(backend)
    with four.keyed:
        four.write(10)
        task = four.keyed.snapshot(3, lambda parts: pytest.fail("written"))
        assert task.cancel()
        assert (task.done(), task.cancelled(), task._parts) == (True, True, None)
        with pytest.raises(CancelledError, match="checkpoint 3 was cancelled"):
            task.result()
        assert rows(four.keyed.snapshot(4)) == FIRST


@EVERY_BACKEND
def test_a_purely_synchronous_snapshot_is_done(backend: StateBackend) -> None:
    four = Four(backend)
    with four.keyed:
        four.write(10)
        task = four.keyed.snapshot(1)
        assert task.done() is not four.keyed.is_asynchronous()
        assert rows(task) == FIRST
        assert task.done()
        assert not task.cancel()
        assert rows(task) == FIRST


@EVERY_BACKEND
def test_an_error_of_writing_is_the_results(backend: StateBackend) -> None:
    four = Four(backend)

    def fail(parts: Any) -> None:
        raise OSError("disk full")

    with four.keyed:
        task = four.keyed.snapshot(1, fail)
        task.run()
        for _ in range(2):
            with pytest.raises(OSError, match="disk full"):
                task.result()
        assert task.done()
        assert not task.cancelled()


@EVERY_BACKEND
def test_closing_cancels_what_has_not_run(backend: StateBackend) -> None:
    four = Four(backend)
    task = four.keyed.snapshot(1, list)
    four.keyed.close()
    four.keyed.close()
    assert task.cancelled()


@EVERY_BACKEND
def test_a_backend_is_configuration_that_travels(backend: StateBackend) -> None:
    four = Four(pickle.loads(pickle.dumps(backend)))
    with four.keyed:
        four.write(10)
        assert rows(four.keyed.snapshot(1)) == FIRST


@EVERY_BACKEND
def test_threads_share_a_backend_and_no_state(backend: StateBackend) -> None:
    def work(n: int) -> list[Any]:
        four = Four(backend)
        with four.keyed:
            for _ in range(20):
                four.write(n)
            return rows(four.keyed.snapshot(n))

    with ThreadPoolExecutor(4) as pool:
        changes_of_workers = list(pool.map(work, range(2, 10)))
    for n, changes in enumerate(changes_of_workers, 2):
        assert changes[0] == ("value", ("a", "put", n))
        assert changes[1] == ("list", ("a", "append", [n] * 20))


@EVERY_BACKEND
def test_state_may_be_loaded_in_parts(backend: StateBackend) -> None:
    parts: dict[str, list[tuple[Any, Any]]] = {
        "list": [("a", [1]), ("b", [9]), ("a", [2, 3])],
        "map": [("a", {"x": 1}), ("a", {"y": 2, "x": 3})],
    }
    context = KeyContext()
    with keyed(backend, context, lambda d: iter(parts[d.name])) as keyed_backend:  # type: ignore[arg-type, return-value]
        elements = keyed_backend.store.handle(ListStateDescriptor("list", int), "list")
        entries = keyed_backend.store.handle(MapStateDescriptor("map", str, int), "map")
        context.key = "a"
        assert (elements.get(), list(entries.items())) == ([1, 2, 3], [("x", 3), ("y", 2)])
        elements.add(4)
        assert [tuple(c) for _, changes in keyed_backend.snapshot(1).result() for c in changes] == [
            ("a", "append", [4])
        ]


@EVERY_BACKEND
def test_errors_of_loading_and_of_use_are_the_callers(backend: StateBackend) -> None:
    def refuse(descriptor: Any) -> Any:
        raise StateMigrationError("stored as text")

    with (
        keyed(backend, KeyContext(), refuse) as keyed_backend,
        pytest.raises(StateMigrationError, match="stored as text"),
    ):
        keyed_backend.store.handle(ValueStateDescriptor("s", int), "value")
    four = Four(backend)
    with four.keyed:
        four.context.key = []
        calls: list[Callable[[], Any]] = [
            four.value.value, lambda: four.value.update(1), four.list.get, lambda: four.list.add(1),
            lambda: four.map.get("x"), lambda: four.map.put("x", 1), four.sorted.first_entry, four.map.clear,
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(StateAccessError, match="was used without a current key"):
                call()


@EVERY_BACKEND
def test_turning_ttl_on_and_off(backend: StateBackend) -> None:
    on_ttl = Steps(with_ttl(ValueStateDescriptor("s", int), ttl()), opener=on(backend))
    on_ttl.stored = {"s": {1: Stamped(5, None)}}
    assert on_ttl.at(10**6, lambda s: s.value()) == 5
    on_ttl.at(10**6, lambda s: s.update(6))
    assert on_ttl.physical() == Stamped(6, 10**6)
    off = Steps(ValueStateDescriptor("s", int), opener=on(backend))
    off.stored = {"s": {1: 5}}
    assert off.at(10**15, lambda s: s.value()) == 5


@EVERY_BACKEND
def test_incremental_clean_up(backend: StateBackend) -> None:
    config = ttl(build=lambda b: b.disable_cleanup_in_background().cleanup_incrementally(2, False))
    descriptors = [
        with_ttl(ValueStateDescriptor("value", int), config),
        with_ttl(ListStateDescriptor("list", int), config),
        with_ttl(MapStateDescriptor("map", str, int), config),
    ]
    steps = Steps(*descriptors, opener=on(backend))
    for key in range(5):
        steps.at(0, lambda v, e, m: (v.update(1), e.add(1), m.put("x", 1)), key=key)
        steps.at(60, lambda v, e, m: (e.add(2), m.put("y", 2)), key=key)
    steps.restoring = False
    steps.at(120, lambda v, e, m: (v.value(), e.get(), m.get("x")), key="another")
    stored = steps.checkpoint()
    assert stored["value"] == dict.fromkeys([2, 3, 4], Stamped(1, 0))
    both, late = [Stamped(1, 0), Stamped(2, 60)], [Stamped(2, 60)]
    assert list(stored["list"].values()) in ([late] * 2 + [both] * 3, [both] * 3 + [late] * 2)
    assert sum(len(entries) for entries in stored["map"].values()) == 8
