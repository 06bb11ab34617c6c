"""``CompactionPolicy``: when an operator's keyed state is worth folding, decided by the rows of its path alone.

Every micro-batch adds a file of changes, which each later one opens; a compaction takes them out of the way. Folding
costs as much as the key groups hold that changed, so it waits until there are many files, or several times as many
changes as there are entries, or until much of a base has expired. First changes, with no base below them, are no more
than there are entries: to fold them would save nothing. Plays the part of the triggers of RocksDB's leveled compaction
and of its periodic compaction. Decision 0017.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile
from state_engine.core.checkpoints.state_files import keyed_state_files, position_files
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.state.ttl import Lifetime, cleaned_until_us

_POSITIONS = 2
"""Files of positions that are allowed for each file of changes: they are small, and mostly go with a compaction."""


@dataclass(frozen=True)
class CompactionPolicy:
    """When to compact an operator.

    Args:
        max_files: of changes that one key group may lie behind; at least 2. A micro-batch opens them all.
        max_ratio: of changed rows to entries: bounds what is read in vain, and how often an entry is written again
            for one change.
        min_entries: fewer entries count as if they were so many: little state is cheap to read.
        max_expired: share of the bases' entries that may have expired; more than 1 for any. Counted are bases from
            before all that still lives, in operators that keep nothing for ever and have set no timer.

    Raises:
        ConfigurationError: a number is out of its range.

    Example:
        >>> CompactionPolicy(max_files=64).max_ratio
        4.0
    """

    max_files: int = 32
    max_ratio: float = 4.0
    min_entries: int = 100_000
    max_expired: float = 0.5

    def __post_init__(self) -> None:
        for name, value, least in (
            ("max_files", self.max_files, 2),
            ("max_ratio", self.max_ratio, 0),
            ("min_entries", self.min_entries, 0),
            ("max_expired", self.max_expired, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
                raise ConfigurationError(f"CompactionPolicy: {name} must be at least {least}, not {value!r}")


@dataclass(frozen=True)
class CompactionNeed:
    """What reading an operator's state takes, and whether that is a reason to fold it.

    Attributes:
        files: of changes that lie on the bases, or on one another, at the most in any key group.
        entries: in the bases, or in the states that are counted as of the last row, where these have more.
        reason: to compact, for people; empty where there is none.
    """

    files: int
    rows: int
    entries: int
    expired: int = 0
    reason: str = ""


def compaction_need(path: Sequence[CheckpointRow], uid: str, policy: CompactionPolicy) -> CompactionNeed:
    """Whether the keyed state of an operator at the end of a path should be compacted."""
    held = keyed_state_files(path, uid)
    base, changes = [one.file for one in held.base], [one.file for one in held.changelog]
    files = _most_upon_one_another(changes)
    last = path[-1].operator(uid) if path else None
    counted_now = sum(last.entries.values()) if last is not None else 0
    rows, based = sum(f.rows for f in changes), sum(f.rows for f in base)
    entries = max(based, counted_now)
    expired = sum(f.rows for f in _expired(path, uid, base))
    reason = ""
    if files >= policy.max_files:
        reason = f"{counted(files, 'file')} of changes, the policy allows {policy.max_files}"
    elif rows and rows >= policy.max_ratio * max(entries, policy.min_entries):
        reason = f"{counted(rows, 'change')} on {counted(entries, 'entry')}"
    elif expired and expired >= policy.max_expired * based:
        reason = f"{expired:,} of {counted(based, 'entry has', 'entries have')} expired"
    return CompactionNeed(files, rows, entries, expired, reason)


def _expired(path: Sequence[CheckpointRow], uid: str, base: Sequence[DataFile]) -> list[DataFile]:
    """The files of bases in which nothing lives any more.

    Where something is kept for ever, or a timer, a base may hold nothing else; then there would be a reason for ever.
    """
    last = path[-1].operator(uid) if path else None
    if last is None or last.next_timers_ms or not base:
        return []
    states = [state for state in last.states if state.name != TIMERS]
    stood_for = {b.checkpoint_id for b in last.bases}
    rows = {row.checkpoint_id: row for row in path if row.checkpoint_id in stood_for}
    passed = {
        i for i, row in rows.items() if states and all(_has_passed(uid, s, row, path[-1]) for s in states)
    }
    ranges = [b for b in last.bases if b.checkpoint_id in passed]
    return [
        file
        for file in base
        if any(b.key_group_start <= (file.key_group_min or 0) <= b.key_group_end for b in ranges)
    ]


def _has_passed(uid: str, state: StateSchema, since: CheckpointRow, now: CheckpointRow) -> bool:
    """Whether everything that a state held as of a checkpoint, and that was not renewed, has expired by another one."""
    life = Lifetime.recorded(state.ttl)
    until_us = cleaned_until_us(state.ttl, clock_ms=now.clock_ms, watermark_ms=now.watermark_of(uid))
    if life is None or until_us is None:
        return False
    written_ms = life.now_ms(clock_ms=since.clock_ms, watermark_ms=since.watermark_of(uid))
    return written_ms is not None and written_ms * 1000 <= until_us


@dataclass(frozen=True)
class CompactionDue:
    """What reading a job's state takes, and whether folding it is worth it.

    Attributes:
        reasons: to compact, by operator; empty where there is none.
        positions: why the positions of sources should be stated whole; empty where there is no reason.
        files: of changes on one another, at the most in any key group of any operator.
        rows, entries: changes, and entries, over all operators; see ``CompactionNeed``.
    """

    reasons: Mapping[str, str]
    positions: str = ""
    files: int = 0
    rows: int = 0
    entries: int = 0

    def __bool__(self) -> bool:
        return bool(self.reasons or self.positions)

    @property
    def reason(self) -> str:
        """Why a compaction is due, or is not, as one line."""
        if self:
            operators = [f"operator '{uid}': {reason}" for uid, reason in self.reasons.items()]
            return "; ".join([*operators, *filter(None, [self.positions])])
        return (
            f"{counted(self.files, 'file')} of changes on top of one another, {counted(self.rows, 'change')} "
            f"on {counted(self.entries, 'entry')}"
        )


def compaction_due(path: Sequence[CheckpointRow], policy: CompactionPolicy) -> CompactionDue:
    """Whether the state of a job at the end of a path should be compacted: of which operators, or its positions."""
    needs = {o.uid: compaction_need(path, o.uid, policy) for o in (path[-1].operators if path else [])}
    positions = len(position_files(path))
    return CompactionDue(
        {uid: need.reason for uid, need in needs.items() if need.reason},
        f"{counted(positions, 'file')} of source positions"
        if positions >= _POSITIONS * policy.max_files
        else "",
        files=max((need.files for need in needs.values()), default=0),
        rows=sum(need.rows for need in needs.values()),
        entries=sum(need.entries for need in needs.values()),
    )


def _most_upon_one_another(files: Sequence[DataFile]) -> int:
    """The largest number of files that may hold one key group.

    Example:
        >>> one, two = (DataFile("a", 1, 1, 0, low, high) for low, high in ((0, 63), (64, 127)))
        >>> _most_upon_one_another([one, two, two])
        2
    """
    steps: dict[int, int] = {}
    for file in files:
        low, high = file.key_group_min or 0, file.key_group_max or 0
        steps[low] = steps.get(low, 0) + 1
        steps[high + 1] = steps.get(high + 1, 0) - 1
    return max(accumulate(steps[group] for group in sorted(steps)), default=0)
