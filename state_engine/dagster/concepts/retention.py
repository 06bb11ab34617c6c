"""Retention: the asset ``retention``, which checkpoints can be restored, and the files that nobody needs."""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import dagster as dg
from pydantic import Field

from state_engine.core.checkpoints.file_disposal import Disposal
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.counted_nouns import counted
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.metadata import markdown
from state_engine.dagster.operations import OperationRun, operation, operation_spec, result
from state_engine.operations.file_collector import VacuumReport

ABOUT = """Checkpoints that can be restored, and files: those that nobody needs can go.

A plain click shows what would go: checkpoints that are neither among the last ten nor younger than a week, never one
that a savepoint or an open replay needs, and files that nobody needed for a day. With `dry_run: false` they go."""

_WEEK_HOURS = 168.0
_LOGGED_EVERY_FILES = 1000


class ExpireConfig(dg.Config):
    """What to keep; everything has a default."""

    keep_last: int = Field(default=10, ge=1, description="How many checkpoints of the head's path to keep.")
    keep_hours: float = Field(
        default=_WEEK_HOURS, ge=0, description="Also keep all that are younger than this; 0 for none."
    )
    drop_branches: list[str] = Field(
        default=[], description="Branches of replays that nobody is going to promote."
    )
    vacuum: bool = Field(default=True, description="Also delete files that nobody needs.")
    orphan_age_hours: float = Field(
        default=24.0, ge=24, description="Hours for which a file stays after it was written, or needed last."
    )
    dry_run: bool = Field(default=True, description="Only show what would go.")


def definitions(dagster_job: DagsterJob) -> dg.Definitions:
    about = "Expire old checkpoints, and delete files that nobody needs."
    spec = operation_spec(dagster_job, "retention", ABOUT)
    return operation(dagster_job, spec, "expire", _expire, ExpireConfig, about)


def _expire(run: OperationRun, config: ExpireConfig) -> Iterator[dg.MaterializeResult[None]]:
    if run.never_ran():
        return
    younger_ms = int(timedelta(hours=config.keep_hours) / timedelta(milliseconds=1))
    policy = RetentionPolicy(config.keep_last, younger_ms or None)
    done: VacuumReport | None = None
    with run.committing():
        expired = run.engine.expire_checkpoints(
            run.job,
            policy,
            drop_branches=config.drop_branches,
            dry_run=config.dry_run,
            requested_by=run.requested_by,
        )
        run.log(f"{'would expire' if config.dry_run else 'expired'} {expired or 'no checkpoint'}")
        if config.vacuum:
            done = run.engine.vacuum(
                run.job,
                orphan_age=timedelta(hours=config.orphan_age_hours),
                dry_run=config.dry_run,
                on_progress=_Progress(run),
                requested_by=run.requested_by,
            )
    history = History(run.rows())
    gone = history.expired
    version = max((i for i, row in history.items() if row.retired), default=0)
    metadata = {
        "dry_run": config.dry_run,
        "expired": dg.MetadataValue.json(expired),
        "restorable": len(history) - len(gone),
        "expired_so_far": len(gone),
    }
    if done is not None:
        table = Counter((f.step, f.why.split(" of attempt")[0]) for f in done.files)
        metadata |= {
            "files_deleted": len(done.deleted),
            "files_removed_from_logs": len(done.removed),
            "bytes_deleted": done.bytes_deleted,
            "files": dg.MetadataValue.md(
                markdown(["step", "why", "files"], [[*at, number] for at, number in sorted(table.items())])
            ),
        }
    yield result(version, metadata)


class _Progress:
    """Logs now and then how many files are done."""

    def __init__(self, run: OperationRun) -> None:
        self._run, self._count = run, 0

    def __call__(self, file: Disposal) -> None:
        self._count += 1
        if self._count % _LOGGED_EVERY_FILES == 0:
            self._run.log(
                f"{counted(self._count, 'file is', 'files are')} done, {file.path} the last of them"
            )
