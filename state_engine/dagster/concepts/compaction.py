"""Compaction: the asset ``base``, what keyed state is folded into, so that reading it stays cheap."""

# No "from __future__ import annotations" in the files of this package: Dagster reads the annotations of functions.
from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from state_engine import CheckpointRow
from state_engine.core.checkpoints.compaction_policy import CompactionPolicy, compaction_due
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.operations import OperationRun, operation, operation_spec, result, since
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores.files import normal_uri

ABOUT = """What the keyed state is folded into: one sorted file a key group, without what was deleted or has expired.

A plain click compacts the operators that the policy of the job has a reason for. Micro-batches go on meanwhile
and never fail by it; if the head moves to another path, the work is dropped."""


class CompactConfig(dg.Config):
    """Configuration of a compaction; all of it is optional."""

    operators: list[str] = Field(
        default=[], description="Uids of the operators to compact; all of them by default."
    )
    force: bool = Field(
        default=False, description="Compact everything that changed, even if it is not worth it yet."
    )


def definitions(dagster_job: DagsterJob) -> dg.Definitions:
    layout = JobLayout(normal_uri(dagster_job.root), dagster_job.name)
    uris = {
        f"base of {uid}": layout.base(uid) for uid, node in dagster_job.job.operators.items() if node.keyed
    }
    first = next(iter(uris.values()), None)
    metadata = {**uris, **({"dagster/uri": first} if first else {})}
    spec = operation_spec(dagster_job, "base", ABOUT, metadata=metadata)
    return operation(
        dagster_job, spec, "compact", _compact, CompactConfig, "Fold the changes of keyed state."
    )


def _compact(run: OperationRun, config: CompactConfig) -> Iterator[dg.MaterializeResult[None]]:
    if run.never_ran():
        return
    policy = run.job.compaction or CompactionPolicy()
    due = compaction_due(run.path(), policy)
    metadata: dict[str, object] = {"due": due.reason}
    if due or config.force or config.operators:
        run.log(f"compacting: {due.reason}")
        wanted = config.operators or (None if config.force else list(due.reasons))
        with run.committing():
            done = run.engine.compact(
                run.job, wanted, requested_by=run.requested_by, on_progress=run.log_tasks
            )
        metadata |= {
            "folded_checkpoint_id": done.checkpoint_id,
            "dropped": bool(done.entries) and done.committed_id is None,
            "new_entries": sum(done.entries.values()),
            "new_bytes": sum(done.bytes.values()),
        }
    else:
        run.log(f"not worth a compaction: {due.reason}")
    path = run.path()
    after = compaction_due(path, policy)
    metadata |= {"changelog_files": after.files, "changelog_rows": after.rows, "base_rows": after.entries}
    yield result(since(path, _bases), metadata)


def _bases(row: CheckpointRow) -> object:
    return {operator.uid: operator.bases for operator in row.operators if operator.bases}
