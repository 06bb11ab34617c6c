"""``MaxParallelismChange``: gives the keyed state of a job another number of key groups while micro-batches go on.

The stored hash of a key gives its key group at any number of them, so keys are not read and no row is computed again:

    fold      the state at the head becomes new bases, one file a key group, which no reader sees yet
    commit    one row on that very head: from then on the bases are in force, with the new number
    again     where the head went on first: fold the key groups that changed since, and commit on the new head

After a few rounds it gives up, and nothing has happened. Micro-batches are not held up; one that is under way at the
commit gets ``StaleParentError``, for its rows are in key groups that are no more. Flink needs its State Processor API
for this, and a job that is stopped. Decision 0011.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from state_engine.core.checkpoints.checkpoint import BaseFile, CheckpointRow, OperatorCheckpoint
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.updates import continuing
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError, RescaleError, StaleParentError
from state_engine.core.keys.key_arrays import key_groups_in
from state_engine.core.keys.key_groups import KeyGroupRange, check_max_parallelism
from state_engine.core.operator_state.operator_state_ref import RAW
from state_engine.job.job import StatefulJob
from state_engine.job.job_tables import JobTables
from state_engine.operations.compaction import compacted, write_base
from state_engine.operations.head_operations import HeadOperations
from state_engine.operations.rescaling import plan_rescaling, wanted_parallelism
from state_engine.storage.state.listed_files import open_state_file
from state_engine.storage.state.located_files import StateFile, state_files

_ROUNDS = 5
"""How often the head may go on in between."""


@dataclass(frozen=True)
class _Folded:
    """Bases that are written, and not yet in force."""

    as_of: CheckpointRow
    files: dict[str, list[BaseFile]]


@dataclass(frozen=True)
class _InForce:
    """Puts bases in force, and with them another number of key groups."""

    folded: _Folded
    base_id: str
    max_parallelism: int

    def applied(self, row: CheckpointRow) -> CheckpointRow:
        return replace(row, operators=[self._changed(operator) for operator in row.operators])

    def _changed(self, operator: OperatorCheckpoint) -> OperatorCheckpoint:
        files = self.folded.files.get(operator.uid)
        if files is None:
            return operator
        return compacted(
            operator,
            files,
            base_id=self.base_id,
            checkpoint_id=self.folded.as_of.checkpoint_id,
            max_parallelism=self.max_parallelism,
        )


class MaxParallelismChange:
    """One change of the number of key groups of one job."""

    def __init__(
        self,
        job: StatefulJob,
        max_parallelism: int,
        operations: HeadOperations,
        tables: JobTables,
        spark: SparkSession,
    ) -> None:
        try:
            check_max_parallelism(max_parallelism)
        except ValueError as error:
            raise ConfigurationError(f"job '{job.name}': {error}") from None
        self._job, self._max, self._operations = job, max_parallelism, operations
        self._tables, self._spark = tables, spark
        self._attempt = tables.clock.attempt()

    def run(self, parallelism: int | Mapping[str, int] | None) -> CheckpointRow | None:
        """Write bases and put them in force, together with another parallelism; see ``StateEngine.rescale``.

        Args:
            parallelism: of all operators or by uid; None keeps what is in force.
        """
        wanted = {} if parallelism is None else wanted_parallelism(self._job, parallelism)
        folded: _Folded | None = None
        for _ in range(_ROUNDS):
            history, head = self._operations.published_head()
            planned = plan_rescaling(self._job, head, wanted, max_parallelism=self._max)
            if all(o.max_parallelism == self._max for o in head.operators):
                return (
                    self._operations.commit(CheckpointKind.RESCALE, head, history, planned)
                    if planned.changes
                    else None
                )
            _check_no_raw_state(self._job, head, self._max)
            folded = self._fold(history.path(head.checkpoint_id), folded)
            bases = _InForce(folded, self._attempt.write_id, self._max)
            if self._tables.log.load().next_id > history.next_id:
                continue  # the commit could only fail
            with suppress(StaleParentError):
                return self._operations.commit(
                    CheckpointKind.RESCALE, head, history, bases, planned, attempt=self._attempt
                )
        raise StaleParentError(
            f"job '{self._job.name}': micro-batches were committed {_ROUNDS} times while its state was written in "
            f"{counted(self._max, 'key group')}; nothing was changed. Pause the schedule of the job and rescale again"
        )

    def _fold(self, path: list[CheckpointRow], before: _Folded | None) -> _Folded:
        """Bases as of the end of a path, made from those of the round before where there was one."""
        head = path[-1]
        if before is None:
            return _Folded(head, {o.uid: self._write(path, o) for o in head.operators})
        self._check_went_on(path, before.as_of)
        # what is not in force yet is read as if it were: bases, and the changes since
        upon = continuing(
            head, CheckpointKind.RESCALE, head.checkpoint_id + 1, self._attempt, requested_by=""
        )
        path = [*path, _InForce(before, self._attempt.write_id, self._max).applied(upon)]
        return _Folded(
            head, {o.uid: self._again(path, o, before.files.get(o.uid)) for o in path[-1].operators}
        )

    def _again(
        self, path: list[CheckpointRow], operator: OperatorCheckpoint, known: list[BaseFile] | None
    ) -> list[BaseFile]:
        """Files of an operator's base, of which those are new whose key groups changed since they were written."""
        if known is None:  # it ran for the first time meanwhile
            return self._write(path, operator)
        changes = [f for f in state_files(self._tables.layout, path, operator.uid) if not f.is_base]
        groups = _key_groups(changes, self._max)
        if not groups:
            return known
        gone = [f for f in known if f.key_group_min in groups]
        kept = [f for f in known if f.key_group_min not in groups]
        made = self._write(path, operator, groups=groups, instead_of=gone)
        return sorted([*kept, *made], key=lambda f: f.key_group_min or 0)

    def _write(
        self,
        path: Sequence[CheckpointRow],
        operator: OperatorCheckpoint,
        *,
        groups: Sequence[int] | None = None,
        instead_of: Sequence[BaseFile] = (),
    ) -> list[BaseFile]:
        """Write files of a base and list them in its table; no checkpoint names them yet."""
        uid, base_id = operator.uid, self._attempt.write_id
        files = write_base(
            self._spark,
            self._tables.layout,
            path,
            uid,
            base_id=base_id,
            max_parallelism=self._max,
            key_groups=None if groups is None else [KeyGroupRange(g, g) for g in groups],
        ).files
        self._tables.list_base(operator, files, base_id, instead_of=instead_of)
        return files

    def _check_went_on(self, path: Sequence[CheckpointRow], as_of: CheckpointRow) -> None:
        """Raise StaleParentError where the head went elsewhere than on from the checkpoint that was folded."""
        now = {o.uid: o.max_parallelism for o in path[-1].operators}
        on_path = any(row.checkpoint_id == as_of.checkpoint_id for row in path)
        since = [row for row in path if row.checkpoint_id > as_of.checkpoint_id]
        transforms = [row for row in since if row.kind is CheckpointKind.TRANSFORM]
        rewritten = any(o.base_files for row in transforms for o in row.operators)
        if not on_path or rewritten or any(now.get(o.uid) != o.max_parallelism for o in as_of.operators):
            raise StaleParentError(
                f"job '{self._job.name}': another operation moved the head while the state of checkpoint "
                f"{as_of.checkpoint_id} was written in {counted(self._max, 'key group')}; nothing was changed. "
                "Rescale again"
            )


def _key_groups(files: Sequence[StateFile], max_parallelism: int) -> list[int]:
    """The key groups that any row of some files is in, whatever the groups were when it was written."""
    groups: set[int] = set()
    for file in files:
        hashes = open_state_file(file.listed).read(columns=["key_hash"])["key_hash"].to_numpy()
        groups |= key_groups_in(hashes, max_parallelism)
    return sorted(groups)


def _check_no_raw_state(job: StatefulJob, head: CheckpointRow, max_parallelism: int) -> None:
    """Raise RescaleError where functions keep bytes that may depend on the key groups as they are."""
    for ref in head.operator_state:
        raw = sorted(s.scheme for s in ref.states if s.scheme in RAW and any(p.elements for p in s.parts))
        if raw:
            raise RescaleError(
                f"job '{job.name}', operator '{ref.operator}': it has raw state ({', '.join(raw)}), bytes of a subtask "
                "or key group that only its function can take apart: its max parallelism cannot become "
                f"{max_parallelism}. Run a version that moves the bytes into keyed or operator state first"
            )
