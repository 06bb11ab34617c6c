"""Time to live: ``StateTtlConfig``, and the rule of when a stored item has expired.

An item (a value, a list element, a map entry) is stored with the time of its last access. It has expired when that
time plus the time to live is not after now (``horizon``). Mirrors
``org.apache.flink.api.common.state.StateTtlConfig`` and ``org.apache.flink.runtime.state.ttl.TtlUtils``; event time is
ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from state_engine.core.argument_checks import checked_class
from state_engine.core.errors import ConfigurationError
from state_engine.core.json_text import parsed_json
from state_engine.core.state.ttl_cleanup import TtlCleanup
from state_engine.core.types.durations import Duration, Span, Time, to_milliseconds
from state_engine.core.types.every_type import TypeInformation

_MAX, _MIN = 2**63 - 1, -(2**63)


class Stamped(NamedTuple):
    """A stored item with the time of its last access in milliseconds; None where it was written without TTL."""

    value: Any
    at: int | None


def horizon(now_ms: int | None, ttl_ms: int) -> int | None:
    """The time of the newest item that has expired, in milliseconds; None where nothing has.

    That is the whole rule: an item has expired when the time of its last access plus ``ttl_ms`` is not after now. At
    the end of time (the watermark of a stream that has ended) everything has expired.

    Args:
        now_ms: by the clock that counts; None where it is not known yet.

    Example:
        >>> horizon(150, 100), horizon(None, 100)
        (50, None)
    """
    if now_ms is None or now_ms == _MAX:
        return now_ms
    reached_ms = now_ms - ttl_ms
    return reached_ms if reached_ms >= _MIN else None


def expired(item: Stamped, horizon_ms: int | None) -> bool:
    """Whether an item has expired. Items without a time live until they are written again.

    Example:
        >>> [expired(Stamped("a", 50), horizon(now, 100)) for now in (149, 150)]
        [False, True]
    """
    return item.at is not None and horizon_ms is not None and item.at <= horizon_ms


@dataclass(frozen=True)
class Lifetime:
    """How long the items of a state live, as a checkpoint records it.

    Attributes:
        by_event_time: whether the watermark counts, and not the clock.
        hides_expired: whether running jobs never see what has expired.
        in_full_snapshot, in_compaction: whether full snapshots, and compactions, leave out what has expired.
    """

    ttl_ms: int
    by_event_time: bool = False
    hides_expired: bool = True
    in_full_snapshot: bool = False
    in_compaction: bool = True

    @classmethod
    def recorded(cls, text: str) -> Lifetime | None:
        """From what ``StateTtlConfig.to_json`` made; None where nothing expires."""
        if not text:
            return None
        config = parsed_json(text)
        return cls(
            ttl_ms=int(config["ttl_ms"]),
            by_event_time=config.get("time") == TtlTime.EventTime.name,
            hides_expired=config.get("visibility") == TtlVisibility.NeverReturnExpired.name,
            in_full_snapshot=bool(config.get("full_snapshot")),
            in_compaction=bool(config.get("compaction")),
        )

    def now_ms(self, *, clock_ms: int, watermark_ms: int | None) -> int | None:
        """The time that counts."""
        return watermark_ms if self.by_event_time else clock_ms

    def horizon_ms(self, *, clock_ms: int, watermark_ms: int | None) -> int | None:
        """The time of the newest item that has expired by these clocks; None where nothing has."""
        return horizon(self.now_ms(clock_ms=clock_ms, watermark_ms=watermark_ms), self.ttl_ms)


def cleaned_until_us(
    recorded: str, *, clock_ms: int, watermark_ms: int | None, full_snapshot: bool = False
) -> int | None:
    """The time of the newest item that a new base leaves out, in microseconds since 1970; None where all stay.

    Args:
        full_snapshot: whether it is a snapshot for itself, and not background clean-up.

    Example:
        >>> cleaned_until_us("", clock_ms=0, watermark_ms=None) is None
        True
    """
    life = Lifetime.recorded(recorded)
    if life is None:
        return None
    if full_snapshot:
        cleaned = life.hides_expired or life.in_full_snapshot
    else:  # a compaction, which is background clean-up
        cleaned = life.hides_expired and life.in_compaction
    until_ms = life.horizon_ms(clock_ms=clock_ms, watermark_ms=watermark_ms) if cleaned else None
    if until_ms is None or until_ms * 1000 < _MIN:
        return None
    return min(until_ms * 1000, _MAX)


class StampedType(TypeInformation):
    """Items of another type with their time; only in memory, never a column of its own."""

    def __init__(self, inner: TypeInformation) -> None:
        self.inner, self.mutable = inner, inner.mutable
        self.arrow, self.storage = inner.arrow, inner.storage

    def compiled(self) -> Callable[[Any], Any]:
        normalise = self.inner.compiled()
        return lambda item: item if item.value is None else Stamped(normalise(item.value), item.at)

    def normalise(self, value: Any) -> Any:
        return self.compiled()(value)

    def copy(self, value: Any) -> Any:
        return None if value is None else Stamped(self.inner.copy(value.value), value.at)


class TtlUpdateType(Enum):
    """When the time of last access is renewed."""

    Disabled = 0
    OnCreateAndWrite = 1
    OnReadAndWrite = 2


class TtlVisibility(Enum):
    """Whether an expired item that is still there may be returned."""

    ReturnExpiredIfNotCleanedUp = 0
    NeverReturnExpired = 1


class TtlTime(Enum):
    """The clock: the batch's recorded processing time, or the event time of the element."""

    ProcessingTime = 0
    EventTime = 1


