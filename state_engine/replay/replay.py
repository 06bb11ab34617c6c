"""Replays: recorded micro-batches of ``main`` run again on a branch, usually with other code.

A branch begins at a checkpoint of ``main`` (or at nothing) and goes through the micro-batches that ``main`` recorded
after it: the same input, clock and parallelism, or the same input cut again. It stages outputs and never publishes;
``compare`` shows what differs, ``promote`` makes its head that of the job, ``drop_branch`` gives it up. How far a
branch has come stands in its own rows, so a replay that crashed goes on where it stopped. Parallelism is the recorded
one; parameters of the job are not recorded and must be given again. Flink has no counterpart: there, a bug fix in a
stateful job means to start from a savepoint and hope.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.dead_letters import LETTERS
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.retention import restore_refusal
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError
from state_engine.core.names import check_name
from state_engine.core.time.timers import EVENT
from state_engine.microbatch.gates import held_on
from state_engine.microbatch.planning import PlannedStep, RecordedInput
from state_engine.microbatch.reports import BatchReport


@dataclass(frozen=True)
class ReplayReport:
    """What one call of ``StateEngine.replay`` did.

    Attributes:
        job: name.
        branch: that it ran on.
        begin_id: the checkpoint that the branch begins at; None for the very beginning.
        batches: micro-batches of this call, in order.
        branch_head_id: newest checkpoint of the branch; None where there was nothing to replay.
        main_head_id: head of ``main`` that it was replayed up to: for ``promote(expected_head=...)``.
        remaining: how many micro-batches of that ``main`` are not replayed, because of ``to_checkpoint``.
    """

    job: str
    branch: str
    begin_id: int | None
    batches: list[BatchReport]
    branch_head_id: int | None
    main_head_id: int
    remaining: int


@dataclass(frozen=True)
class Recording:
    """What a replay goes through.

    Attributes:
        begin_id: the checkpoint that the branch begins at; None for nothing.
    """

    job: str
    branch: str
    begin_id: int | None
    main_head_id: int
    batches: list[CheckpointRow]
    wanted: int
    history: History

    def own(self, path: Sequence[CheckpointRow]) -> list[CheckpointRow]:
        """The micro-batches of the branch on a path."""
        return [row for row in path if row.branch == self.branch and row.kind.is_micro_batch]


def recording(
    job: str,
    history: History,
    *,
    branch: str | None = None,
    from_checkpoint: int | None = None,
    to_checkpoint: int | None = None,
) -> Recording:
    """Find what to replay, on a new branch or on one that there is."""
    head = history.head
    if head is None:
        raise ConfigurationError(f"job '{job}' has no checkpoint yet: run it first")
    known = history.branches
    if branch is None:
        branch = next(name for n in count(1) if (name := f"replay_{n}") not in known)
    if check_name(branch, what="branch") == MAIN:
        raise ConfigurationError(f"job '{job}': a replay runs on a branch of its own, not on '{MAIN}'")
    held = held_on(history)
    main = history.path((held or head).checkpoint_id)
    if branch in known:
        begin_id = _begin_of(job, history, branch, from_checkpoint)
    else:
        begin_id = _new_begin(job, history, main, from_checkpoint)
    batches = _since(job, branch, main, begin_id)
    wanted = len(batches)
    if to_checkpoint is not None:
        ids = [row.checkpoint_id for row in batches]
        if to_checkpoint not in ids:
            raise ConfigurationError(
                f"job '{job}': checkpoint {to_checkpoint} is not a micro-batch on the path of '{MAIN}' after "
                f"{begin_id or 'its beginning'}; those are {ids}"
            )
        wanted = ids.index(to_checkpoint) + 1
    return Recording(job, branch, begin_id, head.checkpoint_id, batches, wanted, history)


def _since(job: str, branch: str, main: Sequence[CheckpointRow], begin_id: int | None) -> list[CheckpointRow]:
    """The micro-batches of ``main`` after the checkpoint that a branch begins at."""
    ids = [row.checkpoint_id for row in main]
    if begin_id is None:
        if main[0].kind.begins_job:
            began = "a savepoint" if main[0].kind is CheckpointKind.IMPORT else "the state that it was given"
            raise ConfigurationError(
                f"job '{job}' began with {began}: replay from checkpoint {ids[0]}, which is its copy"
            )
        return _batches(job, main)
    if begin_id not in ids:
        raise ConfigurationError(
            f"job '{job}': branch '{branch}' begins at checkpoint {begin_id}, from which '{MAIN}' has moved away "
            "since: drop the branch and replay on a new one"
        )
    return _batches(job, main[ids.index(begin_id) + 1 :])


def _batches(job: str, rows: Sequence[CheckpointRow]) -> list[CheckpointRow]:
    """The micro-batches among rows of ``main``, none of which may have changed state without any input."""
    by_hand = [row.checkpoint_id for row in rows if row.kind is CheckpointKind.TRANSFORM]
    if by_hand:
        raise ConfigurationError(
            f"job '{job}': checkpoint {by_hand[-1]} transformed the state, which a replay from before it would undo: "
            f"replay from checkpoint {by_hand[-1]} or a later one"
        )
    return [row for row in rows if row.kind.is_micro_batch]


class ReplaySteps:
    """The steps of a replay: the recorded micro-batches, one by one or cut again.

    Args:
        rebatch: whether sources cut the recorded input again, by their own bounds; all batches then have the recorded
            last clock, and timers that a recorded batch fired without input fire at the end.
    """

    def __init__(self, recorded: Recording, *, rebatch: bool = False) -> None:
        self._recorded, self._rebatch = recorded, rebatch

    def __call__(self, path: list[CheckpointRow], now: Callable[[], int]) -> PlannedStep | None:
        wanted = self._recorded.batches[: self._recorded.wanted]
        if self._rebatch:
            return self._repeating(wanted, anew=True) if wanted else None
        own = self._recorded.own(path)
        self._check_in_step(own)
        return self._repeating([wanted[len(own)]], anew=False) if len(own) < len(wanted) else None

    def _repeating(self, batches: list[CheckpointRow], *, anew: bool) -> PlannedStep:
        drained = was_drained(self._recorded.history, batches[-1])
        return PlannedStep(RecordedInput(batches, anew), repeats=batches[-1], drain=drained, optional=anew)

    def _check_in_step(self, own: Sequence[CheckpointRow]) -> None:
        """Whether the branch stands where ``main`` stood after as many batches: else the next one does not follow."""
        recorded = self._recorded
        if not own:
            return
        then = recorded.batches[len(own) - 1] if len(own) <= len(recorded.batches) else None
        reached = {s.name: s.position_to for s in then.sources} if then else {}
        read = [s for s in own[-1].sources if s.name != LETTERS]  # a replay sends no letters again
        if then is None or any(s.position_to != reached.get(s.name, s.position_to) for s in read):
            raise ConfigurationError(
                f"job '{recorded.job}': branch '{recorded.branch}' does not stand where '{MAIN}' stood after "
                f"{counted(len(own), 'micro-batch')}: its input was cut differently (then continue with "
                "rebatch=True), or "
                f"'{MAIN}' moved to another path since (then drop the branch and replay on a new one)"
            )


def was_drained(history: History, batch: CheckpointRow) -> bool:
    """Whether a micro-batch ended the input for good.

    Rows of format 5 and older do not record it: one of them did where it read nothing, and fired timers that were not
    due.
    """
    if batch.drained:
        return True
    parent = history[batch.parent_id] if batch.parent_id is not None else None
    if parent is None or any(s.position_from != s.position_to for s in batch.sources):
        return False
    if any(o.next_timers_ms for o in batch.operators):
        return False
    waiting = [item for o in parent.operators for item in o.next_timers_ms.items()]
    # event time stands still without input: what it had reached had fired before
    return any(domain == EVENT or at_ms > batch.clock_ms for domain, at_ms in waiting)


def _begin_of(job: str, history: History, branch: str, asked: int | None) -> int | None:
    if branch not in history.open_branches:
        raise ConfigurationError(
            f"job '{job}': branch '{branch}' was promoted or dropped: choose another name"
        )
    path = history.path(history.branches[branch].checkpoint_id)
    begin_id = next(row for row in path if row.branch == branch).parent_id
    if asked is not None and (asked or None) != begin_id:
        raise ConfigurationError(
            f"job '{job}': branch '{branch}' begins at checkpoint {begin_id or 0}, not {asked}: leave from_checkpoint "
            "out to go on with it, or choose another branch"
        )
    return begin_id


def _new_begin(job: str, history: History, main: Sequence[CheckpointRow], asked: int | None) -> int | None:
    if not asked:
        return None
    refusal = restore_refusal(history, asked)
    if refusal is None and asked not in [row.checkpoint_id for row in main]:
        refusal = (
            f"checkpoint {asked} is not on the path of '{MAIN}', which is {[r.checkpoint_id for r in main]}"
        )
    if refusal is not None:
        raise ConfigurationError(f"job '{job}': {refusal}")
    return asked
