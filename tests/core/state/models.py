"""Every state as plain Python: a list of (entry key, value, time), and what each operation does to it.

Written from the rules of semantics alone, one entry a time, so that it shares nothing with the handles.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from state_engine.core.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.state.ttl import Stamped, StateTtlConfig
from tests.core.state.aggregates import Collect
from tests.core.state.steps import Steps, ttl, with_ttl

Op = tuple[Any, ...]


class Texts(Collect):
    """Collects numbers in a list, in place; gives them as text."""

    def get_result(self, accumulator: list[int]) -> str:  # type: ignore[override]
        return ",".join(map(str, accumulator))


def _folding() -> StateDescriptor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return FoldingStateDescriptor("s", "", lambda text, n: f"{text}{n};", str)


@dataclass(frozen=True)
class ModelledKind:
    """A state, the operations on it, and how adding combines, and merging where it is not the same."""

    make: Callable[[], StateDescriptor]
    ops: st.SearchStrategy[Op]
    combine: Callable[[Any, Any], Any] | None = None
    shown: Callable[[Any], Any] = lambda stored: stored
    merged: Callable[[Any, Any], Any] | None = None

    def apply(self, state: Any, op: Op) -> Any:
        """Apply an operation to a handle; its result, iterators as lists."""
        value = getattr(state, op[0])(*op[1:])
        return list(value) if hasattr(value, "__next__") else value


_N = st.integers(-3, 3)
_KEYS = st.integers(-2, 2)
_ADDING = st.one_of(st.just(("get",)), st.tuples(st.just("add"), _N), st.just(("clear",)))
_LISTS = st.lists(_N, max_size=3)


def _merging(internal: st.SearchStrategy[Any]) -> st.SearchStrategy[Op]:
    return st.one_of(st.just(("get_internal",)), st.tuples(st.just("merge"), st.none() | internal))


_MAPPING = st.one_of(
    st.tuples(st.just("put"), _KEYS, st.none() | _N),
    st.tuples(st.just("put"), _KEYS, _N),
    st.tuples(st.sampled_from(["remove", "get", "contains"]), _KEYS),
    st.tuples(st.just("put_all"), st.dictionaries(_KEYS, _N, max_size=3)),
    st.tuples(st.sampled_from(["items", "keys", "values", "is_empty", "clear"])),
)
_PARTS = st.one_of(
    st.tuples(st.sampled_from(["first_entry", "last_entry"])),
    st.tuples(st.sampled_from(["head_items", "tail_items"]), _KEYS),
    st.tuples(st.just("sub_items"), _KEYS, _KEYS),
)
_LISTING = st.one_of(
    st.just(("get",)),
    st.tuples(st.just("add"), _N),
    st.tuples(st.sampled_from(["add_all", "update"]), _LISTS),
    st.just(("clear",)),
)
_VALUES = st.one_of(st.just(("value",)), st.tuples(st.just("update"), st.none() | _N), st.just(("clear",)))

KINDS: dict[str, ModelledKind] = {
    "value": ModelledKind(lambda: ValueStateDescriptor("s", int), _VALUES),
    "list": ModelledKind(lambda: ListStateDescriptor("s", int), _LISTING | _merging(_LISTS)),
    "map": ModelledKind(lambda: MapStateDescriptor("s", int, int), _MAPPING),
    "sorted_map": ModelledKind(lambda: SortedMapStateDescriptor("s", int, int), _MAPPING | _PARTS),
    "reducing": ModelledKind(
        lambda: ReducingStateDescriptor("s", lambda a, b: a + b, int),
        _ADDING | _merging(_N),
        lambda was, n: n if was is None else was + n,
    ),
    "aggregating": ModelledKind(
        lambda: AggregatingStateDescriptor("s", Texts(), list[int]),
        _ADDING | _merging(_LISTS),
        lambda was, n: [*(was or []), n],
        shown=lambda stored: ",".join(map(str, stored)),
        merged=lambda was, other: [*(was or []), *other],
    ),
    "folding": ModelledKind(_folding, _ADDING, lambda was, n: f"{was or ''}{n};"),
}


def ops_of(kind: str) -> st.SearchStrategy[list[tuple[Op, int, int, bool]]]:
    """HeadOperations, each with a key, how much time passes before it, and whether a checkpoint follows."""
    step = st.tuples(
        KINDS[kind].ops, st.sampled_from([0, 0, 0, 1]), st.sampled_from([0, 0, 20, 60, 100]), st.booleans()
    )
    return st.lists(step, min_size=3, max_size=14)


@dataclass
class StateModel:
    """One key's state: entries in order, each with the time that counts; without TTL the time is never looked at."""

    kind: ModelledKind
    config: StateTtlConfig | None
    entries: list[tuple[Any, Any, Any]] = field(default_factory=list)
    now: int = 0

    def __post_init__(self) -> None:
        self.name = self.kind.make().kind
        if self.config is not None and not self.config.is_enabled():
            self.config = None
        config = self.config
        self.shows = config is not None and config.get_state_visibility() is config.StateVisibility(0)
        self.renews = config is not None and config.get_update_type() is config.UpdateType.OnReadAndWrite

    def apply(self, op: Op, now: int) -> Any:
        """The result of an operation."""
        self.now = now
        value = getattr(self, f"_{self.name}", self._folded)(*op)
        if self.name == "sorted_map":
            self.entries.sort(key=lambda e: e[0])
        return value

    def stored(self) -> Any:
        """The expected stored form; None where nothing is stored."""
        items = [(k, v if self.config is None else Stamped(v, at)) for k, v, at in self.entries]
        if not items:
            return None
        if self.name in ("map", "sorted_map"):
            return dict(items)
        return [item for _, item in items] if self.name == "list" else items[0][1]

    def _expired(self, entry: tuple[Any, Any, int]) -> bool:
        return self.config is not None and entry[2] is not None and entry[2] + 100 <= self.now

    def _read(self, which: Callable[[Any], bool] = lambda key: True) -> list[tuple[Any, Any, int]]:
        """The visible ones of the entries that are read; removes expired entries and renews the others."""
        read = [e for e in self.entries if which(e[0])]
        kept = []
        for entry in self.entries:
            if not which(entry[0]):
                kept.append(entry)
            elif not self._expired(entry):
                kept.append((entry[0], entry[1], self.now) if self.renews else entry)
        self.entries = kept
        return [e for e in read if self.shows or not self._expired(e)]

    def _value(self, op: str, *args: Any) -> Any:
        if op == "value":
            return next((v for _, v, _ in self._read()), None)
        self.entries = [] if op == "clear" or args[0] is None else [(None, args[0], self.now)]
        return None

    def _folded(self, op: str, *args: Any) -> Any:
        if op == "clear":
            self.entries = []
            return None
        if op == "merge" and args[0] is None:
            return None
        was = next((v for _, v, _ in self._read()), None)
        if op in ("get", "get_internal"):
            return was if was is None or op == "get_internal" else self.kind.shown(was)
        combine = (self.kind.merged if op == "merge" else None) or self.kind.combine
        assert combine is not None
        self.entries = [(None, combine(was, *args), self.now)]
        return None

    def _list(self, op: str, *args: Any) -> Any:
        if op == "get":
            return self._read_list()
        if op == "get_internal":
            return self._read_list() or None
        if op in ("clear", "update"):
            self.entries = []
        if op != "clear":
            added = args if op == "add" else args[0] or ()
            self.entries += [(None, v, self.now) for v in added]
        return None

    def _read_list(self) -> list[Any]:
        # shown once more: as in Flink, a list with a living element keeps its expired ones while they are shown
        before = self.entries
        seen = [v for _, v, _ in self._read()]
        if self.shows and not self.renews and self.entries:
            self.entries = before
        return seen

    def _map(self, op: str, *args: Any) -> Any:
        if op == "clear":
            self.entries = []
        elif op == "put":
            self._put(*args)
        elif op == "put_all":
            for key, value in args[0].items():
                self._put(key, value)
        elif op == "remove":
            self.entries = [e for e in self.entries if e[0] != args[0]]
        elif op in ("get", "contains"):
            seen = self._read(lambda key: key == args[0])
            return bool(seen) if op == "contains" else next((v for _, v, _ in seen), None)
        elif op == "is_empty":
            return not [e for e in self.entries if self.shows or not self._expired(e)]
        else:
            seen = self._read()
            return [{"items": (k, v), "keys": k, "values": v}[op] for k, v, _ in seen]
        return None

    def _put(self, key: Any, value: Any) -> None:
        fresh = (key, value, self.now)
        # an expired entry is none any more, so its place is not kept
        self.entries = [e for e in self.entries if e[0] != key or not self._expired(e)]
        if any(e[0] == key for e in self.entries):
            self.entries = [fresh if e[0] == key else e for e in self.entries]
        else:
            self.entries.append(fresh)

    def _sorted_map(self, op: str, *args: Any) -> Any:
        if op in ("first_entry", "last_entry"):
            while self.entries:
                key = self.entries[0 if op == "first_entry" else -1][0]
                for stored_key, value, _ in self._read(lambda k, key=key: k == key):  # type: ignore[misc]
                    return stored_key, value
            return None
        bounds: dict[str, Callable[[Any], bool]] = {
            "head_items": lambda key: key < args[0],
            "tail_items": lambda key: key >= args[0],
            "sub_items": lambda key: args[0] <= key < args[1],
        }
        if op in bounds:
            return [(k, v) for k, v, _ in self._read(bounds[op])]
        return self._map(op, *args)


