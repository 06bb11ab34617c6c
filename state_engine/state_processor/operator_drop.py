"""``drop_operators``: operators leave a job that goes on, with their state, timers and operator state.

One row of kind ``transform`` upon the head, which no longer knows them; not a byte of state is written. Checkpoints
before it still hold them: a restore brings them back, and replays do not reach back over it. An operator that comes
back under the uid begins with nothing. Flink leaves such state behind by ``allowNonRestoredState``, from a savepoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.entry_counts import entry_counts
from state_engine.core.checkpoints.updates import DropOperators
from state_engine.core.errors import ConfigurationError
from state_engine.operations.head_operations import HeadOperations


@dataclass(frozen=True)
class OperatorDropReport:
    """What dropping operators did, or in a dry run would do.

    Attributes:
        job: name.
        parent_id: the head that held them.
        operators: by uid, entries or elements by state, timers as ``_timers``; None where the number is not known
            before a compaction.
        committed_id: the row; None in a dry run.
    """

    job: str
    parent_id: int
    operators: dict[str, dict[str, int | None]] = field(default_factory=dict)
    committed_id: int | None = None


def drop_operators(
    uids: Sequence[str],
    job: str,
    operations: HeadOperations,
    *,
    in_code: Sequence[str],
    dry_run: bool = False,
) -> OperatorDropReport:
    """See ``StateProcessor.drop_operators``.

    Args:
        in_code: uids of operators and names of sources that the job's code has, as far as it is known.
    """
    history, head = operations.published_head()
    path = history.path(head.checkpoint_id)
    sources = {source.name for source in head.sources}
    held = {o.uid for o in head.operators} | {r.operator for r in head.operator_state} - sources
    unknown = sorted(set(uids) - held)
    if unknown or not uids:
        raise ConfigurationError(
            f"job '{job}': checkpoint {head.checkpoint_id} holds no state of operators {unknown}; it holds that of "
            f"{sorted(held)}"
        )
    used = sorted(set(uids).intersection(in_code))
    if used:
        raise ConfigurationError(
            f"job '{job}': its code still has operators {used}: take them out of the code first, or give them "
            "another uid; to start one empty, that is enough"
        )
    sizes = {uid: _sizes(path, uid) for uid in dict.fromkeys(uids)}
    report = OperatorDropReport(job, head.checkpoint_id, sizes)
    if dry_run:
        return report
    row = operations.commit(CheckpointKind.TRANSFORM, head, history, DropOperators(tuple(uids)))
    return replace(report, committed_id=row.checkpoint_id)


def _sizes(path: Sequence[CheckpointRow], uid: str) -> dict[str, int | None]:
    """Entries of keyed states, and elements of others, by name."""
    operator, counts = path[-1].operator(uid), entry_counts(path, uid)
    sizes: dict[str, int | None] = {s.name: None for s in (operator.states if operator is not None else [])}
    sizes |= {name: count.entries for name, count in counts.items()}
    own = [state for ref in path[-1].operator_state if ref.operator == uid for state in ref.states]
    return sizes | {state.name: sum(part.elements for part in state.parts) for state in own}
