"""Strains: what will become a failure when nobody looks: lag that grows old, state that outgrows its history, skew.

Pure. Each limit has a default that fits most jobs, and the guide on monitoring gives its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from statistics import median

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError
from state_engine.core.state.descriptors import TIMERS
from state_engine.monitoring.source_lag import SourceLag
from state_engine.telemetry.measurements import StateSize

WINDOW = 10
"""Micro-batches whose growth is compared: few enough to be soon, and more than one unusual one."""
_FEWEST_WINDOWS, _MOST_WINDOWS = 4, 20
_LEAST_SHARE = 0.1
"""Growth by less than such a part of a state in one window is none that matters."""
_FEWEST_ROWS = 100_000
"""Stored rows below which skew costs nothing."""


@dataclass(frozen=True)
class HealthLimits:
    """Beyond these a job is strained: ``statelake status`` ends with 1, and Dagster's check ``moves_on`` warns.

    Attributes:
        lag: how long data may wait while micro-batches are committed.
        growth: how many times as many entries as usual a row of input may add to a state.
        skew: stored rows of the fullest subtask, as a multiple of the mean.
        partitions: time partitions that may be over and not run.

    Raises:
        ConfigurationError: a limit is not above 0.

    Example:
        >>> HealthLimits(lag=timedelta(hours=6)).skew
        3.0
    """

    lag: timedelta = timedelta(hours=1)
    growth: float = 3.0
    skew: float = 3.0
    partitions: int = 3

    def __post_init__(self) -> None:
        for name, limit in (("lag", self.lag.total_seconds()), ("growth", self.growth), ("skew", self.skew)):
            if not limit > 0:
                raise ConfigurationError(f"the limit of {name} must be above 0, not {limit:g}; inf is none")


def strains(
    path: Sequence[CheckpointRow],
    states: Sequence[StateSize],
    behind: Mapping[str, SourceLag],
    *,
    partitions_waiting: int | None,
    now_ms: int,
    limits: HealthLimits,
) -> list[str]:
    """What is beyond its limit, each with what to do; none for a job that never ran."""
    if not path:
        return []
    since_s = now_ms / 1000 - path[0].created_at.timestamp()
    return [
        *_lags(path, behind, since_s, limits),
        *_partitions(partitions_waiting, limits),
        *(text for size in states for text in _growths(path, size, limits)),
        *_skews(states, limits),
    ]


def _lags(
    path: Sequence[CheckpointRow], behind: Mapping[str, SourceLag], since_s: float, limits: HealthLimits
) -> Iterator[str]:
    """Files may be older than the job: it can be behind for as long as it exists."""
    for source, lag in behind.items():
        waits_s = min(lag.seconds or 0.0, since_s)
        if waits_s > limits.lag.total_seconds():
            yield (
                f"source '{source}' has data that waits for {timedelta(seconds=int(waits_s))}, though the job runs: "
                "run it more often, give it more subtasks, or let a micro-batch take more"
            )


def _partitions(waiting: int | None, limits: HealthLimits) -> Iterator[str]:
    if waiting is not None and waiting > limits.partitions:
        yield f"{counted(waiting, 'time partition is', 'time partitions are')} over and not run: run the job more often"


def _growths(path: Sequence[CheckpointRow], size: StateSize, limits: HealthLimits) -> Iterator[str]:
    last = path[-1].operator(size.operator)
    for state in last.states if last else ():
        if state.name == TIMERS:
            continue
        growth = growth_of(path, size.operator, state.column_name)
        if growth is None or growth.added < _LEAST_SHARE * max(growth.before, 1):
            continue
        if growth.by_row > limits.growth * max(growth.usual_by_row, 0.0):
            yield (
                f"state '{state.name}' of operator '{size.operator}' grew by {counted(growth.added, 'entry')} in "
                f"{counted(WINDOW, 'micro-batch')}, {growth.by_row:.2g} a row of input, and "
                f"{growth.usual_by_row:.2g} are usual: "
                "look for keys that are new each time, or give the state a TTL"
            )


@dataclass(frozen=True)
class Growth:
    """How a state grew over the newest micro-batches, and before.

    Attributes:
        before, added: entries at the begin of the newest ones, and since.
        by_row: entries that came for each row of input.
        usual_by_row: the median of that over the windows before.
    """

    before: int
    added: int
    by_row: float
    usual_by_row: float


def growth_of(path: Sequence[CheckpointRow], uid: str, column: str) -> Growth | None:
    """The growth of a state that micro-batches count; None where it is not counted, or its history is short."""
    counts: list[tuple[int, int]] = []  # entries, and rows of input up to there
    rows_in = 0
    for row in path:
        operator = row.operator(uid) if row.kind.is_micro_batch else None
        rows_in += row.rows_in if row.kind.is_micro_batch else 0
        if operator is not None and column in operator.entries:
            counts.append((operator.entries[column], rows_in))
    edges = counts[::-1][::WINDOW][: _MOST_WINDOWS + 2][::-1]
    if len(edges) < _FEWEST_WINDOWS + 2:
        return None
    rates = [(after[0] - before[0]) / max(after[1] - before[1], 1) for before, after in pairwise(edges)]
    (before, _), (after, _) = edges[-2:]
    return Growth(before, after - before, rates[-1], median(rates[:-1]))


def _skews(states: Sequence[StateSize], limits: HealthLimits) -> Iterator[str]:
    for size in states:
        rows = size.base_rows + size.changelog_rows
        if rows >= _FEWEST_ROWS and size.skew is not None and size.skew > limits.skew:
            yield (
                f"operator '{size.operator}': its fullest subtask holds {size.skew:.1f} times the mean of "
                f"{counted(rows, 'stored row')}, and all wait for it: give keys with very many rows a further column, "
                "or raise max_parallelism"
            )
