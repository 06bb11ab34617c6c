"""What the storage refuses during an operation of the engine, with the job and what was kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from state_engine.core.errors import CommitError, CommitFailedError, CommitUnknownError, StorageError
from state_engine.storage.stores.storage_errors import storage_error

NOTHING_DONE = "Earlier commits are unchanged, and you can run it again"


@contextmanager
def keeping(job: str, kept: str, *, at: str) -> Iterator[None]:
    """Raise refusals of the storage with the job and what was kept; an outer one adds nothing.

    Args:
        kept: a sentence, without its full stop.
        at: path for refusals that name none.

    Raises:
        CommitError: a commit did not certainly succeed.
    """
    try:
        yield
    except StorageError as error:
        raise error.placed_in(job, f"{kept}.") from error
    except CommitError as error:
        if type(error) not in (CommitFailedError, CommitUnknownError) or f"job '{job}'" in str(error):
            raise
        raise type(error)(f"job '{job}': {str(error).rstrip('.')}. {kept}.") from error
    except ConnectionError:  # the process of Spark hung up, which ``spark.lost_spark`` explains
        raise
    except OSError as error:
        refused = storage_error(error, at, "read or written")
        if refused is None:
            raise
        raise refused.placed_in(job, f"{kept}.") from error
