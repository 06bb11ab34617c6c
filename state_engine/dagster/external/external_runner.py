"""``ExternalRunner``: runs a job in a process that a Pipes client launches, and hears what its engine reports.

It stands where the engine of a run's own process would stand, so what is shown of a run is decided once: reports come
as messages, rows are read from the root. Where the process dies, the rows that it committed are shown all the same.
Decision 0054.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import dagster as dg

from state_engine import BackfillReport, BatchReport, CheckpointRow, PartitionStatus, RunReport, StatefulJob
from state_engine.core.checkpoints.history import History
from state_engine.core.errors import ConfigurationError, from_wire
from state_engine.dagster.dagster_internals import listening_client
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.external.launch import PipesLaunch
from state_engine.dagster.job_health import now_ms
from state_engine.microbatch.partition_runs import partition_states, partitions_of
from state_engine.monitoring.job_history import read_history
from state_engine.pipes.engine_calls import EngineCall, Message

if TYPE_CHECKING:
    from state_engine import StateEngine

T = TypeVar("T")
OnBatch = Callable[[BatchReport], object] | None
JobRunner: TypeAlias = "StateEngine | ExternalRunner"
"""What a run asks to run a job, and for its checkpoints: an engine in its own process, or in another one."""


@dataclass(frozen=True)
class ExternalRunner:
    """Launches a process for each call; each method is that of ``StateEngine``."""

    context: dg.AssetExecutionContext
    dagster_job: DagsterJob
    launch: PipesLaunch

    def checkpoints(self, job: StatefulJob | str) -> list[CheckpointRow]:
        return [row for _, row in sorted(self._rows().items())]

    def partitions(self, job: StatefulJob) -> list[PartitionStatus]:
        return partition_states(partitions_of(job, "partitions()"), self._rows(), now_ms=now_ms())

    def run(self, job: StatefulJob, *, on_progress: OnBatch = None, **arguments: Any) -> RunReport:
        heard = self._call(job, "run", arguments, on_progress)
        return replace(_reported(heard.last.ran), batches=heard.batches)

    def backfill(
        self,
        job: StatefulJob,
        start: str,
        end: str,
        mode: str = "roll_forward",
        *,
        on_progress: OnBatch = None,
        **arguments: Any,
    ) -> BackfillReport:
        arguments = {"start": start, "end": end, "mode": mode, **arguments}
        heard = self._call(job, "backfill", arguments, on_progress)
        return replace(_reported(heard.last.backfilled), batches=heard.batches)

    def _rows(self) -> History:
        history = read_history(self.dagster_job.root, self.dagster_job.name)
        return history.checkpoints if history else History()

    def _call(
        self,
        job: StatefulJob,
        method: Literal["run", "backfill"],
        arguments: Mapping[str, Any],
        on_progress: OnBatch,
    ) -> _Heard:
        heard, call = _Heard(on_progress), EngineCall(job=job.name, method=method, arguments=arguments)
        client = listening_client(self.launch.client_of(self.context), heard.take)
        try:
            done = client.run(
                context=_UntypedContext(self.context.op_execution_context.get_step_execution_context()),
                extras=call.to_extras(),
                **self.launch.run_arguments(),
            )
        except Exception as error:
            heard.raise_failure(error)
            raise
        for payload in done.get_custom_messages():
            heard.take(payload)
        heard.raise_failure(None)
        return heard


@dataclass
class _Heard:
    """What the process has reported so far. Messages come in a thread of Pipes, in order."""

    on_progress: OnBatch
    batches: list[BatchReport] = field(default_factory=list)
    last: Message = field(default_factory=Message)
    broken: Exception | None = None

    def take(self, payload: Any) -> bool:
        """Take a custom message; False where it is not ours."""
        try:
            message = Message.from_payload(payload)
            if message is None:
                return False
            self.last = message
            if message.batch is not None:
                self.batches.append(message.batch)
                if self.on_progress is not None and self.broken is None:
                    self.on_progress(message.batch)
        except Exception as error:  # Pipes would stop listening
            self.broken = self.broken or error
        return True

    def raise_failure(self, cause: Exception | None) -> None:
        """Raise what went wrong there, or here while it was shown."""
        if self.last.failure is not None:
            raise from_wire(self.last.failure) from cause
        if self.broken is not None:
            raise self.broken


def _reported(report: T | None) -> T:
    """What the call returned; raises ConfigurationError where the process did not say."""
    if report is None:
        raise ConfigurationError(
            "the process that Dagster launched ended without an error and reported nothing: it must call "
            "state_engine.pipes.run_for_dagster, or to be `statelake run <job>`, with dagster-pipes installed"
        )
    return report


class _UntypedContext(dg.OpExecutionContext):
    """The context of the run, without Pipes' demand that every selected asset gets a result.

    A run that found nothing new returns none, and one of many partitions logs its materialisations.
    """

    def set_requires_typed_event_stream(self, *, error_message: str | None = None) -> None:
        """Leave the run as it is."""
