"""Restores: of a checkpoint or savepoint of the job itself, or of a savepoint that is copied into it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from state_engine.core.checkpoints.savepoint_manifest import SavepointManifest
from state_engine.core.errors import ConfigurationError, MissingFilesError, SinkError
from state_engine.engine.arguments import job_name
from state_engine.engine.context import EngineContext
from state_engine.job.job import StatefulJob
from state_engine.operations.head_operations import RestoreReport
from state_engine.operations.savepoint_import import ImportOptions, import_savepoint
from state_engine.operations.savepoints import savepoint_of
from state_engine.storage.stores.files import normal_uri


def checkpoint_or_manifest(
    context: EngineContext, job: StatefulJob | str, savepoint: str | os.PathLike[str]
) -> int | SavepointManifest:
    """The checkpoint of a savepoint of this very job; of any other, what it says of itself."""
    return savepoint_of(context.existing(job_name(job)), savepoint)


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
    tables = context.tables(job.name)
    return import_savepoint(
        job,
        path,
        manifest,
        tables=tables,
        positions=context.positions(job.name),
        options=options,
    )


@contextmanager
def sinks_of_unknown_code(job: StatefulJob | str, leave_alone: Collection[str]) -> Iterator[None]:
    """Adds the way out to errors of sinks, where nobody said which ones the code of the job has."""
    try:
        yield
    except (SinkError, MissingFilesError) as error:
        if isinstance(job, str) and not leave_alone:
            error.args = (
                f"{error}. If the job no longer writes to that sink, leave it alone: leave_alone=[…] "
                "(--leave-alone), or give the job itself",
            )
        raise
