"""Whether a job is worth a compaction: by the engine's own rule, which a run follows between its micro-batches, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from state_engine import StatefulJob
from state_engine.core.checkpoint import CheckpointRow
from state_engine.core.compaction_policy import CompactionPolicy, compaction_need


@dataclass(frozen=True)
class CompactionDue:
    """What reading the state takes, and whether folding it is worth it.

    Attributes:
        reasons: to compact, by operator; empty where there is none.
        files: of changes upon one another, at the most in any key group of any operator.
        rows, entries: changes, and entries of bases, over all operators.
    """

    reasons: dict[str, str]
    files: int = 0
    rows: int = 0
    entries: int = 0

    @property
    def told(self) -> str:
        """As one line."""
        if self.reasons:
            return "; ".join(f"operator '{uid}': {reason}" for uid, reason in self.reasons.items())
        return f"{self.files} files of changes upon one another, {self.rows:,} changes upon {self.entries:,} entries"


def compaction_due(job: StatefulJob, path: Sequence[CheckpointRow]) -> CompactionDue:
    """Whether the state at the end of a path is worth a compaction, by the job's policy or else the default one."""
    policy = job.compaction or CompactionPolicy()
    needs = {o.uid: compaction_need(path, o.uid, policy) for o in (path[-1].operators if path else [])}
    return CompactionDue(
        {uid: need.reason for uid, need in needs.items() if need.reason},
        files=max((need.files for need in needs.values()), default=0),
        rows=sum(need.rows for need in needs.values()),
        entries=sum(need.entries for need in needs.values()),
    )
