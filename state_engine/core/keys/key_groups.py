"""Key groups: the atomic units in which keyed state is spread over subtasks.

There are as many key groups as the max parallelism, fixed for the life of the state. A key belongs to exactly one key
group, a key group to exactly one subtask, and a subtask owns one contiguous range of key groups, at any parallelism up
to the maximum. So a change of parallelism moves ranges, never keys.

Mirrors Flink's ``KeyGroupRangeAssignment`` and ``KeyGroupRange``; only the hash differs (:mod:`.hashing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from state_engine.core.choices import check_count
from state_engine.core.errors import ConfigurationError
from state_engine.core.keys.canonical import key_hash

MAX_PARALLELISM_LIMIT: Final = 1 << 15
"""The largest max parallelism there can be."""

MIN_DEFAULT_MAX_PARALLELISM: Final = 1 << 7
"""The smallest max parallelism that is chosen for a job that names none."""


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """Key groups ``start`` to ``end``, both included. Mirrors Flink's ``KeyGroupRange``.

    >>> 42 in KeyGroupRange(0, 42), len(KeyGroupRange(0, 42))
    (True, 43)
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"A key-group range needs 0 <= start <= end, got [{self.start}, {self.end}]")

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, int) and self.start <= key_group <= self.end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end + 1))

    def __len__(self) -> int:
        return self.end - self.start + 1


def default_max_parallelism(parallelism: int) -> int:
    """The max parallelism of a job that names none: room to grow by half, rounded up to a power of two.

    At least 128, at most 32768. Raises :class:`ValueError` for a parallelism outside 1…32768.
    Mirrors Flink's ``KeyGroupRangeAssignment.computeDefaultMaxParallelism``.

    >>> [default_max_parallelism(p) for p in (1, 86, 171, 30000)]
    [128, 256, 256, 32768]
    """
    check_max_parallelism(parallelism, name="parallelism")
    wanted = parallelism + parallelism // 2
    next_power_of_two = 1 << (wanted - 1).bit_length()
    return min(max(next_power_of_two, MIN_DEFAULT_MAX_PARALLELISM), MAX_PARALLELISM_LIMIT)


def key_group_of_hash(key_hash: int, max_parallelism: int) -> int:
    """The key group of a key whose hash is already known: ``pmod(key_hash, max_parallelism)``.

    Does not check `max_parallelism`, since it runs once per element; :func:`check_max_parallelism` does.

    >>> key_group_of_hash(-1, 128)
    127
    """
    return key_hash % max_parallelism


def assign_to_key_group(key: object, max_parallelism: int) -> int:
    """The key group of a key, 0 … `max_parallelism` - 1; equal to what Spark computes for the same key.

    Raises :class:`InvalidKeyError` for what cannot be a key (None, NaN, a list, …) and :class:`ValueError` for a max
    parallelism outside 1…32768. Mirrors Flink's ``KeyGroupRangeAssignment.assignToKeyGroup``.

    >>> assign_to_key_group(1, 128) == assign_to_key_group(True, 128) == assign_to_key_group((1,), 128)
    True
    """
    check_max_parallelism(max_parallelism)
    return key_group_of_hash(key_hash(key), max_parallelism)


def key_group_range(max_parallelism: int, parallelism: int, subtask: int) -> KeyGroupRange:
    """The key groups that subtask `subtask` (0 … `parallelism` - 1) of `parallelism` owns.

    Raises :class:`ValueError` for a subtask that is not one of them, or a parallelism outside 1…`max_parallelism`.
    Mirrors Flink's ``KeyGroupRangeAssignment.computeKeyGroupRangeForOperatorIndex``.

    >>> [key_group_range(13, 4, subtask) for subtask in (0, 3)]
    [KeyGroupRange(start=0, end=3), KeyGroupRange(start=10, end=12)]
    """
    check_parallelism(max_parallelism=max_parallelism, parallelism=parallelism)
    if not 0 <= subtask < parallelism:
        raise ValueError(f"subtask must be 0 … {parallelism - 1} (parallelism {parallelism}), got {subtask}")
    start = -(-subtask * max_parallelism // parallelism)  # rounded up
    end = ((subtask + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)


def subtask_for_key_group(max_parallelism: int, parallelism: int, key_group: int) -> int:
    """The one subtask that owns a key group. The inverse of :func:`key_group_range`.

    Raises :class:`ValueError` for a key group outside 0 … `max_parallelism` - 1 or a parallelism outside
    1 … `max_parallelism`. Mirrors Flink's ``KeyGroupRangeAssignment.computeOperatorIndexForKeyGroup``.

    >>> [subtask_for_key_group(128, 3, group) for group in (0, 42, 43, 127)]
    [0, 0, 1, 2]
    """
    check_parallelism(max_parallelism=max_parallelism, parallelism=parallelism)
    if not 0 <= key_group < max_parallelism:
        raise ValueError(
            f"key_group must be 0 … {max_parallelism - 1} (max parallelism {max_parallelism}), got {key_group}"
        )
    return key_group * parallelism // max_parallelism


def check_max_parallelism(max_parallelism: int, *, name: str = "max_parallelism") -> None:
    """Raise ConfigurationError unless 1 ≤ `max_parallelism` ≤ 32768.

    >>> check_max_parallelism(128)
    """
    if type(max_parallelism) is not int or not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise ConfigurationError(f"{name} must be 1 … {MAX_PARALLELISM_LIMIT}, got {max_parallelism!r}")


def check_parallelism(*, max_parallelism: int, parallelism: int) -> None:
    """Raise ConfigurationError unless 1 ≤ `parallelism` ≤ `max_parallelism` ≤ 32768.

    >>> check_parallelism(max_parallelism=128, parallelism=2)
    """
    check_max_parallelism(max_parallelism)
    check_count(parallelism, what="parallelism")
    if parallelism > max_parallelism:
        raise ConfigurationError(
            f"parallelism {parallelism} is greater than max parallelism {max_parallelism}: subtasks would be left "
            "without a key group. Lower the parallelism, or raise max parallelism by a rescale"
        )


def remaining(groups: KeyGroupRange, taken: Iterable[KeyGroupRange]) -> tuple[KeyGroupRange, ...]:
    """What is left of a range of key groups without others.

    >>> remaining(KeyGroupRange(0, 9), [KeyGroupRange(4, 5), KeyGroupRange(8, 20)])
    (KeyGroupRange(start=0, end=3), KeyGroupRange(start=6, end=7))
    """
    left, start = [], groups.start
    for one in sorted(taken, key=lambda r: r.start):
        if one.end < start or one.start > groups.end:
            continue
        if one.start > start:
            left.append(KeyGroupRange(start, one.start - 1))
        start = one.end + 1
    if start <= groups.end:
        left.append(KeyGroupRange(start, groups.end))
    return tuple(left)
