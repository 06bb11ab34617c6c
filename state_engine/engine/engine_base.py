"""``EngineBase``: a state root, the Spark session on it, and the tables of its jobs."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Callable, Collection
from typing import Self

from pyspark.sql import SparkSession

from state_engine.core.errors import ConfigurationError
from state_engine.core.names import check_name
from state_engine.job.job import StatefulJob
from state_engine.job.job_tables import JobTables
from state_engine.microbatch.coordinator import CheckpointCoordinator, RunOptions
from state_engine.microbatch.planning import InputPlanner, Steps
from state_engine.microbatch.routing.routing import Router
from state_engine.publication.publication import Declared, Publication
from state_engine.spark.session import check_session, local_session
from state_engine.spark.shipping import ship_code
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.durability import Durability
from state_engine.storage.files import normal_uri
from state_engine.storage.layout import JobLayout
from state_engine.storage.root import check_storage, open_root

Clock = int | Callable[[], int] | None
"""Processing time in milliseconds: a fixed one, a function that gives it, or None for the wall clock."""


class EngineBase:
    """See ``StateEngine``."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        spark: SparkSession | None = None,
        *,
        lock_timeout_s: float = 60.0,
        single_writer: bool = False,
        durability: Durability = "sync",
    ) -> None:
        if durability not in ("sync", "os"):
            raise ConfigurationError(f"durability must be 'sync' or 'os', not {durability!r}")
        self._durability: Durability = durability
        self.root = normal_uri(root)
        self._spark, self._lock_timeout_s, self._single_writer = spark, lock_timeout_s, single_writer
        self._kernel: DeltaKernel | None = None
        self._tables: dict[str, JobTables] = {}
        self._publications: dict[str, Publication] = {}
        self._routers: dict[tuple[str, int], Router] = {}
        self._root_id: str | None = None

    @property
    def spark(self) -> SparkSession:
        """The session; started on first use."""
        if self._spark is None:
            self._spark = local_session()
        return self._spark

    @property
    def kernel(self) -> DeltaKernel:
        """Delta Kernel in the session's JVM."""
        if self._kernel is None:
            check_session(self.spark)
            ship_code(self.spark)
            scheme = self.root.split(":")[0]
            log_store = self.spark.conf.get(f"spark.delta.logStore.{scheme}.impl", None)
            check_storage(self.root, log_store=log_store, single_writer=self._single_writer)
            self._kernel = DeltaKernel(
                self.spark, lock_timeout_s=self._lock_timeout_s, durability=self._durability
            )
        return self._kernel

    def close(self) -> None:
        """Wait for background work of commits. The Spark session stays."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None
            self._tables.clear()
            self._publications.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _ran(self, name: str) -> JobTables:
        tables = self._existing(name)
        if tables is None:
            raise ConfigurationError(f"job '{name}' has no checkpoint in {self.root} yet: run it first")
        return tables

    def _publication(self, tables: JobTables) -> Publication:
        """Of a job; kept, because it knows what is published."""
        name = tables.layout.job
        if name not in self._publications:
            self._publications[name] = Publication(self.kernel, tables)
        return self._publications[name]

    def _declared(
        self, tables: JobTables, job: StatefulJob | str, leave_alone: Collection[str] = ()
    ) -> Declared:
        """The sinks of a job's code; None where only its name is known, and it is not said which to leave alone."""
        publication = self._publication(tables)
        if isinstance(job, StatefulJob):
            found = publication.declared(job.sinks.values())
            return found and frozenset(key for key in found if key[0] not in leave_alone)
        return publication.recorded(tables.store.load().values(), but=leave_alone) if leave_alone else None

    def _router(self, job: StatefulJob) -> Router:
        at = (job.name, job.max_parallelism)
        if at not in self._routers:
            self._routers[at] = Router(self.spark, max_parallelism=job.max_parallelism)
        return self._routers[at]

    def _planner(
        self, job: StatefulJob, steps: Steps, clock: Callable[[], int], *, repeats_times: bool = True
    ) -> InputPlanner:
        """Of one run of a job that goes through certain steps."""
        positions = self._open(job.name).positions
        return InputPlanner(
            job, steps, positions=positions, spark=self.spark, clock=clock, repeats_times=repeats_times
        )

    def _coordinator(self, job: StatefulJob, options: RunOptions) -> CheckpointCoordinator:
        """Of one run of a job."""
        tables = self._open(job.name)
        return CheckpointCoordinator(
            job,
            tables=tables,
            kernel=self.kernel,
            spark=self.spark,
            router=self._router(job),
            publication=self._publication(tables),
            options=options,
        )

    def _open(self, name: str) -> JobTables:
        """The job's tables, made if need be."""
        if name not in self._tables:
            kernel = self.kernel
            if self._root_id is None:
                self._root_id = open_root(self.root, create=True)
            assert self._root_id is not None
            self._tables[name] = JobTables(self.spark, kernel, JobLayout(self.root, name), self._root_id)
        self._tables[name].create()
        return self._tables[name]

    def _existing(self, name: str) -> JobTables | None:
        """The job's tables if it ever ran; makes nothing."""
        if name in self._tables:
            return self._tables[name]
        root_id = open_root(self.root, create=False)
        if root_id is None:
            return None
        tables = JobTables(self.spark, self.kernel, JobLayout(self.root, name), root_id)
        if not tables.store.check():
            return None
        self._tables[name] = tables
        return tables


def job_name(job: StatefulJob | str) -> str:
    """The name of a job, checked."""
    return job.name if isinstance(job, StatefulJob) else check_name(job, what="job")


def code_of(job: StatefulJob | str, call: str) -> StatefulJob:
    """A job that was given with its code. Raises ConfigurationError where only its name was."""
    if isinstance(job, StatefulJob):
        return job
    raise ConfigurationError(f"{call} needs the job itself, not only its name '{job}': its code takes part")


def clock_of(clock: Clock) -> Callable[[], int]:
    """A function that gives the processing time in milliseconds."""
    if clock is None:
        return lambda: time.time_ns() // 1_000_000
    if callable(clock):
        return clock
    fixed = int(clock)
    return lambda: fixed


def requester() -> str:
    """Who runs this, where nobody says so: user, host and process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} pid {os.getpid()}"
