"""``JobSavepoints``: the savepoints of one job: made, listed, verified, deleted. Mirrors Flink's savepoints."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from state_engine.core.checkpoints.checkpoint import PinnedCheckpoint
from state_engine.core.checkpoints.retention import pins
from state_engine.core.names import check_name
from state_engine.engine.engine_base import job_name
from state_engine.job.job import StatefulJob
from state_engine.operations.savepoints import SavepointReport, described, verified
from state_engine.spark.lost_spark import telling_lost_processes
from state_engine.spark.task_progress import OnProgress, task_progress
from state_engine.storage.files import join, normal_uri
from state_engine.storage.layout import JobLayout
from state_engine.storage.storage_failures import kept_in_job

if TYPE_CHECKING:
    from state_engine.engine.engine_operations import EngineOperations


@telling_lost_processes
class JobSavepoints:
    """Savepoints of one job; from ``StateEngine.savepoints``."""

    def __init__(self, engine: EngineOperations, job: StatefulJob | str) -> None:
        self._engine, self.job, self.root = engine, job, engine.root

    @kept_in_job
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
            on_progress: told how many tasks are done, and of how many, from another thread.

        Raises:
            ConfigurationError: the name is taken, the directory is not empty, or there is no such checkpoint.
        """
        name, at = check_name(name, what="savepoint"), path
        if at is None:
            at = join(JobLayout(self._engine.root, job_name(self.job)).directory, "savepoints", name)
        with task_progress(self._engine.spark, on_progress):
            return self._engine._savepoints(self.job, requested_by).create(
                name, normal_uri(at), checkpoint_id=checkpoint_id
            )

    def list(self) -> dict[str, PinnedCheckpoint]:
        """All savepoints of the job that are kept, by name."""
        tables = self._engine._existing(job_name(self.job))
        return pins(tables.store.load()) if tables else {}

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

    @kept_in_job
    def delete(
        self,
        name: str,
        *,
        keep_files: bool = False,
        requested_by: str | None = None,
    ) -> None:
        """Delete the files of a savepoint, and let retention have its checkpoint.

        Files are deleted by name, and only where the directory still holds this very savepoint.

        Args:
            keep_files: only let retention have the checkpoint.

        Raises:
            ConfigurationError: there is no such savepoint, or something else lies where it was made.
        """
        self._engine._savepoints(self.job, requested_by).delete(name, keep_files=keep_files)
