"""``PredefinedOptions``: settings of RocksDB for kinds of machines, and how settings reach it.

Mirrors ``org.apache.flink.contrib.streaming.state.PredefinedOptions``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from state_engine.core.errors import ConfigurationError
from state_engine.core.extras import optional

if TYPE_CHECKING:
    from rocksdict import Options

_MIB = 1 << 20
_BLOCKS: dict[str, Callable[[Any, int], Any]] = {
    "block_size": lambda table, size: table.set_block_size(size),
    "block_cache_size": lambda table, size: table.set_block_cache(rocksdict().Cache(size)),
    "bloom_filter_bits": lambda table, bits: table.set_bloom_filter(float(bits), False),
}
"""Settings of RocksDB's tables, under names of ours; all others are RocksDB's own."""


def rocksdict() -> Any:
    """The package with RocksDB. Raises MissingPackageError."""
    return optional("rocksdict", needed_by="EmbeddedRocksDBStateBackend")


class PredefinedOptions(Enum):
    """Presets by hardware; they change no result."""

    DEFAULT = 0
    SPINNING_DISK_OPTIMIZED = 1
    SPINNING_DISK_OPTIMIZED_HIGH_MEM = 2
    FLASH_SSD_OPTIMIZED = 3

    @property
    def settings(self) -> dict[str, int]:
        """RocksDB's settings by name."""
        return dict(_PREDEFINED[self])


_SPINNING = {"max_open_files": -1, "increase_parallelism": 4, "level_compaction_dynamic_level_bytes": 1}
_PREDEFINED: dict[PredefinedOptions, dict[str, int]] = {
    PredefinedOptions.DEFAULT: {},
    PredefinedOptions.SPINNING_DISK_OPTIMIZED: _SPINNING,
    PredefinedOptions.SPINNING_DISK_OPTIMIZED_HIGH_MEM: {
        **_SPINNING,
        "write_buffer_size": 64 * _MIB,
        "max_write_buffer_number": 4,
        "min_write_buffer_number_to_merge": 3,
        "target_file_size_base": 256 * _MIB,
        "max_bytes_for_level_base": 1024 * _MIB,
        "block_size": _MIB // 8,
        "block_cache_size": 256 * _MIB,
        "bloom_filter_bits": 10,
    },
    PredefinedOptions.FLASH_SSD_OPTIMIZED: {"max_open_files": -1, "increase_parallelism": 4},
}


def check_settings(settings: Mapping[str, int]) -> dict[str, int]:
    """The settings, if RocksDB has them and they are whole numbers. Raises ConfigurationError."""
    known = rocksdict().Options
    for name, value in settings.items():
        if name not in _BLOCKS and not (hasattr(known, f"set_{name}") or name == "increase_parallelism"):
            raise ConfigurationError(
                f"RocksDB has no option '{name}': use the name of a setter of rocksdict.Options without 'set_', or one "
                f"of {sorted(_BLOCKS)}"
            )
        if not isinstance(value, int):
            raise ConfigurationError(
                f"RocksDB option '{name}' must be a whole number or a bool, not {value!r}"
            )
    return dict(settings)


def rocksdb_options(settings: Mapping[str, int]) -> Options:
    rocks = rocksdict()
    options: Options = rocks.Options(raw_mode=True)
    table = rocks.BlockBasedOptions()
    options.create_if_missing(True)
    # every database starts empty; RocksDB would start 16 threads to open its files, half the time that it takes to open
    options.set_max_file_opening_threads(1)
    for name, value in settings.items():
        if name in _BLOCKS:
            _BLOCKS[name](table, value)
            continue
        setter = getattr(options, f"set_{name}", None) or getattr(options, name)
        try:
            setter(value)
        except TypeError:
            setter(bool(value))
    if settings.keys() & _BLOCKS.keys():
        options.set_block_based_table_factory(table)
    return options