@checked_class
class StateTtlConfig:
    """How items of a state expire; made by ``StateTtlConfig.new_builder(ttl)``.

    Example:
        >>> config = StateTtlConfig.new_builder(Time.hours(1)).update_ttl_on_read_and_write().build()
        >>> config.get_ttl().to_milliseconds(), config.get_update_type().name, config.is_enabled()
        (3600000, 'OnReadAndWrite', True)
    """

    UpdateType = TtlUpdateType
    StateVisibility = TtlVisibility
    TtlTimeCharacteristic = TtlTime
    CleanupStrategies = TtlCleanup

    def __init__(
        self,
        update_type: TtlUpdateType,
        state_visibility: TtlVisibility,
        ttl_time_characteristic: TtlTime,
        ttl: Span,
        cleanup_strategies: TtlCleanup,
    ) -> None:
        self._update_type, self._visibility = update_type, state_visibility
        self._characteristic, self._ttl = ttl_time_characteristic, Time(to_milliseconds(ttl))
        self._cleanup = cleanup_strategies
        if self._ttl.to_milliseconds() <= 0:
            raise ConfigurationError(f"a time to live must be longer than nothing, not {self._ttl}")

    @staticmethod
    def new_builder(ttl: Span) -> StateTtlConfig.Builder:
        """A builder; by default written items live for ``ttl`` of processing time and are never returned after it."""
        return StateTtlConfig.Builder(ttl)

    def get_update_type(self) -> TtlUpdateType:
        """When the time of last access is renewed."""
        return self._update_type

    def get_state_visibility(self) -> TtlVisibility:
        """Whether expired items may be returned."""
        return self._visibility

    def get_ttl(self) -> Time:
        """How long items live."""
        return self._ttl

    def get_ttl_time_characteristic(self) -> TtlTime:
        """Which clock counts."""
        return self._characteristic

    def is_enabled(self) -> bool:
        """Whether items expire at all."""
        return self._update_type is not TtlUpdateType.Disabled

    def get_cleanup_strategies(self) -> TtlCleanup:
        """How expired items are removed."""
        return self._cleanup

    @property
    def lifetime(self) -> Lifetime:
        """How long items live, without what only a running job needs."""
        recorded = Lifetime.recorded(self.to_json())
        assert recorded is not None
        return recorded

    def to_json(self) -> str:
        """What a checkpoint records: enough to know what has expired, and whether a reader may still see it."""
        return json.dumps(
            {
                "ttl_ms": self._ttl.to_milliseconds(),
                "update_type": self._update_type.name,
                "visibility": self._visibility.name,
                "time": self._characteristic.name,
                "full_snapshot": self._cleanup.in_full_snapshot(),
                "compaction": self._cleanup.get_rocksdb_compact_filter_cleanup_strategy() is not None,
            }
        )

    def __repr__(self) -> str:
        parts = (self._update_type.name, self._visibility.name, self._characteristic.name, self._ttl)
        return f"StateTtlConfig({', '.join(map(str, parts))})"

    @checked_class
    class Builder:
        """Collects the settings of a StateTtlConfig; every method returns the builder."""

        def __init__(self, ttl: Span) -> None:
            self.set_ttl(ttl)
            self._update_type = TtlUpdateType.OnCreateAndWrite
            self._visibility = TtlVisibility.NeverReturnExpired
            self._characteristic = TtlTime.ProcessingTime
            self._strategies: dict[TtlCleanup.Strategies, TtlCleanup.CleanupStrategy] = {}
            self._in_background = True

        def set_update_type(self, update_type: TtlUpdateType) -> StateTtlConfig.Builder:
            """When the time of last access is renewed."""
            self._update_type = update_type
            return self

        def update_ttl_on_create_and_write(self) -> StateTtlConfig.Builder:
            """Renew on writes (the default)."""
            return self.set_update_type(TtlUpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> StateTtlConfig.Builder:
            """Renew on reads and writes."""
            return self.set_update_type(TtlUpdateType.OnReadAndWrite)

        def set_state_visibility(self, state_visibility: TtlVisibility) -> StateTtlConfig.Builder:
            """Whether expired items may be returned."""
            self._visibility = state_visibility
            return self

        def return_expired_if_not_cleaned_up(self) -> StateTtlConfig.Builder:
            """Return what has expired and is still there."""
            return self.set_state_visibility(TtlVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> StateTtlConfig.Builder:
            """Never return what has expired (the default)."""
            return self.set_state_visibility(TtlVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(self, ttl_time_characteristic: TtlTime) -> StateTtlConfig.Builder:
            """Which clock counts."""
            self._characteristic = ttl_time_characteristic
            return self

        def use_processing_time(self) -> StateTtlConfig.Builder:
            """The batch's recorded clock counts (the default)."""
            return self.set_ttl_time_characteristic(TtlTime.ProcessingTime)

        def use_event_time(self) -> StateTtlConfig.Builder:
            """The event time of elements counts, and never less than the watermark."""
            return self.set_ttl_time_characteristic(TtlTime.EventTime)

        def cleanup_full_snapshot(self) -> StateTtlConfig.Builder:
            """Leave expired items out of full snapshots."""
            strategy = TtlCleanup.Strategies.FULL_STATE_SCAN_SNAPSHOT
            self._strategies[strategy] = TtlCleanup.EMPTY_STRATEGY
            return self

        def cleanup_incrementally(
            self, cleanup_size: int, run_cleanup_for_every_record: bool
        ) -> StateTtlConfig.Builder:
            """Look at some entries on every access, and on every record where asked to."""
            strategy = TtlCleanup.IncrementalCleanupStrategy(cleanup_size, run_cleanup_for_every_record)
            self._strategies[TtlCleanup.Strategies.INCREMENTAL_CLEANUP] = strategy
            return self

        def cleanup_in_rocksdb_compact_filter(
            self, query_time_after_num_entries: int, periodic_compaction_time: Duration | None = None
        ) -> StateTtlConfig.Builder:
            """Drop expired entries while files are compacted."""
            strategy = TtlCleanup.RocksdbCompactFilterCleanupStrategy(
                query_time_after_num_entries, periodic_compaction_time
            )
            self._strategies[TtlCleanup.Strategies.ROCKSDB_COMPACTION_FILTER] = strategy
            return self

        def disable_cleanup_in_background(self) -> StateTtlConfig.Builder:
            """Switch the default clean-up off; a configured strategy stays on."""
            self._in_background = False
            return self

        def set_ttl(self, ttl: Span) -> StateTtlConfig.Builder:
            """How long items live."""
            self._ttl = Time(to_milliseconds(ttl))
            return self

        def build(self) -> StateTtlConfig:
            """The configuration. Raises ConfigurationError where the time to live is not positive."""
            cleanup = TtlCleanup(self._strategies, self._in_background)
            return StateTtlConfig(
                self._update_type, self._visibility, self._characteristic, self._ttl, cleanup
            )
