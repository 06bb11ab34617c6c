"""``EngineContext``: what operations on a state root work with: location, Spark session, tables of jobs.

Nothing here is an operation. Tables, publications and routers are kept, because making them costs reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from threading import get_ident
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from state_engine.core.checkpoints.history import History
from state_engine.core.choices import check_choice
from state_engine.core.errors import ConfigurationError
from state_engine.core.extras import optional
from state_engine.engine.arguments import job_name, requester
from state_engine.job.job import StatefulJob
from state_engine.job.job_tables import JobTables
from state_engine.machine.settings import load_settings
from state_engine.microbatch.coordinator import CheckpointCoordinator, RunOptions
from state_engine.microbatch.planning import InputPlanner, Steps
from state_engine.microbatch.routing.routing import Router
from state_engine.operations.file_collector import Collector
from state_engine.operations.head_operations import HeadOperations
from state_engine.operations.maintenance import Maintenance
from state_engine.publishing.publication import Publication
from state_engine.publishing.sink_places import Declared
from state_engine.sources.source_positions import SourcePositions
from state_engine.spark.engine_session import EngineSession, activate, active_session
from state_engine.spark.no_spark import has_spark
from state_engine.spark.session import check_is_classic, check_session, local_session
from state_engine.spark.shipping import ship_code
from state_engine.spark.stores import find_stores, reach_stores
from state_engine.storage.committed_rows import committed_rows
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.delta.store_checks import StoreChecks
from state_engine.storage.java_gateway import java_context, java_session
from state_engine.storage.layout import JobLayout
from state_engine.storage.root import open_root
from state_engine.storage.state.copy_directory import LocalCopies
from state_engine.storage.stores.durability import Durability
from state_engine.storage.stores.file_systems import refuse_network_root
from state_engine.storage.stores.files import is_local, normal_uri
from state_engine.storage.stores.object_stores import PROCESS_STORES, StoreAccess

if TYPE_CHECKING:
    from state_engine.telemetry.open_telemetry import OpenTelemetry


class EngineContext:
    """One state root, and what is open on it."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        spark: SparkSession | None = None,
        *,
        lock_timeout_s: float = 60.0,
        single_writer: bool = False,
        durability: Durability = "sync",
        stores: StoreAccess | None = None,
        local_copies: LocalCopies | None = None,
        opentelemetry: bool | None = None,
    ) -> None:
        check_choice(durability, ("sync", "os"), what="durability")
        if spark is not None and has_spark(spark):
            check_is_classic(spark)
        if not lock_timeout_s >= 0:
            raise ConfigurationError(f"lock_timeout_s must be 0 or more seconds, not {lock_timeout_s!r}")
        self._durability: Durability = durability
        self.root = normal_uri(root)
        self._local_copies, self._opentelemetry = local_copies, opentelemetry
        if stores is not None:
            _describe(stores, self.root)
        if not is_local(self.root):
            find_stores()  # the root is looked at before Spark starts
        self.session, self.lock_timeout_s, self._single_writer = spark, lock_timeout_s, single_writer
        self._spark: EngineSession | None = None
        self._calling: set[int] = set()  # threads that are in a ``call``
        self._kernel: DeltaKernel | None = None
        self._jobs: dict[str, JobTables] = {}
        self._publications: dict[str, Publication] = {}
        self._routers: dict[tuple[str, int], Router] = {}
        self._root_id: str | None = None
        self._positions: dict[str, SourcePositions] = {}

    @property
    def user_session(self) -> SparkSession:
        """The user's session; started on first use."""
        if self.session is None:
            self.session = local_session()
        return self.session

    @property
    def spark(self) -> SparkSession:
        """The engine's own session beside the user's, an ``EngineSession``; made on first use."""
        if not has_spark(self.user_session):
            return self.user_session
        if self._spark is None:
            self._spark = EngineSession(self.user_session)
            if get_ident() in self._calling:
                activate(java_session(self._spark))
        return self._spark

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around a call of the user's: inside, the engine's session is up to date, and active in this thread."""
        had_spark, before = SparkContext._active_spark_context is not None, active_session()
        outermost = get_ident() not in self._calling
        self._calling.add(get_ident())
        try:
            if self._spark is not None:
                self._spark.renew()
                activate(java_session(self._spark))
            yield
        finally:
            if outermost:
                self._calling.discard(get_ident())
            started = None
            if not had_spark and self.session is not None and has_spark(self.session):
                started = java_session(self.session)
            with suppress(Py4JError, ConnectionError):  # Spark may have died meanwhile
                activate(before or started)

    @property
    def kernel(self) -> DeltaKernel:
        if self._kernel is None:
            check_session(self.user_session)
            ship_code(self.user_session)
            refuse_network_root(self.root)
            reach_stores(self.spark)
            checks = StoreChecks(self.root, java_context(self.spark), single_writer=self._single_writer)
            checks.check_configured(self.root)
            self._kernel = DeltaKernel(
                self.spark,
                lock_timeout_s=self.lock_timeout_s,
                durability=self._durability,
                checks=checks,
            )
        return self._kernel

    @property
    def local_copies(self) -> LocalCopies:
        """Where micro-batches keep copies of large files of state; without the argument as the settings say."""
        if self._local_copies is None:
            self._local_copies = load_settings().local_copies.described()
        return self._local_copies

    @cached_property
    def telemetry(self) -> OpenTelemetry | None:
        """What makes spans and metrics of runs; None where that is off, and then nothing of it is imported."""
        wanted = self._opentelemetry
        if not (load_settings().telemetry.opentelemetry if wanted is None else wanted):
            return None
        optional("opentelemetry", needed_by="opentelemetry=True, or the setting telemetry.opentelemetry,")
        from state_engine.telemetry.open_telemetry import OpenTelemetry

        return OpenTelemetry()

    def close(self) -> None:
        """Wait for background work of commits. The Spark session stays."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None
            self._jobs.clear()
            self._positions.clear()
            self._publications.clear()

    # -- jobs ------------------------------------------------------------------------------------------------------

    def ran(self, name: str) -> JobTables:
        """The tables of a job that has run. Raises ConfigurationError where it has not."""
        tables = self.existing(name)
        if tables is None:
            raise self._never_ran(name)
        return tables

    def _never_ran(self, name: str) -> ConfigurationError:
        return ConfigurationError(f"job '{name}' has no checkpoint in {self.root} yet: run it first")

    def publication(self, tables: JobTables) -> Publication:
        """Of a job; kept, because it knows what is published."""
        name = tables.layout.job
        if name not in self._publications:
            self._publications[name] = Publication(self.kernel, tables)
        return self._publications[name]

    def declared(
        self, tables: JobTables, job: StatefulJob | str, leave_alone: Collection[str] = ()
    ) -> Declared:
        """The sinks of a job's code, or recorded ones, but for those to leave alone; None where neither is known."""
        publication = self.publication(tables)
        if not isinstance(job, StatefulJob) and not leave_alone:
            return None
        recorded = publication.recorded(tables.log.load().values()) if leave_alone else frozenset()
        if isinstance(job, StatefulJob):
            sinks = publication.use_code(job)
        else:
            sinks, publication.tables.code = recorded, None
        names = {name for name, _ in sinks | recorded}
        if unknown := sorted(set(leave_alone) - names):
            raise ConfigurationError(
                f"job '{tables.layout.job}' has no sinks {unknown} to leave alone; it has {sorted(names)}"
            )
        return frozenset(key for key in sinks if key[0] not in leave_alone)

    def router(self, job: StatefulJob) -> Router:
        """Routes rows of a job; kept, because what it sends to every subtask is."""
        at = (job.name, job.max_parallelism)
        if at not in self._routers:
            self._routers[at] = Router(self.spark, max_parallelism=job.max_parallelism)
        return self._routers[at]

    def planner(
        self, job: StatefulJob, steps: Steps, clock: Callable[[], int], *, repeats_times: bool = True
    ) -> InputPlanner:
        """Of one run of a job that goes through certain steps."""
        return InputPlanner(
            job,
            steps,
            positions=self.positions(job.name),
            spark=self.spark,
            clock=clock,
            repeats_times=repeats_times,
        )

    def positions(self, name: str) -> SourcePositions:
        """Of the sources of a job; kept, because what was read of them never changes."""
        if name not in self._positions:
            self._positions[name] = SourcePositions(JobLayout(self.root, name).operator_state)
        return self._positions[name]

    def coordinator(self, job: StatefulJob, options: RunOptions) -> CheckpointCoordinator:
        tables = self.tables(job.name)
        return CheckpointCoordinator(
            job,
            tables=tables,
            positions=self.positions(job.name),
            kernel=self.kernel,
            spark=self.spark,
            router=self.router(job),
            publication=self.publication(tables),
            options=options,
        )

    def tables(self, name: str) -> JobTables:
        """The job's tables, made if need be."""
        if name not in self._jobs:
            kernel = self.kernel
            if self._root_id is None:
                self._root_id = open_root(self.root, create=True, write_new=kernel.write_new)
            assert self._root_id is not None
            self._jobs[name] = JobTables(self.spark, kernel, JobLayout(self.root, name), self._root_id)
        self._jobs[name].create()
        return self._jobs[name]

    def existing(self, name: str) -> JobTables | None:
        """The job's tables if it ever ran; makes nothing."""
        if name in self._jobs:
            return self._jobs[name]
        root_id = open_root(self.root, create=False)
        if root_id is None:
            return None
        tables = JobTables(self.spark, self.kernel, JobLayout(self.root, name), root_id)
        if not tables.log.check():
            return None
        self._jobs[name] = tables
        return tables

    def history(self, name: str) -> History:
        """All rows of a job, by id; none where it never ran."""
        tables = self.existing(name)
        return tables.log.load() if tables else History()

    def recorded(self, name: str) -> History:
        """All rows of a job that has run, read without Java where no kernel is there yet."""
        if self._kernel is not None or (self.session is not None and not has_spark(self.session)):
            return self.ran(name).log.load()
        committed = committed_rows(self.root, name)
        if committed is None:
            raise self._never_ran(name)
        return History(committed.rows)

    # -- what changes jobs -----------------------------------------------------------------------------------------

    def operations(
        self, job: StatefulJob | str, requested_by: str | None, leave_alone: Collection[str] = ()
    ) -> HeadOperations:
        name = job_name(job)
        tables = self.ran(name)
        return HeadOperations(
            name,
            tables=tables,
            publication=self.publication(tables),
            requested_by=requested_by or requester(),
            declared=self.declared(tables, job, leave_alone),
        )

    def maintenance(self, job: StatefulJob | str, requested_by: str | None) -> Maintenance:
        name = job_name(job)
        return Maintenance(
            name,
            tables=self.ran(name),
            positions=self.positions(name),
            spark=self.spark,
            requested_by=requested_by or requester(),
        )

    def collector(self, job: StatefulJob | str, requested_by: str | None) -> Collector:
        """What deletes files of a job that nobody needs."""
        name = job_name(job)
        tables = self.ran(name)
        return Collector(
            name,
            tables=tables,
            kernel=self.kernel,
            maintenance=self.maintenance(job, requested_by),
            publication=self.publication(tables),
            declared=self.declared(tables, job),
            sinks=job.sinks.values() if isinstance(job, StatefulJob) else (),
        )


def _describe(stores: StoreAccess, root: str) -> None:
    bucket = "" if is_local(root) else urlparse(root).netloc
    if not (bucket or stores.buckets):
        raise ConfigurationError(
            f"stores: the root {root} is in no bucket: name those that are reached like this, StoreAccess(buckets=(…))"
        )
    PROCESS_STORES.describe(stores, bucket=bucket)
