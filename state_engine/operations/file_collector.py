"""``Collector``: deletes files that nobody needs any more: of expired checkpoints, and of attempts that crashed.

    1 time      of the storage that holds the files: ages are measured by nothing else
    2 look      every file of the job, in its own tables and in its sinks, and what checkpoints and logs say of it
    3 fence     where orphans are to go, commit a row that changes nothing, and look again: only what is seen after the
                fence counts
    4 remove    files of expired checkpoints from the logs of the job's own tables, one commit a table
    5 delete    by exact name, what left the logs long ago, or never was in one

Why an attempt that sleeps just before its commit loses nothing: if it chose its id before the fence, the id is taken,
and it begins anew. If it chose its id after the fence, it measured its age after the fence, too, and was at most twelve
hours old: then its files were younger than a day when the time was taken, which was before the fence, and they stay.

Each step may be repeated: after a crash the next collection goes on. Deciding is ``core.checkpoints.file_disposal``;
expiring checkpoints is ``Maintenance.expire_checkpoints``. Plays the part of Flink's ``SharedStateRegistry``, with an
age and a dry run. Decision 0009.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from state_engine.core.checkpoints.file_disposal import Disposal, Place, disposals
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.needed_files import Files, listed, unreachable
from state_engine.core.checkpoints.write_ids import MIN_ORPHAN_AGE_MS, write_id_in
from state_engine.core.errors import ConfigurationError, StatelakeError
from state_engine.job.graph import SinkNode
from state_engine.job.job_tables import JobTables
from state_engine.operations.job_files import JobFiles, known_sinks
from state_engine.operations.maintenance import Maintenance
from state_engine.publishing.publication import Publication
from state_engine.publishing.sink_places import Declared
from state_engine.sinks.file_moves import STAGED_PREFIX
from state_engine.storage.delta.kernel import DeltaKernel, InactiveFilesError
from state_engine.storage.stores.files import join, open_location
from state_engine.storage.stores.in_threads import in_threads
from state_engine.storage.stores.locks import table_lock
from state_engine.storage.stores.store_clock import StoreClock, same_store

ORPHAN_AGE = timedelta(milliseconds=MIN_ORPHAN_AGE_MS)
"""How long a file stays after it was written or needed, at least."""

OnFile = Callable[[Disposal], object]
_SHORTEST_VACUUM = timedelta(days=7)
"""Delta refuses less, and ought to: its own readers rely on it."""


@dataclass(frozen=True)
class VacuumReport:
    """What a collection did, or would do.

    Attributes:
        job: name.
        files: what was removed from the job's tables, and what was deleted, each with its size and why.
        dry_run: whether nothing was done.
        vacuumed: URIs of the tables that VACUUM went through.
    """

    job: str
    files: list[Disposal]
    dry_run: bool
    vacuumed: list[str] = field(default_factory=list)

    @property
    def removed(self) -> list[Disposal]:
        """Files that left the logs of the job's tables; a later collection deletes them."""
        return [f for f in self.files if f.step == "remove"]

    @property
    def deleted(self) -> list[Disposal]:
        """Files that are gone."""
        return [f for f in self.files if f.step == "delete"]

    @property
    def bytes_deleted(self) -> int:
        """Size of the files that are gone."""
        return sum(f.bytes for f in self.deleted)


class Collector:
    """Collects the garbage of one job.

    Args:
        publication: knows what sinks have not seen yet.
        sinks: that the job declares now; those that its checkpoints know are looked at anyway.
    """

    def __init__(
        self,
        job: str,
        *,
        tables: JobTables,
        kernel: DeltaKernel,
        maintenance: Maintenance,
        publication: Publication,
        sinks: Iterable[SinkNode] = (),
        declared: Declared = None,
    ) -> None:
        self._job, self._tables, self._kernel = job, tables, kernel
        self._maintenance, self._publication, self._declared = maintenance, publication, list(sinks)
        self._of_the_code = declared

    def collect(
        self,
        *,
        orphan_age: timedelta,
        now_ms: int | None = None,
        dry_run: bool = False,
        delta_vacuum: bool = False,
        on_progress: OnFile = lambda _: None,
    ) -> VacuumReport:
        """See ``StateEngine.vacuum``; ``now_ms`` is the time instead of the storage's, in milliseconds since 1970."""
        if orphan_age < ORPHAN_AGE:
            raise ConfigurationError(
                f"orphan_age must be at least {ORPHAN_AGE}, not {orphan_age}: attempts may commit until they are half "
                "as old, and their files would be deleted"
            )
        rows = self._rows()
        sinks = known_sinks(rows.values(), self._declared)
        ages = _Ages(orphan_age, self._tables, [sink.path for sink in sinks], now_ms)
        at = JobFiles(self._tables, self._kernel, sinks, removed_since_ms=ages.before_ms)
        planned = self._plan(at, ages)
        if not dry_run and any(d.why.startswith("orphan") for d in planned):
            self._maintenance.fence()
            planned = self._plan(at, ages)
        tables = at.vacuumed() if delta_vacuum else []
        if dry_run:
            for one in planned:
                on_progress(one)
        else:
            self._carry_out(planned, at, on_progress)
            _vacuum(self._kernel, tables, orphan_age + ages.machine_is_ahead())
        return VacuumReport(self._job, planned, dry_run, tables)

    # -- 2 look ----------------------------------------------------------------------------------------------------

    def _rows(self) -> History:
        history = self._tables.log.load()
        if not history:
            raise ConfigurationError(f"job '{self._job}' has no checkpoint yet: run it first")
        return history

    def _plan(self, at: JobFiles, ages: _Ages) -> list[Disposal]:
        rows = self._rows()
        unpublished = {
            row.checkpoint_id for row, _ in self._publication.unpublished(rows.main_path, self._of_the_code)
        }
        as_of = datetime.fromtimestamp(ages.before_ms("") / 1000, UTC)
        every, gone = listed(rows.values()), unreachable(rows, as_of=as_of, unpublished=unpublished)
        places = at.places()
        return [one for place in places for one in _of(place, every, gone, ages.before_ms(place.table))]

    # -- 4 remove, 5 delete ----------------------------------------------------------------------------------------

    def _carry_out(self, planned: list[Disposal], at: JobFiles, on_progress: OnFile) -> None:
        removed = [d for d in planned if d.step == "remove"]
        for table in dict.fromkeys(d.table for d in removed):
            here = [d for d in removed if d.table == table]
            self._remove(at.uri(table), {d.path for d in here})
            for one in here:
                on_progress(one)
        deleted = [d for d in planned if d.step == "delete"]
        for one in in_threads(lambda d: _delete(at.uri(d.table), d), deleted):
            on_progress(one)
        for uri, inside in sorted({(at.uri(d.table), _parent(d.path)) for d in deleted}):
            _drop_empty(uri, inside)

    def _remove(self, uri: str, paths: Collection[str]) -> None:
        """Take files out of a table, in one commit; those that somebody else took out meanwhile are no matter."""
        left = set(paths)
        while left:
            try:
                self._kernel.change(uri, add=[], remove=sorted(left))
                return
            except InactiveFilesError as error:
                left -= set(error.paths)


