"""The command ``statelake apply``: the replay that ``statelake plan`` asks for, compared, and promoted if that is said.

It adds nothing to ``branch create``, ``compare`` and ``promote`` but their order and arguments. An interrupted one goes
on: the branch that today's code began is found again, and what it has replayed is not replayed twice.

Exit codes: 0: done, or nothing to do; 3: a run is refused; 1: an error of the command.
"""

from __future__ import annotations

from typing import Annotated

import typer

from state_engine.cli.branches import show_comparison
from state_engine.cli.form import for_people
from state_engine.cli.operations import move_lines, moved
from state_engine.cli.options import Job, LeaveAlone, OutputOptions, outputs_policy
from state_engine.cli.output import report
from state_engine.cli.plan import show_plans
from state_engine.cli.progress import progress
from state_engine.cli.session import declared, opened, progressed, say
from state_engine.code_changes.job_plan import JobPlan
from state_engine.code_changes.replay_needed import branch_of_replay
from state_engine.core.checkpoints.history import History
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError
from state_engine.microbatch.declared_parts import DeclaredParts


def apply(
    job: Job,
    from_checkpoint: Annotated[
        int,
        typer.Option("--from", min=0, help="Checkpoint to replay from, as in the plan; 0: the beginning."),
    ],
    rows: Annotated[
        int, typer.Option(min=0, help="Show at most this many rows of each difference; 0 for none.")
    ] = 20,
    promote: Annotated[bool, typer.Option("--promote", help="Then make the result the head.")] = False,
    expected_head: Annotated[
        int | None, typer.Option(min=1, help="Head of the plan; refuse if it is another one now.")
    ] = None,
    outputs: OutputOptions = None,
    leave_alone: LeaveAlone = None,
) -> None:
    """Do the replay that `statelake plan` asks for, and compare; with --promote, also make it the head."""
    code = declared(job).job
    if promote is not (expected_head is not None):
        raise ConfigurationError(
            "--promote and --expected-head go together: name the checkpoint that the plan was compared with, or leave "
            "both out"
        )
    with opened(spark=False) as engine:
        plan = engine.plan(code)
    if plan.verdict == "refused":
        show_plans([plan])
        raise typer.Exit(code=plan.exit_code)
    if plan.verdict != "replay":
        report({"job": job, "verdict": plan.verdict}, [f"{plan.summary()}; there is nothing to replay"])
        return
    _check(plan, from_checkpoint, expected_head, partitions=code.partitions is not None)
    with opened() as engine:
        history = History(engine.checkpoints(code))
        branch = branch_of_replay(history, DeclaredParts.of(code), from_checkpoint or None)
        with progress(f"{job}: looking up what was recorded") as on_progress:
            begin = None if branch in history.branches else from_checkpoint
            done = engine.replay(code, from_checkpoint=begin, branch=branch, on_progress=on_progress)
        progressed(f"{job}: branch {branch}: {counted(len(done.batches), 'micro-batch')} replayed now")
        show_comparison(engine.compare(code, branch), rows=rows, branch=branch)
        if not promote:
            for line in _next(job, branch, done.main_head_id) if for_people() else ():
                say(line)
            return
        move = engine.promote(
            code,
            branch,
            expected_head=expected_head,
            outputs=outputs_policy(outputs),
            leave_alone=leave_alone or (),
        )
        report({"job": job, **moved(move)}, move_lines(job, move))


def _check(plan: JobPlan, from_checkpoint: int, expected_head: int | None, *, partitions: bool) -> None:
    """Refuse what would not be the replay of the plan, before anything runs."""
    assert plan.replay is not None
    if plan.replay.problem:
        raise ConfigurationError(f"job '{plan.job}': {plan.replay.text}")
    if partitions:
        raise ConfigurationError(
            f"job '{plan.job}' runs in time partitions, which a backfill makes again: {plan.replay.commands[0]}"
        )
    begin = plan.replay.from_checkpoint or 0
    if from_checkpoint > begin:
        raise ConfigurationError(
            f"job '{plan.job}': other code made the state of checkpoint {from_checkpoint}: give --from {begin}, where "
            "the replay of the plan begins"
        )
    if expected_head is not None and expected_head != plan.head_id:
        raise ConfigurationError(
            f"job '{plan.job}': the head is checkpoint {plan.head_id}, not {expected_head}: look at statelake plan "
            "again"
        )


def _next(job: str, branch: str, head_id: int) -> list[str]:
    return [
        f"promote: statelake branch promote {job} {branch} --expected-head {head_id}",
        f"or:      statelake branch drop {job} {branch}",
    ]
