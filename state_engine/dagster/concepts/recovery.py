"""Recovery: the asset ``head``, the checkpoint in force; whole, verified, and where somebody wants it to be."""

from collections.abc import Iterator
from typing import Any, Self, cast

import dagster as dg
from pydantic import Field, model_validator

from state_engine.core.counted_nouns import counted
from state_engine.core.errors import MissingFilesError
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.metadata import checkpoint_metadata, markdown, moves_table
from state_engine.dagster.operations import OperationRun, operation, operation_spec, result
from state_engine.monitoring.job_audit import files_are_there, outputs_are_published, summary_of
from state_engine.monitoring.job_history import read_history
from state_engine.operations.head_operations import RestoreReport
from state_engine.operations.outputs_policy import OutputsPolicy
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores.files import normal_uri

ABOUT = """The checkpoint in force, whole and verified.

A plain click finishes what a crash left behind (outputs that were committed and not published), then reads back that
every file of the head is there with the rows that were recorded. With `checkpoint_id` or `savepoint` it shows what
going back there would do; with `dry_run: false`, too, it goes back: state, source positions and sinks."""


class RecoverConfig(dg.Config):
    """Configuration of a recovery; all of it is optional."""

    checkpoint_id: int | None = Field(default=None, ge=1, description="Checkpoint to go back to.")
    savepoint: str | None = Field(
        default=None, min_length=1, description="Instead of a checkpoint: name or directory of a savepoint."
    )
    outputs: str = Field(
        default="withdraw",
        pattern="^(withdraw|keep)$",
        description="withdraw: outputs of what is left go from the sinks; keep: they stay, and come twice.",
    )
    outputs_of_sinks: dict[str, str] = Field(
        default={},
        description="Instead of outputs: withdraw or keep by name of a sink, follow, keep or rebuild by that of a "
        "published table; the others withdraw, or follow.",
    )
    dry_run: bool = Field(default=True, description="Only show what going back would do.")

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if self.checkpoint_id is not None and self.savepoint is not None:
            raise ValueError("give either checkpoint_id or savepoint, not both")
        if not self.dry_run and self.checkpoint_id is None and self.savepoint is None:
            raise ValueError(
                "dry_run: false goes back to a checkpoint: name it by checkpoint_id or savepoint"
            )
        return self

    @property
    def wanted(self) -> bool:
        """Whether somebody wants to go back."""
        return self.checkpoint_id is not None or self.savepoint is not None


def definitions(dagster_job: DagsterJob) -> dg.Definitions:
    layout = JobLayout(normal_uri(dagster_job.root), dagster_job.name)
    spec = operation_spec(dagster_job, "head", ABOUT, metadata={"dagster/uri": layout.checkpoints})
    about = "Publish pending, verify, or go back to a checkpoint."
    return operation(dagster_job, spec, "recover", _recover, RecoverConfig, about, moves_head=True)


def _recover(run: OperationRun, config: RecoverConfig) -> Iterator[dg.MaterializeResult[None]]:
    if run.never_ran() and not config.savepoint:
        return
    metadata: dict[str, Any] = {}
    if config.wanted:
        metadata |= _restore(run, config)
    if not run.rows():  # a savepoint that was only looked at
        run.log(f"nothing was restored: {metadata}")
        return
    run.log("publishing what is not published yet")
    metadata["published_pending"] = dg.MetadataValue.json(run.engine.publish_pending(run.job))
    metadata |= _verified(run)
    head = run.path()[-1]
    yield result(head.checkpoint_id, {**checkpoint_metadata(head, None, run.history()), **metadata})


def _restore(run: OperationRun, config: RecoverConfig) -> dict[str, Any]:
    with run.committing():
        move = run.engine.restore(
            run.job,
            checkpoint_id=config.checkpoint_id,
            savepoint=config.savepoint,
            outputs=cast(OutputsPolicy, config.outputs_of_sinks or config.outputs),
            dry_run=config.dry_run,
            requested_by=run.requested_by,
        )
    run.log(f"{'would go' if config.dry_run else 'went'} from {move.replaced_id} to {move.checkpoint_id}")
    return {
        "dry_run": config.dry_run,
        "restored_checkpoint_id": move.checkpoint_id,
        "abandoned": dg.MetadataValue.json(move.abandoned),
        "sinks": dg.MetadataValue.md(_sinks(move)),
        **({"tables": dg.MetadataValue.md(moves_table(move.tables))} if move.tables else {}),
    }


def _sinks(move: RestoreReport) -> str:
    lines = [[s.name, move.rows_withdrawn[s.name], move.rows_added[s.name]] for s in move.sinks]
    return markdown(["sink", "rows out", "rows back"], lines)


def _verified(run: OperationRun) -> dict[str, Any]:
    history = read_history(run.engine.root, run.job.name)
    assert history is not None
    files, outputs = files_are_there(history), outputs_are_published(history)
    problems = [*files.problems, *outputs.problems]
    if problems:
        raise MissingFilesError(
            f"job '{run.job.name}': the head {history.path[-1].checkpoint_id} is not whole: {summary_of(problems)}. "
            "Restore an older checkpoint, or a savepoint into another root"
        )
    run.log(f"{counted(files.looked_at, 'file is', 'files are')} as recorded, all outputs are published")
    return {"verified_files": files.looked_at}
