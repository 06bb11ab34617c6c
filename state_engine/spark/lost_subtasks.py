"""What Spark raises where a subtask's process died, turned into an error that says whose, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

from state_engine.core.errors import SubtaskLostError
from state_engine.spark.read_failures import messages

MORE_MEMORY = (
    "Take fewer rows at once (max_rows_per_batch, max_files_per_batch), spread them over more subtasks (parallelism), "
    "keep working state on the disk (EmbeddedRocksDBStateBackend), or give the machine more memory; then run again. "
    "A list, a value or an accumulator of a single key is in memory as a whole: keep it as a map state: a "
    "micro-batch writes only its changed entries"
)
"""What to do where memory did not suffice, for the end of a message."""

_DEAD = ("Python worker exited unexpectedly", "Python worker failed to connect back", "ExecutorLostFailure")


@contextmanager
def translating_worker_loss(*, job: str, operator: str) -> Iterator[None]:
    """Run a Spark action whose tasks are subtasks; other failures pass as they are."""
    try:
        yield
    except (Py4JJavaError, CapturedException) as error:
        if (cause := cause_of_death(messages(error))) is None:
            raise
        raise SubtaskLostError(
            f"job '{job}', operator '{operator}': the process of a subtask died ({cause}). Mostly the "
            "machine had no memory left: run fewer rows a micro-batch (max_rows_per_batch), or more subtasks, or use "
            "EmbeddedRocksDBStateBackend; else a library crashed: see the log of Spark. Nothing of this "
            "micro-batch was committed, and what was before is kept; run again"
        ) from error


def cause_of_death(texts: list[str]) -> str | None:
    """What messages of Spark say of a task whose process died; None where they are about something else."""
    dead = any(sign in text for text in texts for sign in _DEAD)
    return _short(texts[-1]) if dead else None


def _short(text: str) -> str:
    """The first line, without the trace behind it."""
    return text.strip().splitlines()[0][:200] if text.strip() else "no message"
