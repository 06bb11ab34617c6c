"""What a run reports to its caller: one ``BatchReport`` a committed micro-batch, together a ``RunReport``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from state_engine.core.checkpoints.checkpoint import ExpectationCount
from state_engine.core.functions.metrics import summed
from state_engine.microbatch.subtask.subtask_spec import SubtaskReport
from state_engine.state_tables.base import TableReport


@dataclass(frozen=True)
class CompactionReport:
    """What a compaction did.

    Attributes:
        checkpoint_id: whose state the bases hold.
        committed_id: the row that put them in force; None where there was nothing to do, or the head moved to another
            path meanwhile and the work was dropped.
        entries, bytes, key_groups: of the new bases, by operator.
    """

    checkpoint_id: int
    committed_id: int | None
    entries: dict[str, int]
    bytes: dict[str, int]
    key_groups: dict[str, int]


@dataclass(frozen=True)
class OperatorReport:
    """What one operator did in a batch.

    Attributes:
        uid: of the operator.
        rows_in, rows_out, rows_refused: over all subtasks.
        keys: distinct keys touched.
        changed_entries: rows written to the changelog.
        changelog_bytes: their size.
        group_rows: rows by key group, for skew.
        next_timers_ms: time of the first timer that is left, by domain.
        metrics: what the function's metrics say, summed over subtasks.
        entries_added: how many more entries each state has, by its column name; None where that is not known.
        subtasks: what each subtask reported.
    """

    uid: str
    rows_in: int
    rows_out: int
    rows_refused: int
    keys: int
    changed_entries: int
    changelog_bytes: int
    group_rows: dict[int, int]
    next_timers_ms: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    entries_added: dict[str, int | None] = field(default_factory=dict)
    subtasks: list[SubtaskReport] = field(repr=False, default_factory=list)

    @classmethod
    def of(cls, uid: str, subtasks: list[SubtaskReport]) -> OperatorReport:
        """Sums over subtasks."""
        files = [f for s in subtasks for f in s.changelog]
        return cls(
            uid=uid,
            rows_in=sum(s.rows_in for s in subtasks),
            rows_out=sum(s.rows_out for s in subtasks),
            rows_refused=sum(s.rows_refused for s in subtasks),
            keys=sum(s.keys for s in subtasks),
            changed_entries=sum(f.rows for f in files),
            changelog_bytes=sum(f.bytes for f in files),
            group_rows={g: n for s in subtasks for g, n in s.group_rows.items()},
            next_timers_ms=_first([s.next_timers_ms for s in subtasks]),
            metrics=summed([s.metrics for s in subtasks]),
            entries_added=_entries_added([s.entries_added for s in subtasks]),
            subtasks=subtasks,
        )


def _entries_added(parts: list[dict[str, int | None]]) -> dict[str, int | None]:
    """Sums by state; None where a subtask does not know its part."""
    total: dict[str, int | None] = {}
    for name, number in (item for part in parts for item in part.items()):
        known = total.get(name, 0)
        total[name] = None if known is None or number is None else known + number
    return total


def _first(firsts: list[dict[str, int]]) -> dict[str, int]:
    return {domain: min(f[domain] for f in firsts if domain in f) for f in firsts for domain in f}


@dataclass(frozen=True)
class BatchReport:
    """One committed micro-batch.

    Attributes:
        checkpoint_id: what it committed.
        rows_in: rows from the sources, after DataFrame code in between.
        rows_refused: rows set aside as dead letters.
        rows_out: rows published, by sink.
        bytes_written: over state, operator state, sinks and dead letters.
        operators: by uid, in the order they ran.
        seconds: wall time, publishing included.
        steps_s: wall time by step.
        steps_began_s: when each step began, on the clock of ``time.perf_counter`` of the process that ran it.
        delta_commits: commits that this batch made to Delta tables.
        partition: key of its time partition; empty in a continuous job.
        late_rows: rows that it found whose partition had been run before.
        behind_watermark: rows that were late by the watermark before them, by source; without sources that had none.
        tables: what published tables got; without those that stayed as they were.
        expectations: what was counted of each rule by row.
    """

    checkpoint_id: int
    rows_in: int
    rows_refused: int
    rows_out: dict[str, int]
    bytes_written: int
    operators: dict[str, OperatorReport]
    seconds: float
    steps_s: dict[str, float]
    delta_commits: int
    partition: str = ""
    late_rows: int = 0
    behind_watermark: dict[str, int] = field(default_factory=dict)
    tables: list[TableReport] = field(default_factory=list)
    expectations: list[ExpectationCount] = field(default_factory=list)
    steps_began_s: dict[str, float] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class RunReport:
    """All micro-batches of one ``StateEngine.run``.

    Attributes:
        job: name.
        batches: in order; empty where there was nothing new.
        caught_up: whether the sources had nothing more; False where ``max_batches`` ended the run.
        published_pending: checkpoints of earlier runs whose outputs this run published first.
        compactions: what was compacted between the micro-batches.
        files_waiting: files that no batch reads yet, each with the source and the reason.
        left_alone: sinks that earlier code published to and today's does not have, by name, and where they are.
        tables_pending: what published tables got before the first batch, because they did not show the head.
        outages: for which sources event time waits because they are down (``stale_after``), and since when.
    """

    job: str
    batches: list[BatchReport]
    caught_up: bool
    published_pending: list[int]
    compactions: list[CompactionReport] = field(default_factory=list)
    files_waiting: list[str] = field(default_factory=list)
    left_alone: dict[str, str] = field(default_factory=dict)
    tables_pending: list[TableReport] = field(default_factory=list)
    outages: list[str] = field(default_factory=list)

    @property
    def tables(self) -> list[TableReport]:
        """What published tables got, one move after the other."""
        return [*self.tables_pending, *(move for batch in self.batches for move in batch.tables)]

    @property
    def rows_in(self) -> int:
        """Rows read over all batches."""
        return sum(b.rows_in for b in self.batches)

    @property
    def rows_out(self) -> dict[str, int]:
        """Rows published over all batches, by sink."""
        return _summed(batch.rows_out for batch in self.batches)

    @property
    def behind_watermark(self) -> dict[str, int]:
        """Rows that were late by the watermark before them over all batches, by source."""
        return _summed(batch.behind_watermark for batch in self.batches)

    @property
    def broken(self) -> dict[str, int]:
        """Rows that break a rule over all batches, by rule; see ``DataStream.expect``."""
        return _summed({one.name: one.broken for one in batch.expectations} for batch in self.batches)

    @property
    def partitions(self) -> list[str]:
        """Time partitions that the run was through, in order; none where it had nothing to do."""
        return list(dict.fromkeys(b.partition for b in self.batches if b.partition))

    @property
    def late_rows(self) -> int:
        """Rows found whose partition had been run before."""
        return sum(b.late_rows for b in self.batches)

    @property
    def checkpoint_id(self) -> int | None:
        """The last checkpoint of the run."""
        return self.batches[-1].checkpoint_id if self.batches else None


def _summed(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for part in parts:
        total.update(part)
    return dict(total)
