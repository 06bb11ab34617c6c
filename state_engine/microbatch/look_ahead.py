"""``LookAhead``: the first steps of the next micro-batch, beside the last steps of this one, in a catch-up.

    this micro-batch   1 plan   2-4 execute | 5, 6 commit files   7 stage   8 commit   9 publish |
    the next one                            | 1 plan   2-4 execute                               | 5, 6 ...

What is executed ahead continues the row that this micro-batch is about to commit. It is invisible, as every attempt is
before its own row, and that is committed only after this one's outputs are published. Where this commit fails, or
another runner's row came after it, the attempt ahead is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.functions.checkpointed import has_checkpoint_hooks
from state_engine.job.job import StatefulJob
from state_engine.microbatch.attempt import Committed, Executed
from state_engine.microbatch.batch import BatchContext


def may_look_ahead(job: StatefulJob, batch: BatchContext) -> bool:
    """Whether the micro-batch after this one may begin before this one is committed.

    Its sources must have more, and the job no gate, which may hold this one or ask for its number of rows. No function
    may ask for notifications of complete checkpoints: this one is not complete yet.
    """
    if job.gates or any(has_checkpoint_hooks(operator.function) for operator in job.operators.values()):
        return False
    return any(part.more for part in batch.slices.values())


@dataclass(frozen=True)
class _Ahead:
    """Result or error of the look-ahead attempt that follows the micro-batch of a ``write_id``."""

    upon: str
    attempt: Executed | None
    error: Exception | None = None


class LookAhead:
    """Holds at most one attempt that was executed ahead.

    Args:
        execute: plans and executes what comes after a path; None where there is nothing more.
    """

    def __init__(
        self,
        execute: Callable[[list[CheckpointRow]], Executed | None],
        give_up: Callable[[Executed], None],
    ) -> None:
        self._execute, self._give_up = execute, give_up
        self._ahead: _Ahead | None = None
        self._thread: ThreadPoolExecutor | None = None

    def beside(
        self, finish: Callable[[], Committed], attempt: Executed, expected: CheckpointRow
    ) -> Committed:
        """Finish an attempt in a thread of its own, and execute the next one meanwhile.

        Args:
            expected: the row that it will commit, as far as it is known.

        Raises:
            Exception: of ``finish``. Errors of the next attempt wait until it is asked for.
        """
        path = [*attempt.batch.path, expected]

        def look() -> None:
            self._ahead = self._executed(path)

        return self._together(finish, look)

    def _together(self, finish: Callable[[], Committed], look: Callable[[], None]) -> Committed:
        """Commit in one reused thread, because py4j opens a Java thread per Python thread; look ahead in this one."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="statelake-finish")
        finishing = self._thread.submit(finish)
        look()
        return finishing.result()

    def _executed(self, path: list[CheckpointRow]) -> _Ahead:
        upon = path[-1].write_id
        try:
            return _Ahead(upon, self._execute(path))
        except Exception as error:
            return _Ahead(upon, None, error)

    def taken(self, path: Sequence[CheckpointRow], next_id: int) -> Executed | None:
        """What was executed ahead after the end of a path, rows in the background passed over; None for nothing.

        Raises:
            Exception: the one that the attempt ended with.
        """
        if self._ahead is None:
            return None
        known = list(path)
        while known and known[-1].kind.is_in_background:
            known.pop()
        if not known or known[-1].write_id != self._ahead.upon:
            self._drop()
            return None
        ahead, self._ahead = self._ahead, None
        if ahead.error is not None:
            raise ahead.error
        if ahead.attempt is None:
            return None
        batch = replace(ahead.attempt.batch, path=known, checkpoint_id=next_id)
        return replace(ahead.attempt, batch=batch)

    def _drop(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.attempt is not None:
            self._give_up(ahead.attempt)

    def close(self) -> None:
        """Give up what nobody asked for, and wait for a commit that an interrupt left alone."""
        self._drop()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
