"""Stops a micro-batch that refused more rows than its job allows, before anything is committed."""

from __future__ import annotations

from state_engine.core.errors import DeadLetterLimitError
from state_engine.job.job import StatefulJob
from state_engine.microbatch.batch_result import Execution
from state_engine.storage.files import join
from state_engine.storage.parquet_reading import open_recorded


def check_limit(job: StatefulJob, done: Execution, *, uri: str) -> None:
    """Refuse to go on with what the subtasks did.

    Args:
        uri: table of dead letters; the files are in place, and no reader sees them yet.

    Raises:
        DeadLetterLimitError: too many rows were refused.
    """
    if job.max_dead_letters is None or not done.refused:
        return
    exceeded = job.max_dead_letters.exceeded(refused=done.refused, rows_in=sum(done.rows_by_source.values()))
    if not exceeded:
        return
    file = done.outputs.dead_letters[0]
    first = open_recorded(join(uri, file.path), file, of="dead letters").read().slice(0, 1).to_pylist()[0]
    raise DeadLetterLimitError(
        f"job '{job.name}': {exceeded}. The first one: operator '{first['operator']}', {first['position']}: "
        f"{first['error']} (row {first['row']}). Nothing of this micro-batch was committed. Repair the input or the "
        "function and run again, or raise max_dead_letters"
    )
