"""``JobSavepoints``: the savepoints of one job: made, listed, verified, deleted. Mirrors Flink's savepoints."""

from __future__ import annotations

import os
from collections.abc import Sequence

from state_engine.core.checkpoints.checkpoint import PinnedCheckpoint
from state_engine.core.checkpoints.savepoint_manifest import SavepointManifest
from state_engine.core.errors import ConfigurationError
from state_engine.core.names import check_name
from state_engine.engine.arguments import job_name
from state_engine.engine.context import EngineContext
from state_engine.engine.guard import guarded
from state_engine.job.job import StatefulJob
from state_engine.operations.head_operations import RestoreReport
from state_engine.operations.savepoint_import import ImportOptions, import_savepoint
from state_engine.operations.savepoints import SavepointReport, Savepoints, described, verified
from state_engine.spark.task_progress import OnProgress, task_progress
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores.files import join, normal_uri


@guarded
class JobSavepoints:
    """Savepoints of one job; from ``StateEngine.savepoints``."""

    def __init__(self, context: EngineContext, job: StatefulJob | str) -> None:
        job_name(job)  # refuses what is neither a job nor a name
        self.context, self._job = context, job

    def create(
        self,
        name: str,
        path: str | os.PathLike[str] | None = None,
        *,
        checkpoint_id: int | None = None,
        requested_by: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> SavepointReport:
        """Copy a checkpoint, whole, into a directory that can be moved and restored anywhere; micro-batches go on.

        Args:
            name: ``[a-z][a-z0-9_]*``, unique in the job.
            path: an empty or new directory; by default ``savepoints/<name>`` beside the job's tables.
            checkpoint_id: the head by default.
            on_progress: called with how many tasks are done, and of how many, from another thread.

        Raises:
            ConfigurationError: the name is taken, the directory is not empty, or there is no such checkpoint.
        """
        name, at = check_name(name, what="savepoint"), path
        if at is None:
            at = join(JobLayout(self.context.root, job_name(self._job)).directory, "savepoints", name)
        with task_progress(self.context.spark, on_progress):
            return self._savepoints(requested_by).create(name, normal_uri(at), checkpoint_id=checkpoint_id)

    def list(self) -> dict[str, PinnedCheckpoint]:
        """All savepoints of the job that are kept, by name."""
        tables = self.context.existing(job_name(self._job))
        return dict(tables.log.load().pins) if tables else {}

    def verify(self, savepoint: str | os.PathLike[str]) -> SavepointReport:
        """Read all of a savepoint and compare it with its checksums.

        Args:
            savepoint: name of one of this job, or directory of any.

        Raises:
            MissingFilesError: it is damaged, or there is none.
        """
        pin = self.list().get(str(savepoint))
        uri = normal_uri(pin.path if pin else savepoint)
        return described(uri, verified(uri))

    def delete(
        self,
        name: str,
        *,
        keep_files: bool = False,
        dry_run: bool = False,
        requested_by: str | None = None,
    ) -> Sequence[str]:
        """Delete the files of a savepoint, and let retention have its checkpoint.

        Files are deleted by name, and only where the directory still holds this very savepoint.

        Args:
            keep_files: only let retention have the checkpoint.
            dry_run: only report which files would be deleted.

        Returns:
            The files that are deleted.

        Raises:
            ConfigurationError: there is no such savepoint, or something else lies where it was made.
        """
        return self._savepoints(requested_by).delete(name, keep_files=keep_files, dry_run=dry_run)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _savepoints(self, requested_by: str | None) -> Savepoints:
        context, tables = self.context, self.context.ran(job_name(self._job))
        return Savepoints(
            kernel=context.kernel,
            tables=tables,
            positions=context.positions(tables.layout.job),
            spark=context.spark,
            maintenance=context.maintenance(self._job, requested_by),
            publication=context.publication(tables),
            declared=context.declared(tables, self._job),
        )


def restore_savepoint(
    context: EngineContext,
    job: StatefulJob | str,
    savepoint: str | os.PathLike[str],
    manifest: SavepointManifest,
    options: ImportOptions,
) -> RestoreReport:
    """Copy a savepoint of another job, or of another root, into a job that has not run yet."""
    path = normal_uri(savepoint)
    if not isinstance(job, StatefulJob):
        raise ConfigurationError(
            f"to copy the savepoint {path} into job '{job}', give the StatefulJob itself: its operators are matched"
        )
    job.check()
    tables, positions = context.tables(job.name), context.positions(job.name)
    return import_savepoint(job, path, manifest, tables=tables, positions=positions, options=options)
