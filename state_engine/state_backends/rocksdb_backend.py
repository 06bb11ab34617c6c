"""``EmbeddedRocksDBStateBackend``: working state in a RocksDB of the subtask's own; for state larger than memory.

Values, list elements and map entries live in a temporary directory and are decoded when they are read; in memory are
the touched keys alone. The database holds one micro-batch's working state, so it is neither logged nor kept: the
checkpoint is what lasts, and the directory is removed when the batch ends, also when it fails. Adding to a list and
writing a map entry rewrite nothing else. Sorted maps iterate in the order of their keys as RocksDB keeps them.

Expired items are dropped by a pass of our own (``compact``), for a compaction filter cannot be written in Python: it
looks at every item of the states that ask for it, reads the clock again after so many of them, and lets RocksDB
compact. It runs after every ``compact_after_writes`` writes, between elements. ``periodic_compaction_time`` has no
meaning for a database that lives for one batch. Under ``ReturnExpiredIfNotCleanedUp`` it can be seen that the pass has
run, as in Flink. Mirrors ``EmbeddedRocksDBStateBackend`` and ``RocksDBKeyedStateBackend``.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Self, cast

from state_engine.core.argument_checks import checked_function
from state_engine.core.choices import check_count
from state_engine.core.errors import ConfigurationError
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.state.descriptors import MapStateDescriptor, StateDescriptor
from state_engine.core.state.keyed_state import Loader
from state_engine.core.state.state_table import KeyContext
from state_engine.core.state.ttl_rule import drop_expired
from state_engine.state_backends.rocksdb_codec import item_code, map_key_code
from state_engine.state_backends.rocksdb_entries import RocksLists, RocksValues
from state_engine.state_backends.rocksdb_maps import RocksMaps
from state_engine.state_backends.rocksdb_options import PredefinedOptions, check_settings, rocksdb_options
from state_engine.state_backends.rocksdb_store import RocksStore
from state_engine.state_backends.state_backend import KeyedStateBackend, StateBackend

_COMPACT_AFTER_WRITES = 1_000_000


class EmbeddedRocksDBStateBackend(StateBackend):
    """Keeps the touched state of a micro-batch in RocksDB.

    Args:
        options: predefined options, or settings by the names of RocksDB's options (and ``block_size``,
            ``block_cache_size``, ``bloom_filter_bits``); settings win over predefined options.
        local_directory: where the temporary directories are made; the system's by default.
        compact_after_writes: how many rows are written between two passes that drop expired items.

    Raises:
        ConfigurationError: RocksDB has no such option.
        MissingPackageError: RocksDB is not installed; ``pip install "statelake[rocksdb]"`` brings it.

    Example:
        >>> backend = EmbeddedRocksDBStateBackend(options={"write_buffer_size": 1 << 20})
        >>> backend.set_predefined_options(PredefinedOptions.FLASH_SSD_OPTIMIZED).get_options()
        {'max_open_files': -1, 'increase_parallelism': 4, 'write_buffer_size': 1048576}
    """

    spills = True

    @checked_function
    def __init__(
        self,
        options: PredefinedOptions | Mapping[str, int] | None = None,
        *,
        local_directory: str | None = None,
        compact_after_writes: int = _COMPACT_AFTER_WRITES,
    ) -> None:
        check_count(compact_after_writes, what="compact_after_writes")
        predefined = options if isinstance(options, PredefinedOptions) else PredefinedOptions.DEFAULT
        self._predefined = predefined
        self._settings = check_settings(options if isinstance(options, Mapping) else {})
        self._local_directory, self._compact_after_writes = local_directory, compact_after_writes

    def set_predefined_options(self, options: PredefinedOptions) -> Self:
        """Start from other predefined options; gives the backend itself."""
        if not isinstance(options, PredefinedOptions):
            raise ConfigurationError(f"set_predefined_options takes PredefinedOptions, not {options!r}")
        self._predefined = options
        return self

    def get_predefined_options(self) -> PredefinedOptions:
        """The predefined options."""
        return self._predefined

    def get_options(self) -> dict[str, int]:
        """All settings that differ from RocksDB's own."""
        return {**self._predefined.settings, **self._settings}

    def create_keyed_backend(
        self, operator: str, *, key_groups: KeyGroupRange, context: KeyContext, load: Loader
    ) -> KeyedStateBackend:
        """Working state of one subtask, in a RocksDB of its own."""
        store = RocksStore(rocksdb_options(self.get_options()), self._local_directory)
        return RocksDBKeyedStateBackend(
            store, self._compact_after_writes, operator, key_groups=key_groups, context=context, load=load
        )

    def __repr__(self) -> str:
        return f"EmbeddedRocksDBStateBackend({self.get_options()})"


class RocksDBKeyedStateBackend(KeyedStateBackend):
    """Working state of one subtask in RocksDB; made by EmbeddedRocksDBStateBackend."""

    def __init__(
        self,
        store: RocksStore,
        compact_after_writes: int,
        operator: str,
        *,
        key_groups: KeyGroupRange,
        context: KeyContext,
        load: Loader,
    ) -> None:
        super().__init__(operator, key_groups, context, load)
        self._rocks, self._compact_after, self._compacted_at = store, compact_after_writes, 0
        self._replaceable: list[RocksLists | RocksMaps] = []
        context.on_element.append(self._after_element)

    @property
    def directory(self) -> str:
        return self._rocks.path

    def entries(self, descriptor: StateDescriptor) -> MutableMapping[Any, Any]:
        code, parts = item_code(descriptor), self._stored(descriptor)
        if descriptor.shape == "value":
            return RocksValues(self._rocks, code, parts)
        made: RocksLists | RocksMaps
        if descriptor.shape == "list":
            made = RocksLists(self._rocks, code, parts)
        else:
            key_code = map_key_code(cast(MapStateDescriptor, descriptor))
            in_key_order = descriptor.kind == "sorted_map"
            made = RocksMaps(self._rocks, code, parts, key_code=key_code, in_key_order=in_key_order)
        self._replaceable.append(made)
        return made

    def is_asynchronous(self) -> bool:
        """Reading the frozen rows is the task's work."""
        return True

    def compact(self) -> int:
        """Drop expired items of states with compaction-filter clean-up; how many items were looked at."""
        looked_at = 0
        for table in self.store.tables.values():
            config = table.descriptor.ttl
            if config and config.get_cleanup_strategies().get_rocksdb_compact_filter_cleanup_strategy():
                looked_at += drop_expired(table, self._context)
        self._collect_garbage()
        self._rocks.compact()
        self._compacted_at = self._rocks.writes
        return looked_at

    def close(self) -> None:
        """Cancel snapshots that have not run, close the database and remove its directory."""
        super().close()
        self._rocks.close()

    def _after_element(self) -> None:
        self._collect_garbage()
        if self._rocks.writes - self._compacted_at >= self._compact_after:
            undo, self._context.undo = self._context.undo, None
            self.compact()
            self._context.undo = undo

    def _collect_garbage(self) -> None:
        for entries in self._replaceable:
            entries.collect_garbage()
