"""State of one operator in steps: a clock and a key each, with an optional checkpoint and restore in between.

A checkpoint is what the engine does: the net changes are folded into what is stored, and the next step loads it anew.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.keyed_state import KeyedStateStore, Loader
from state_engine.core.state.state_table import APPEND, CLEAR, PUT, Change, KeyContext
from state_engine.core.state.ttl import StateTtlConfig
from state_engine.core.types.durations import Time

Stored = dict[str, dict[Any, Any]]
Session = tuple[
    KeyedStateStore, Callable[[], Iterable[tuple[StateDescriptor, Iterable[Change]]]], Callable[[], Any]
]
Opener = Callable[[KeyContext, Loader], Session]
"""Makes the states of an operator: the store, what gives its changes at a checkpoint, and what closes it."""


def in_dicts(context: KeyContext, load: Loader) -> Session:
    """Handles on plain dicts, without a state backend."""
    store = KeyedStateStore("counter", context, load)
    return store, store.changes, lambda: None


def fold(shape: str, stored: dict[Any, Any], change: Change) -> None:
    """Apply one row of the changelog to what is stored."""
    key, op, value = change
    if op == CLEAR or (shape == "value" and op != PUT):
        stored.pop(key, None)
    elif op == APPEND:
        stored.setdefault(key, []).extend(value)
    elif shape == "value":
        stored[key] = value
    elif op == PUT:
        stored.setdefault(key, {})[value[0]] = value[1]
    else:
        stored[key].pop(value[0])
        if not stored[key]:
            del stored[key]


class Steps:
    """Runs steps against states; ``restoring`` puts a checkpoint and a restore behind every step."""

    def __init__(
        self,
        *descriptors: StateDescriptor,
        restoring: bool = True,
        opener: Opener = in_dicts,
        event_time: bool = False,
    ) -> None:
        self.descriptors, self.restoring, self.opener = descriptors, restoring, opener
        self.stored: Stored = {}
        self.event_time = event_time
        self.context = KeyContext(has_event_time=event_time)
        self._session: Session | None = None

    def at(
        self,
        now: int,
        do: Callable[..., Any] = lambda *_: None,
        *,
        key: Any = 1,
        watermark: int | None = None,
    ) -> Any:
        """Do something with the handles for a key at a time; its result, lists made of iterators."""
        handles = self.open()
        self.context.key = key
        if self.event_time:
            self.context.timestamp, self.context.watermark_ms = now, watermark
        else:
            self.context.clock_ms = now
        value = do(*handles)
        value = list(value) if hasattr(value, "__next__") else value
        for hook in self.context.on_element:
            hook()
        if self.restoring:
            self.checkpoint()
        return value

    def open(self) -> list[Any]:
        """The handles, as of what is stored."""
        if self._session is None:
            context = self.context
            self.context = KeyContext(
                clock_ms=context.clock_ms, watermark_ms=context.watermark_ms, has_event_time=self.event_time
            )
            self._session = self.opener(self.context, lambda d: copy.deepcopy(self.stored.get(d.name, {})))
        return [self._session[0].handle(d, d.kind) for d in self.descriptors]

    def checkpoint(self) -> Stored:
        """Fold the changes into what is stored; the next step starts from it."""
        if self._session is not None:
            _, changes, close = self._session
            for descriptor, changes_of_state in changes():
                for change in changes_of_state:
                    fold(descriptor.shape, self.stored.setdefault(descriptor.name, {}), change)
            close()
            self._session = None
        return self.stored

    def physical(self, key: Any = 1, *, state: str = "s") -> Any:
        """The stored entry of a key, expired or not; None where nothing is stored."""
        return self.checkpoint().get(state, {}).get(key)


def ttl(
    *,
    ttl_ms: int = 100,
    on_read: bool = False,
    shows_expired: bool = False,
    event_time: bool = False,
    build: Callable[[StateTtlConfig.Builder], Any] | None = None,
) -> StateTtlConfig:
    """A configuration; without background clean-up unless ``build`` asks for some."""
    builder = StateTtlConfig.new_builder(Time.milliseconds(ttl_ms))
    if on_read:
        builder.update_ttl_on_read_and_write()
    if shows_expired:
        builder.return_expired_if_not_cleaned_up()
    if event_time:
        builder.use_event_time()
    (build or StateTtlConfig.Builder.disable_cleanup_in_background)(builder)
    return builder.build()


def with_ttl(descriptor: Any, config: StateTtlConfig | None) -> Any:
    """A descriptor whose items expire."""
    if config is not None:
        descriptor.enable_time_to_live(config)
    return descriptor
