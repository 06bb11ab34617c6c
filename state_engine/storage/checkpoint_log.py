"""``CheckpointLog``: reads and commits rows of the ``checkpoints`` table.

A row is the commit point of everything, and ``commit`` is the only way to add one: each row is checked against all
invariants and against its requirement, on the very rows that it lands on, also when another row came first and it is
tried again. The transaction id (application ``<root id>/<job>``, version = checkpoint id) lets exactly one attempt
commit an id; the outcome of an unclear commit is looked up in the table, never guessed. Rows are small and immutable,
so they are kept in memory and only new files are read.

Every row comes in a file of its own, which whoever opens the job reads. ``merge`` makes one of many: of 64 files of one
row each, then of 64 of those, so there are never more than some hundred, and a row is written again twice at the most
in the first quarter of a million. Plays the part of Flink's ``CompletedCheckpointLog``. Decision 0033.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import Lock

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import ROW_TYPE, CheckpointRow
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.invariants import violations
from state_engine.core.checkpoints.updates import LeaveOut, Requirement, Update, row_of
from state_engine.core.checkpoints.write_ids import LATE_ATTEMPT_AGE_MS, MAX_ATTEMPT_AGE_MS, written_at_ms
from state_engine.core.errors import (
    CommitFailedError,
    CommitUnknownError,
    InvariantError,
    RootError,
    StaleParentError,
    StatelakeError,
)
from state_engine.storage.checkpoint_files import read_checkpoints, read_tables, with_digests, write_rows
from state_engine.storage.delta.kernel import (
    DeltaKernel,
    FileGroup,
    InactiveFilesError,
    Transaction,
    TransactionTakenError,
)
from state_engine.storage.layout import (
    CHECKPOINTS_SCHEMA,
    FORMAT_VERSION,
    ROOT_PROPERTY,
    TABLE_PROPERTIES,
    JobLayout,
)
from state_engine.storage.stores import store_clock
from state_engine.storage.stores.files import join, open_location, write_parquet

_LOG = logging.getLogger(__name__)
_LOGGED = (
    "checkpoint_id",
    "parent_id",
    "kind",
    "branch",
    "write_id",
    "rows_in",
    "rows_refused",
    "partition",
    "requested_by",
)
"""What the log says of a row."""
_MERGED = re.compile(r"checkpoints-(\d+)-")
"""Begins the name of a merged file; how often its rows were merged follows."""


class CheckpointLog:
    """The checkpoints of one job.

    Args:
        clock: of the storage; attempts got their names from it.
        verify: raises CommitFailedError where files that a row lists are not there, or are not whole.
        merged_files: so many files of one size are made one.
    """

    def __init__(
        self,
        kernel: DeltaKernel,
        layout: JobLayout,
        root_id: str,
        *,
        clock: store_clock.StoreClock | None = None,
        verify: Callable[[CheckpointRow], None] = lambda _: None,
        merged_files: int = 64,
    ) -> None:
        self._clock, self._verify = clock or store_clock.StoreClock(layout.root), verify
        self._overtaken: set[str] = set()
        self._merged_files = merged_files
        self._kernel, self._uri, self._job = kernel, layout.checkpoints, layout.job
        self._dead_letters = layout.dead_letters
        self._root_id, self.app = root_id, f"{root_id}/{layout.job}"
        self._history, self._keeping = History(), Lock()
        self._read: set[str] = set()
        self._version = -1

    def create(self) -> None:
        """Make the table if there is none; refuse one that is another job's."""
        properties = {
            **TABLE_PROPERTIES,
            "statelake.job": self._job,
            "statelake.format": str(FORMAT_VERSION),
            ROOT_PROPERTY: self._root_id,
        }
        if not self._kernel.create_table(self._uri, CHECKPOINTS_SCHEMA, properties=properties):
            self.check()

    def check(self) -> bool:
        """Whether the table exists; raises RootError where it is not this job's."""
        properties = self._kernel.properties(self._uri)
        if properties is None:
            return False
        check_owner(properties, self._uri, job=self._job, root_id=self._root_id)
        version = int(properties.get("statelake.format", "0"))
        if version > FORMAT_VERSION:
            raise RootError(
                f"{self._uri} has format {version}, this version reads up to {FORMAT_VERSION}: upgrade Statelake"
            )
        return True

    def load(self) -> History:
        """All committed rows by id, as of now."""
        version = self._kernel.version(self._uri)
        if version is None:
            return History()
        if version != self._version:
            new = [p for p in self._kernel.active_files(self._uri) if p not in self._read]
            self._keep(read_checkpoints(self._uri, new))
            self._read.update(new)
            self._version = version
        return self._history

    @property
    def history(self) -> History:
        """Rows as of the last ``load`` or ``commit``."""
        return self._history

    def _keep(self, rows: Iterable[CheckpointRow]) -> None:
        with self._keeping:
            self._history = self._history.with_rows(rows)

    def pass_over(self, name: str) -> None:
        """Read on without a file that is damaged; for repairs."""
        self._read.add(name)

    def commit(self, updates: Sequence[Update], requirement: Requirement) -> CheckpointRow:
        """Commit the row that updates make, where it may land on the rows as they are; the row.

        Its id is chosen first, and its age is measured afterwards: a collector that fenced in between has taken the id;
        one that fenced before that has deleted nothing of an attempt that is still young enough here. A row that is
        late, or that comes again after its id was taken, has all its files looked at.

        Args:
            requirement: of the rows that it lands on. Where it still holds after another row came first, the row is
                made again for what is there now, and tried again.

        Raises:
            StaleParentError: another row came first, and the requirement does not hold any more.
            CommitFailedError: nothing was committed; also where the attempt is too old, or its files are gone.
            CommitUnknownError: the outcome could not be looked up.
        """
        planned = row_of(updates)
        left_out = [name for update in updates if isinstance(update, LeaveOut) for name in update.names]
        history = self._history  # of one moment: another thread may load meanwhile
        row = requirement.landing(planned, history)
        while row is not None:
            if row.checkpoint_id != planned.checkpoint_id:
                self._overtaken.add(row.write_id)
            self._check(row, history)
            _LOG.debug("job '%s': %s on %s: %s", self._job, requirement, history, row.kind)
            try:
                self._append(row, instead_of=left_out)
                return row
            except StaleParentError:
                history = self.load()
                row = requirement.landing(planned, history)
                if row is None:
                    raise
        raise self._stale(planned)

    def _check(self, row: CheckpointRow, history: History) -> None:
        parent = history.get(row.parent_id) if row.parent_id is not None else None
        broken = violations(row, parent, history)
        if broken:
            details = "; ".join(f"{v.name}: {v.detail}" for v in broken)
            raise InvariantError(
                f"job '{self._job}': the {row.kind} {row.checkpoint_id} would break what must hold ({details}). "
                "Nothing was committed; this is a defect of the engine or a damaged table. Report it with this "
                "message; reading and restoring still work",
                broken=[v.name for v in broken],
            )

    def _append(self, row: CheckpointRow, *, instead_of: Sequence[str] = ()) -> None:
        """Append a row that was checked; see ``commit``."""
        # what commits listed is on the disk by now; what the row alone lists is made sure of here
        for staged in row.sinks:
            self._kernel.disk.files(staged.path, [file.path for file in staged.files])
        self._kernel.disk.files(self._dead_letters, [file.path for file in row.dead_letters])
        table = pa.Table.from_batches(
            [pa.RecordBatch.from_struct_array(ROW_TYPE.to_arrow([row], storage=True))], CHECKPOINTS_SCHEMA
        )
        table = with_digests(table)
        row = replace(row, digest=table["digest"][0].as_py())
        name = f"checkpoint-{row.checkpoint_id:012d}-{row.write_id}"
        file = write_rows(table, self._uri, name, write=write_parquet)
        age_ms = self._check_age(
            row, store_clock.written_ms(open_location(join(self._uri, file.path)).info())
        )
        if age_ms > LATE_ATTEMPT_AGE_MS or row.write_id in self._overtaken:
            self._verify(row)
        try:
            transaction = Transaction(self.app, row.checkpoint_id)
            if instead_of:
                add = [FileGroup([file])]
                version = self._kernel.change(self._uri, add=add, remove=instead_of, transaction=transaction)
            else:
                version = self._kernel.append(self._uri, [file], transaction=transaction)
        except (TransactionTakenError, CommitUnknownError) as error:
            # taken, too, may mean by ourselves: a write that succeeded and was repeated after a lost answer
            try:
                self._look_up(row, error)
            except StaleParentError:
                self._overtaken.add(row.write_id)
                raise
            self._kernel.outlasting(self._uri)
            self._log(row)
            return
        self._log(row)
        self._keep([row])
        self._read.add(file.path)
        if version == self._version + 1:
            self._version = version

    def merge(self) -> int:
        """Merge small files of rows into one, if there are enough; how many files went. The rows stay as they are."""
        if sum(_merged_times(name) == 0 for name in self._read) < self._merged_files:
            return 0
        gone, times = 0, 0
        by_times: dict[int, list[str]] = {}
        for name in sorted(self._kernel.active_files(self._uri)):  # which is by checkpoint
            by_times.setdefault(_merged_times(name), []).append(name)
        while len(names := by_times.get(times, [])) >= self._merged_files:
            times += 1
            merged = self._merge(names, times)
            if merged is None:
                break
            by_times.setdefault(times, []).append(merged)
            gone += len(names)
        return gone

    def _merge(self, names: list[str], times: int) -> str | None:
        """Merge files; the name of the new one, None where another runner was faster."""
        (table,) = read_tables(self._uri, names)  # all of them are ours
        ids = table["checkpoint_id"]
        name = f"checkpoints-{times}-{ids[0].as_py():012d}-{ids[-1].as_py():012d}-{self._clock.attempt().write_id}"
        file = write_rows(table, self._uri, name, write=write_parquet)
        try:
            self._kernel.change(self._uri, add=[FileGroup([file])], remove=names)
        except InactiveFilesError:  # the new file is an orphan
            return None
        self._read.difference_update(names)
        self._read.add(file.path)
        return file.path

    def _log(self, row: CheckpointRow) -> None:
        facts = {name: getattr(row, name) for name in _LOGGED if getattr(row, name) not in (None, "")}
        _LOG.info(
            "job '%s': checkpoint %d was committed (%s)", self._job, row.checkpoint_id, row.kind,
            extra={"job": self._job, **facts},
        )  # fmt: skip

    def _check_age(self, row: CheckpointRow, now_ms: int) -> int:
        """Refuse what an attempt wrote so long ago that it may have been collected as an orphan; its age in ms.

        Args:
            now_ms: when the storage wrote the row's file, which was a moment ago.
        """
        self._clock.saw(now_ms)
        began_ms = written_at_ms(row.write_id)
        age_ms = 0 if began_ms is None else now_ms - began_ms
        if age_ms > MAX_ATTEMPT_AGE_MS:
            raise CommitFailedError(
                f"job '{self._job}': the {row.kind} {row.checkpoint_id} (attempt {row.write_id}) began "
                f"{age_ms / 3_600_000:.1f} hours ago; after {MAX_ATTEMPT_AGE_MS // 3_600_000} hours an attempt "
                "stops, because its files may be collected as orphans. Nothing was committed; run again, with smaller "
                "batches if it really takes that long"
            )
        return age_ms

    def _look_up(self, row: CheckpointRow, error: TransactionTakenError | CommitUnknownError) -> None:
        """Find out what became of an unclear commit."""
        try:
            committed = self.load().get(row.checkpoint_id)
        except (StatelakeError, OSError) as failure:
            raise CommitUnknownError(
                f"job '{self._job}': checkpoint {row.checkpoint_id}: {error}. Looking it up failed too ({failure}). "
                "Run again when the storage answers: a committed checkpoint will be found, not repeated"
            ) from error
        if committed is None:
            if isinstance(error, CommitUnknownError):
                raise CommitFailedError(
                    f"job '{self._job}': checkpoint {row.checkpoint_id} was not committed ({error}); run again"
                ) from error
            raise self._stale(row) from error
        if committed.write_id != row.write_id:
            raise self._stale(row) from error

    def _stale(self, row: CheckpointRow) -> StaleParentError:
        winner = self.load().get(row.checkpoint_id)
        by = f" (attempt {winner.write_id}, requested by {winner.requested_by})" if winner else ""
        return StaleParentError(
            f"job '{self._job}': checkpoint {row.checkpoint_id} was committed by another runner{by}; "
            "nothing of this attempt is visible. Run again to go on from there"
        )


def check_owner(properties: Mapping[str, str], uri: str, *, job: str, root_id: str) -> None:
    """Refuse a table of checkpoints that is another job's, or another root's; raises RootError."""
    owner = properties.get("statelake.job")
    if owner != job:
        raise RootError(
            f"{uri} holds the checkpoints of "
            f"{f'job {owner!r}' if owner else 'nothing that this engine wrote'}, not of job '{job}': "
            "use another root or job name, or bring the state over with a savepoint"
        )
    root = properties.get(
        ROOT_PROPERTY, root_id
    )  # tables of older formats name none before they are upgraded
    if root != root_id:
        raise RootError(
            f"{uri} is of the root {root}, and the root's marker says {root_id}: the marker was altered, or the job's "
            "directory was brought from another root (use a savepoint for that). Nothing was run, because all "
            "outputs would be published again. statelake doctor --repair --dry-run shows what can be done"
        )


def _merged_times(name: str) -> int:
    """How often the rows of a file were merged.

    Example:
        >>> _merged_times("checkpoint-000000000007-w.parquet"), _merged_times("checkpoints-2-…-w.parquet")
        (0, 2)
    """
    match = _MERGED.match(name)
    return int(match[1]) if match else 0
