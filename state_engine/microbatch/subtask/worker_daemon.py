"""The process that Spark forks its Python workers from, with what each of them needs already imported.

PySpark's own daemon imports next to nothing, so every worker spends a second on imports before its first row. It also
takes PySpark from an archive without compiled modules, whose directory every task reads again. Decision 0044.

Spark starts it as ``python -m state_engine.microbatch.subtask.worker_daemon pyspark.worker``.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path


def without_archives(path: list[str]) -> list[str]:
    """``sys.path`` without the archives of a PySpark that is also installed in a directory of that path.

    Example::

        >>> import pyspark
        >>> package = Path(pyspark.__file__).parent
        >>> archive = str(package / "python/lib/pyspark.zip")
        >>> without_archives([archive, str(package.parent), "/job.zip"]) == [str(package.parent), "/job.zip"]
        True
        >>> without_archives([archive]) == [archive]
        True
    """
    directories = {Path(entry).resolve() for entry in path}

    def is_installed(entry: str) -> bool:
        # <directory>/pyspark/python/lib/pyspark.zip
        above = Path(entry).resolve().parents[1:4]
        return (
            entry.endswith(".zip")
            and [p.name for p in above[:2]] == ["python", "pyspark"]
            and above[2] in directories
        )

    return [entry for entry in path if not is_installed(entry)]


def preload() -> None:
    """Imports what workers need, once for all that are forked."""
    import pandas  # noqa: F401  # pyarrow imports it for an array of numpy's
    import pyspark.worker  # noqa: F401

    import state_engine.microbatch.subtask.subtask  # noqa: F401

    # A garbage collection in a fork would write to, and so copy, the pages of all that was imported.
    gc.freeze()


if __name__ == "__main__":
    sys.path[:] = without_archives(sys.path)
    preload()
    from pyspark.daemon import manager

    manager()
