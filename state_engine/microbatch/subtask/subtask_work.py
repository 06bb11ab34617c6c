"""``SubtaskWork``: what the steps of one subtask share, and the report that they fill."""

from __future__ import annotations

import time

from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.microbatch.subtask.refusals import RefusedRows
from state_engine.microbatch.subtask.subtask_spec import SubtaskReport, SubtaskSpec
from state_engine.storage.layout import file_name


class SubtaskWork:
    """One attempt of a subtask."""

    def __init__(self, spec: SubtaskSpec, index: int, attempt_id: int, attempt: int) -> None:
        self.spec, self.index, self.attempt_id, self.attempt = spec, index, attempt_id, attempt
        self.report = SubtaskReport(subtask=index, began_s=time.time(), attempt=attempt)
        self.refused = RefusedRows(spec, index)
        self._clock = time.perf_counter()

    @property
    def info(self) -> TaskInfo:
        """Where the function runs, for its runtime context."""
        spec = self.spec
        return TaskInfo(
            spec.uid, self.index, spec.parallelism, spec.max_parallelism, self.attempt, spec.parameters
        )

    @property
    def file_name(self) -> str:
        """Of each file that the attempt writes into a directory of its own."""
        return file_name(self.spec.write_id, self.index, self.attempt_id)

    def lap(self, name: str) -> None:
        """Report the time since the last lap under a name."""
        now = time.perf_counter()
        self.report.seconds[name] = self.report.seconds.get(name, 0.0) + round(now - self._clock, 4)
        self._clock = now
