"""``TtlRule``: what the time to live means for the items of one state in one subtask.

Decides what has expired, stamps what is written, and does the incremental clean-up: on every access some entries of
the working copy are looked at, in turn, and what has expired in them is removed. Mirrors ``AbstractTtlDecorator`` and
``TtlIncrementalCleanup`` of Flink.

Which keys share a working copy depends on parallelism, cuts and backend, so no function may see a clean-up. It removes
what expired by the clocks of the parent checkpoint: no element or timer of this batch has an earlier *now*. And it
leaves a state that shows expired items alone: only a read of its own key removes those. Decision 0102.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from state_engine.core.errors import StateAccessError
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.state_table import KeyContext, KeyedEntries
from state_engine.core.state.ttl import Lifetime, Stamped, TtlUpdateType, expired, horizon


class TtlRule:
    """The rule of one state; see the module docstring.

    Attributes:
        renews_on_read: whether reading prolongs the life of an item.
        shows_expired: whether an expired item that is still there is returned.
    """

    __slots__ = ("_cleanup_size", "_context", "_every_record", "_life", "_round", "_table", "renews_on_read",
                 "shows_expired")  # fmt: skip

    def __init__(self, table: KeyedEntries, context: KeyContext) -> None:
        config = table.descriptor.ttl
        assert config is not None
        self._table, self._context = table, context
        self._life = config.lifetime
        self.renews_on_read = config.get_update_type() is TtlUpdateType.OnReadAndWrite
        self.shows_expired = not self._life.hides_expired
        cleanup = config.get_cleanup_strategies().get_incremental_cleanup_strategy()
        cleans = cleanup is not None and not self.shows_expired
        self._cleanup_size = cleanup.get_cleanup_size() if cleanup and cleans else 0
        self._every_record = bool(cleanup and cleans and cleanup.run_cleanup_for_every_record())
        self._round: Iterator[Any] = iter(())
        if self._every_record:
            context.on_element.append(self._after_element)

    def now(self) -> int | None:
        """The clock that counts, in milliseconds; None where event time is not known yet."""
        if not self._life.by_event_time:
            return self._context.clock_ms
        if not self._context.has_event_time:
            raise StateAccessError(
                f"state '{self._table.descriptor.name}' expires by event time, but the source of its stream declares "
                "none: give source(event_time=...), or let the state use processing time"
            )
        return self._context.event_time()

    def expired(self, item: Stamped) -> bool:
        return item.at is not None and expired(item, horizon(self.now(), self._life.ttl_ms))

    def stamp(self, value: Any, before: Stamped | None = None) -> Stamped:
        """A value that lives from now on.

        Args:
            before: the item that it replaces. Its time is kept where it is later: an access never shortens a life.
        """
        now_ms, was_ms = self.now(), None if before is None else before.at
        if was_ms is not None and (now_ms is None or now_ms < was_ms):
            now_ms = was_ms
        return Stamped(value, now_ms)

    def accessed(self) -> None:
        """Look at the next entries of the working copy and remove what has expired in them."""
        for _ in range(min(self._cleanup_size, len(self._table.entries))):
            key = next(self._round, None)
            if key is None:
                self._round = iter(list(self._table.entries))
                key = next(self._round, None)
            if key != self._context.key and key in self._table.entries:
                self._clean(key)

    def _after_element(self) -> None:
        # the element is done: the next one, should it be refused, must not take this clean-up back
        undo, self._context.undo = self._context.undo, None
        self.accessed()
        self._context.undo = undo

    def _clean(self, key: Any) -> None:
        entries = self._table.entries
        stored = entries[key]  # once: a backend may make it anew for every look
        until_ms = _cleaned_until_ms(self._life, self._context)
        kept = _KEEP[self._table.descriptor.shape](stored, lambda item: expired(item, until_ms))
        if kept is stored:
            return
        if self._context.undo is not None:
            self._context.undo.append(_put_back(entries, key, stored))
        if kept:
            entries[key] = kept
        else:
            del entries[key]


def _put_back(entries: Any, key: Any, was: Any) -> Any:
    return lambda: entries.__setitem__(key, was)


def _keep_value(item: Stamped, gone: Any) -> Any:
    return None if gone(item) else item


def _keep_list(items: list[Stamped], gone: Any) -> Any:
    kept = [item for item in items if not gone(item)]
    return items if len(kept) == len(items) else kept


def _keep_map(items: dict[Any, Stamped], gone: Any) -> Any:
    kept = {key: item for key, item in items.items() if not gone(item)}
    return items if len(kept) == len(items) else kept


_KEEP: dict[str, Callable[[Any, Callable[[Stamped], bool]], Any]] = {
    "value": _keep_value,
    "list": _keep_list,
    "map": _keep_map,
}


def drop_expired(table: KeyedEntries, context: KeyContext) -> int:
    """Remove the items of a table that a clean-up may remove, as a compaction filter does; how many were looked at."""
    config = table.descriptor.ttl
    assert config is not None
    if not config.lifetime.hides_expired:
        return 0
    looked_at, until_ms = 0, _cleaned_until_ms(config.lifetime, context)

    def gone(item: Stamped) -> bool:
        nonlocal looked_at
        looked_at += 1
        return expired(item, until_ms)

    entries, keep = table.entries, _KEEP[table.descriptor.shape]
    for key in list(entries):
        stored = entries[key]
        kept = keep(stored, gone)
        if not kept:
            del entries[key]
        elif kept is not stored:
            entries[key] = kept
    return looked_at


def _cleaned_until_ms(life: Lifetime, context: KeyContext) -> int | None:
    """The time of the newest item that a clean-up removes; see the module docstring."""
    return life.horizon_ms(clock_ms=context.clock_ms, watermark_ms=context.checkpoint_watermark_ms)


def without_expired(
    descriptor: StateDescriptor, entries: Mapping[Any, Any], *, clock_ms: int, watermark_ms: int | None
) -> dict[Any, Any]:
    """Stored entries of a state without the items that have expired by these clocks; for full snapshots."""
    config = descriptor.ttl
    if config is None:
        return dict(entries)
    until_ms = config.lifetime.horizon_ms(clock_ms=clock_ms, watermark_ms=watermark_ms)
    keep = _KEEP[descriptor.shape]
    kept = {key: keep(stored, lambda item: expired(item, until_ms)) for key, stored in entries.items()}
    return {key: stored for key, stored in kept.items() if stored}
