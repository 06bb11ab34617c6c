"""``CheckpointKind``: what a row of ``checkpoints`` stands for, and what follows from that.

    kind          committed by                          in the background   moves the head   has state of its own
    checkpoint    a micro-batch                         –                   –                changes
    transform     the state processor                   –                   –                changes
    bootstrap     the state processor, as first row     –                   –                all of it
    import        a savepoint, as first row             –                   –                all of it
    compaction    a compaction                          yes                 –                the same, folded
    retention     retention, savepoints, erasing keys   yes                 –                –
    rescale       a change of parallelism               –                   –                –
    restore       a restore                             –                   yes              –
    promote       a promotion, the end of a backfill    –                   yes              –

Flink distinguishes checkpoints and savepoints by ``SnapshotType``; its other operations leave no trace in them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NoReturn

from state_engine.core.errors import RootError


class CheckpointKind(StrEnum):
    """The kind of a row; a row stores its value.

    Example:
        >>> CheckpointKind("compaction").is_in_background
        True
    """

    CHECKPOINT = "checkpoint"
    TRANSFORM = "transform"
    BOOTSTRAP = "bootstrap"
    IMPORT = "import"
    COMPACTION = "compaction"
    RETENTION = "retention"
    RESCALE = "rescale"
    RESTORE = "restore"
    PROMOTE = "promote"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise RootError(
            f"a checkpoint is of the kind '{value}', which this version does not know: a newer Statelake wrote it. "
            "Upgrade Statelake"
        )

    @property
    def is_micro_batch(self) -> bool:
        """Whether sources were read and outputs staged; replays repeat such rows; listeners are notified."""
        return self is CheckpointKind.CHECKPOINT

    @property
    def is_in_background(self) -> bool:
        """Whether it changes no state, no position and no sink: a micro-batch that it overtook may be put on it."""
        return self in (CheckpointKind.COMPACTION, CheckpointKind.RETENTION)

    @property
    def moves_head(self) -> bool:
        """Whether it takes ``main`` from its head to another path, and the sinks with it."""
        return self in (CheckpointKind.RESTORE, CheckpointKind.PROMOTE)

    @property
    def starts_elsewhere(self) -> bool:
        """Whether it continues another row than the head of its branch, or none."""
        return self.moves_head or self is CheckpointKind.IMPORT

    @property
    def begins_job(self) -> bool:
        """Whether it gives a job state before its first micro-batch: that of a savepoint, or of tables."""
        return self in (CheckpointKind.IMPORT, CheckpointKind.BOOTSTRAP)

    @property
    def changes_state(self) -> bool:
        """Whether it may list changes of keyed state, which are lost for a path that leaves it."""
        return self in (CheckpointKind.CHECKPOINT, CheckpointKind.TRANSFORM)

    @property
    def restores_state(self) -> bool:
        """Whether operator state is handed out again after it, union state included."""
        return self.begins_job or self is CheckpointKind.RESTORE

    @property
    def is_counted(self) -> bool:
        """Whether it is a checkpoint by itself; other rows hold the state of the one that they follow."""
        return self.changes_state or self.begins_job
