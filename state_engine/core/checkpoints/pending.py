"""What a path changes in sinks, and which of them may not show all of it.

A row in the foreground (every kind but compaction and retention) is committed only after all rows before it were
published. So at most the last of them is not, whatever became since of the sinks of older ones: nobody walks the path
again to publish, and a sink that was abandoned is asked for nothing.

    newest       the last row in the foreground: all that may wait
    unseen       what a sink does not show of the path
    behind       what a sink does not show although it was published: it was put back from a backup, or emptied
    left alone   sinks that today's code does not have; what they show is not looked up

Flink has no counterpart: its committers keep what they did not commit in their own state. Decision 0033.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from state_engine.core.checkpoints.checkpoint import CheckpointRow, StagedSink
from state_engine.core.checkpoints.row_outputs import SinkKey, publications, staged_sinks
from state_engine.core.incremental_fold import IncrementalFold

Seen = Callable[[StagedSink], int]
"""Asks a sink: the highest checkpoint that it has seen; 0 where it has seen none."""
Locate = Callable[[StagedSink], StagedSink]
"""A sink with the path that it has now."""


@dataclass(frozen=True)
class SinkChange:
    """What one row changes in one sink."""

    row: CheckpointRow
    staged: StagedSink

    @property
    def checkpoint_id(self) -> int:
        return self.row.checkpoint_id


@dataclass(frozen=True)
class SinkStatus:
    """What one sink shows of a path.

    Attributes:
        changes: all that the path changes in it, oldest first.
        unseen: of these, what it does not show.
        behind: of these, what was published to it before.
    """

    key: SinkKey
    seen: int
    changes: list[SinkChange]
    unseen: list[SinkChange]
    behind: list[SinkChange]


@dataclass(frozen=True)
class PathChanges:
    """What a path changes in sinks.

    Attributes:
        newest_id: the last row in the foreground; 0 where there is none.
        by_sink: changes by name and path of the sink, oldest first.
        declared: the sinks of today's code; None where it is not known.
    """

    newest_id: int
    by_sink: dict[SinkKey, list[SinkChange]]
    declared: Collection[SinkKey] | None = None

    def looked_at(self, *, since: int | None = None) -> list[SinkKey]:
        """The sinks that are asked what they show: those of today's code.

        Args:
            since: where the code is not known, those that this row or a later one changes; None for the newest only.
        """
        if self.declared is not None:
            return [key for key in self.by_sink if key in self.declared]
        first = self.newest_id if since is None else since
        return [key for key, changes in self.by_sink.items() if changes[-1].checkpoint_id >= first]

    def left_alone(self) -> list[SinkChange]:
        """The newest change of every sink that today's code does not have; none where the code is not known."""
        if self.declared is None:
            return []
        return [changes[-1] for key, changes in self.by_sink.items() if key not in self.declared]

    def shown(self, seen: Seen, *, since: int | None = None) -> Iterator[SinkStatus]:
        """What the sinks that are looked at show of the path. Arguments as for ``looked_at``."""
        for key in self.looked_at(since=since):
            changes = self.by_sink[key]
            newest = seen(changes[-1].staged)
            unseen = [change for change in changes if change.checkpoint_id > newest]
            behind = [change for change in unseen if change.checkpoint_id < self.newest_id]
            yield SinkStatus(key, newest, changes, unseen, behind)


def newest_in_foreground(path: Sequence[CheckpointRow]) -> int:
    """The last row of a path that may not be published yet; 0 where there is none."""
    return next((row.checkpoint_id for row in reversed(path) if not row.kind.is_in_background), 0)


def path_changes(
    path: Sequence[CheckpointRow],
    *,
    declared: Collection[SinkKey] | None = None,
    locate: Locate = lambda staged: staged,
) -> PathChanges:
    """What a path of ``main`` changes in sinks.

    Args:
        declared: name and path, as of now, of the sinks of today's code, dead letters included.
    """
    changes: dict[SinkKey, list[SinkChange]] = {}
    for row in path:
        for staged in map(locate, publications(row)):
            changes.setdefault((staged.name, staged.path), []).append(SinkChange(row, staged))
    return PathChanges(newest_in_foreground(path), changes, declared)


def last_of_sinks(path: Sequence[CheckpointRow]) -> list[CheckpointRow]:
    """The rows of a path that are the last to stage something, or to change something, for a sink; oldest first.

    They tell which sinks the path has, and the newest change of each, as well as the whole path does.
    """
    rows = {row.checkpoint_id: row for row in _LAST.of(path).values()}
    return [rows[i] for i in sorted(rows)]


def _with_last(last: LastRows, rows: Sequence[CheckpointRow]) -> LastRows:
    staged = {
        (one.name, one.path, one.changes_sink, row.branch): row for row in rows for one in staged_sinks(row)
    }
    return {**last, **staged}


LastRows = Mapping[tuple[str, str, bool, str], CheckpointRow]
"""By name and path of a sink, whether it is changed, and the branch: the last row."""
_LAST: IncrementalFold[CheckpointRow, LastRows] = IncrementalFold(_with_last, {}, weakly=True)


def in_order(shown: Iterable[SinkStatus]) -> list[SinkChange]:
    """What sinks do not show, oldest first."""
    return sorted((change for sink in shown for change in sink.unseen), key=lambda c: c.checkpoint_id)
