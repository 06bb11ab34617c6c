"""``TtlCleanup``: how what has expired is removed from a state, besides on reads that find it.

The settings only; ``TtlRule``, full snapshots and compaction act on them. Mirrors
``StateTtlConfig.CleanupStrategies`` of Flink, under which name users reach it.
"""

from __future__ import annotations

from enum import Enum

from state_engine.core.argument_checks import checked_class
from state_engine.core.choices import check_count
from state_engine.core.types.durations import Duration


@checked_class
class TtlCleanup:
    """The strategies of one state, each with its settings, and whether the background clean-up is on."""

    class Strategies(Enum):
        """The strategies by number."""

        FULL_STATE_SCAN_SNAPSHOT = 0
        INCREMENTAL_CLEANUP = 1
        ROCKSDB_COMPACTION_FILTER = 2

    class CleanupStrategy:
        """Base of the strategies."""

    class EmptyCleanupStrategy(CleanupStrategy):
        """A strategy without settings."""

    @checked_class
    class IncrementalCleanupStrategy(CleanupStrategy):
        """Looks at some entries on every access of the state, and on every record where asked to."""

        def __init__(self, cleanup_size: int, run_cleanup_for_every_record: bool) -> None:
            check_count(cleanup_size, what="cleanup_size")
            self._cleanup_size, self._every_record = cleanup_size, run_cleanup_for_every_record

        def get_cleanup_size(self) -> int:
            """Entries looked at on each access."""
            return self._cleanup_size

        def run_cleanup_for_every_record(self) -> bool:
            """Whether to look on every record, too."""
            return self._every_record

    @checked_class
    class RocksdbCompactFilterCleanupStrategy(CleanupStrategy):
        """Drops expired entries while files are compacted."""

        def __init__(
            self, query_time_after_num_entries: int, periodic_compaction_time: Duration | None = None
        ) -> None:
            check_count(query_time_after_num_entries, what="query_time_after_num_entries")
            self._query_time_after_num_entries = query_time_after_num_entries
            self._periodic_compaction_time = periodic_compaction_time or Duration.of_days(30)

        def get_query_time_after_num_entries(self) -> int:
            """After how many entries Flink reads the clock again; here it does not move within a micro-batch."""
            return self._query_time_after_num_entries

        def get_periodic_compaction_time(self) -> Duration:
            """Files older than this are compacted."""
            return self._periodic_compaction_time

    EMPTY_STRATEGY = EmptyCleanupStrategy()

    def __init__(
        self,
        strategies: dict[TtlCleanup.Strategies, TtlCleanup.CleanupStrategy],
        is_cleanup_in_background: bool,
    ) -> None:
        self._strategies, self._in_background = dict(strategies), is_cleanup_in_background

    def is_cleanup_in_background(self) -> bool:
        """Whether the default clean-up of a backend is on."""
        return self._in_background

    def in_full_snapshot(self) -> bool:
        """Whether full snapshots leave expired items out."""
        return self.Strategies.FULL_STATE_SCAN_SNAPSHOT in self._strategies

    def get_incremental_cleanup_strategy(self) -> IncrementalCleanupStrategy | None:
        """The incremental strategy: as configured, else 5 entries an access where the background clean-up is on."""
        strategy = self._strategies.get(self.Strategies.INCREMENTAL_CLEANUP)
        if strategy is None and self._in_background:
            return self.IncrementalCleanupStrategy(5, False)
        return strategy  # type: ignore[return-value]

    def get_rocksdb_compact_filter_cleanup_strategy(self) -> RocksdbCompactFilterCleanupStrategy | None:
        """The compaction filter: as configured, else every 1000 entries where the background clean-up is on."""
        strategy = self._strategies.get(self.Strategies.ROCKSDB_COMPACTION_FILTER)
        if strategy is None and self._in_background:
            return self.RocksdbCompactFilterCleanupStrategy(1000)
        return strategy  # type: ignore[return-value]