class _Ages:
    """Times before which a file must have been written to go; measured when this is made, and not again.

    Args:
        sinks: paths of the job's sinks, which may be on other storage, with a clock of its own.
        now_ms: the time for all of them; None to ask the storage.
    """

    def __init__(
        self, orphan_age: timedelta, tables: JobTables, sinks: Iterable[str], now_ms: int | None
    ) -> None:
        root, self._age_ms = tables.layout.root, orphan_age // timedelta(milliseconds=1)
        self._now_ms = tables.clock.now_ms() if now_ms is None else now_ms
        elsewhere = [path for path in sinks if now_ms is None and not same_store(path, root)]
        self._elsewhere = {path: _time_of(path) for path in elsewhere}

    def before_ms(self, table: str) -> int:
        """For the files of a place; milliseconds since 1970 by the clock of its storage."""
        return self._elsewhere.get(table, self._now_ms) - self._age_ms

    def machine_is_ahead(self) -> timedelta:
        """By how much this machine's clock, by which Delta's VACUUM goes, is ahead of the storage's."""
        return max(timedelta(0), timedelta(milliseconds=time.time_ns() // 1_000_000 - self._now_ms))


def _time_of(uri: str) -> int:
    """The time of a sink's storage; 1970, when nothing was old, where it cannot be asked."""
    try:
        return StoreClock(uri).now_ms() if open_location(uri).is_directory() else 0
    except (OSError, StatelakeError):
        return 0


def _of(place: Place, every: Files, gone: Files, before_ms: int) -> list[Disposal]:
    # sinks may be elsewhere than their checkpoints say, with a root that was moved; names are nowhere the same
    tables = [place.table] if place.owners is None else [table for table in every if "://" in table]
    return disposals(
        place,
        listed={f.path for table in tables for f in every.get(table, ())},
        needed={f.path for table in tables for f in every.get(table, set()) - gone.get(table, set())},
        written_before_ms=before_ms,
    )


def _delete(uri: str, one: Disposal) -> Disposal:
    at = open_location(join(uri, one.path))
    with suppress(FileNotFoundError):  # another collector was faster
        at.delete()
    return one


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _drop_empty(uri: str, inside: str) -> None:
    """Delete directories that nothing is left in; only those of one attempt, in which nobody writes any more."""
    while any(write_id_in(part) for part in inside.split("/")):
        at = open_location(join(uri, inside))
        if inside.startswith(STAGED_PREFIX) and not at.local:
            return  # a restore may bring files back to it between two steps, and only the sink's owner may move it
        with table_lock(uri) if inside.startswith(STAGED_PREFIX) else nullcontext():
            if at.listing(missing_ok=True):
                return
            with suppress(FileNotFoundError):
                at.delete_directory()
        inside = _parent(inside)


def _vacuum(kernel: DeltaKernel, uris: Iterable[str], orphan_age: timedelta) -> None:
    """Let Delta delete what its logs do not list, after at least ``orphan_age``."""
    session = kernel.spark.newSession()
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "true")
    # it would commit to the log, which takes the table's lock, for as long as micro-batches would have to wait
    session.conf.set("spark.databricks.delta.vacuum.logging.enabled", "false")
    hours = math.ceil(max(orphan_age, _SHORTEST_VACUUM) / timedelta(hours=1))
    for uri in uris:
        session.sql(f"VACUUM delta.`{uri}` RETAIN {hours} HOURS").collect()
