"""``SourceOperator``: one subtask of a ``SourceFunction`` during one micro-batch. Mirrors Flink's ``StreamSource``."""

from __future__ import annotations

from typing import Any

from state_engine.core.functions.checkpointed import has_operator_state
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.functions.source_function import SourceContext, SourceFunction, run_source
from state_engine.core.operator.operator_lifecycle import FIRST_RUN, OperatorLifecycle, Resumption
from state_engine.core.operator_state.operator_snapshot import SubtaskSnapshot
from state_engine.core.types.every_type import TypeInformation


class SourceOperator:
    """Runs a source: ``open``, ``run``, ``snapshot``, ``close``. What the function raises comes out as it is."""

    def __init__(
        self,
        function: SourceFunction,
        *,
        info: TaskInfo,
        output_type: TypeInformation,
        clock_ms: int,
        resumption: Resumption = FIRST_RUN,
    ) -> None:
        self.function, self._normalise = function, output_type.compiled()
        self._life = OperatorLifecycle(
            function,
            info=info,
            resumption=resumption,
            clock_ms=clock_ms,
        )

    def open(self) -> None:
        self._life.initialize()
        self._life.open()

    def run(self, max_elements: int) -> SourceContext:
        """The elements of this batch, at most so many but for the last locked section."""
        return run_source(
            self.function,
            max_elements=max_elements,
            normalise=self._normalise,
            stateful=has_operator_state(self.function),
        )

    def snapshot(self) -> SubtaskSnapshot:
        return self._life.snapshot()

    def close(self) -> None:
        self._life.close()

    def metrics(self) -> dict[str, Any]:
        """What the function's metrics say by now, by name."""
        return self._life.runtime_context.metrics()
