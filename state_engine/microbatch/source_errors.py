"""``naming_source``: errors of a source name the job and the source, which the source itself does not know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from state_engine.core.errors import SourceError


@contextmanager
def naming_source(job: str, source: str, doing: str = "") -> Iterator[None]:
    """Put job and source in front of the error of a source that does not name them.

    Example:
        >>> with naming_source("sums", "rows", "replay of checkpoint 3"):
        ...     raise SourceError("a.csv vanished")
        Traceback (most recent call last):
        state_engine.core.errors.SourceError: job 'sums', source 'rows', replay of checkpoint 3: a.csv vanished
        SourceError: its causes and ways out are in docs/reference/errors.md#sourceerror
    """
    try:
        yield
    except SourceError as error:
        text = str(error).removeprefix(f"source '{source}': ")
        if not text.startswith("job '"):
            where = f"job '{job}', source '{source}'" + (f", {doing}" if doing else "")
            error.args = (f"{where}: {text}",)
        raise
