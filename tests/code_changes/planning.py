"""Plans of jobs that run in memory, and a run that holds each micro-batch to the plan before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from state_engine import JobPlan, StatefulJob
from state_engine.code_changes.planned import planned
from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow
from state_engine.core.checkpoints.history import History
from state_engine.core.errors import StatelakeError
from state_engine.microbatch.coordinator import CheckpointCoordinator
from state_engine.storage.layout import JobLayout
from state_engine.testing import MemoryRun


def plan_in_memory(run: MemoryRun, job: StatefulJob, *, clock: int = 0) -> JobPlan:
    """The plan of other code of the job, which is that of the run from now on."""
    run.restart(job)
    code, context = run._made.job, run._engine.context
    layout = JobLayout(context.root, job.name)
    return planned(code, context.history(job.name), layout, clock=lambda: clock, parameters={})


def shown(plan: JobPlan) -> dict[str, tuple[str, str]]:
    """Verdict and text of each part that differs."""
    return {str(one.part): (one.verdict, one.text) for one in plan.parts if one.verdict != "same"}


class Held:
    """Stands before ``CheckpointCoordinator.plan``: what it refuses, a plan refuses, and the other way round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plans = self.refusals = 0
        original = CheckpointCoordinator.plan

        def plan(coordinator: Any, path: list[CheckpointRow]) -> Any:
            texts = self._refused(coordinator, path)
            raised: StatelakeError | None = None
            try:
                return original(coordinator, path)
            except StatelakeError as error:
                raised = error if texts or _of_checks(error) else None
                raise
            finally:
                self.refusals += raised is not None
                assert texts is None or (str(raised) in texts if raised else not texts)

        monkeypatch.setattr(CheckpointCoordinator, "plan", plan)

    def _refused(self, coordinator: Any, path: Sequence[CheckpointRow]) -> list[str] | None:
        """What a plan refuses; None where the run is not on ``main``, or has compared its code before."""
        options = coordinator._options
        if options.branch != MAIN or coordinator._not_opened is not None:
            return None
        self.plans += 1
        layout = coordinator._tables.layout
        made = planned(
            coordinator._job, History(path), layout, clock=options.clock, parameters=options.parameters
        )
        refused = [one for one in made.of("refused") if one.part.kind != "sink"]  # see ``test_targets``
        return [text for one in refused for text in one.texts]


def _of_checks(error: StatelakeError) -> bool:
    """Whether a check of the code raised an error, and not a source or the clock."""
    frames, at = [], error.__traceback__
    while at is not None:
        frames.append(at.tb_frame.f_code.co_name)
        at = at.tb_next
    return "raise_first" in frames