CONFIGS: dict[str, StateTtlConfig | None] = {
    "no ttl": None,
    "on write": ttl(),
    "on read": ttl(on_read=True),
    "on write, shows expired": ttl(shows_expired=True),
    "on read, shows expired": ttl(on_read=True, shows_expired=True),
    "on write, by event time": ttl(event_time=True),
    "on read, by event time": ttl(on_read=True, event_time=True),
    "disabled": ttl(build=lambda b: b.set_update_type(StateTtlConfig.UpdateType.Disabled)),
}


def steps_of(kind: str, config: StateTtlConfig | None, **options: Any) -> Steps:
    """Steps on one state, by the time that its configuration counts."""
    by_event_time = config is not None and config.get_ttl_time_characteristic().name == "EventTime"
    return Steps(with_ttl(KINDS[kind].make(), config), event_time=by_event_time, **options)


def check_random_operations(
    kind: str,
    config: StateTtlConfig | None,
    steps: Steps,
    ops: list[tuple[Op, int, int, bool]],
    models: dict[int, StateModel] | None = None,
    now: int = 0,
) -> int:
    """Apply the same operations to a state and to its model; results and stored entries must be equal; until when."""
    models = {} if models is None else models
    for op, key, wait, checkpoint in ops:
        now += wait
        model = models.setdefault(key, StateModel(KINDS[kind], config))
        value = steps.at(now, lambda s, op=op: KINDS[kind].apply(s, op), key=key)
        assert value == model.apply(op, now), (op, key, now)
        if checkpoint:
            steps.checkpoint()
    check_stored(kind, steps, models)
    return now


def check_stored(kind: str, steps: Steps, models: dict[int, StateModel]) -> None:
    """The stored entries equal those of the models by key; maps also in the order of their first puts."""
    stored = steps.checkpoint().get("s", {})
    assert {k: kept for k, m in models.items() if (kept := m.stored()) is not None} == stored
    if kind == "map":
        for key, entries in stored.items():
            assert list(entries) == [k for k, _, _ in models[key].entries]
