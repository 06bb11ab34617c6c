"""The process that Spark forks its Python workers from, with what each of them needs already imported.

PySpark's own daemon imports next to nothing, so every worker spends a second on imports before its first row. It also
takes PySpark from an archive without compiled modules, whose directory every task reads again.

Spark ends an idle worker by closing its connection. PySpark's worker takes that for an error and prints it; when Java
is gone by then, a lone "Traceback" reaches the terminal. Ours ends silently.

Spark starts it as ``python -m state_engine.microbatch.subtask.worker_daemon pyspark.worker``.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from io import BufferedReader, BufferedWriter
from pathlib import Path

Main = Callable[[BufferedReader, BufferedWriter], None]


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


def until_closed(main: Main) -> Main:
    """What a worker runs for a task; without a task, because the connection has ended, it exits with 1.

    The daemon of PySpark 4.2 lets a worker that exits with another code than 0 close the connection and end.

    Example:
        >>> from io import BytesIO
        >>> run = until_closed(lambda infile, outfile: print(infile.read()))
        >>> run(BufferedReader(BytesIO(b"task")), BufferedWriter(BytesIO()))
        b'task'
        >>> run(BufferedReader(BytesIO(b"")), BufferedWriter(BytesIO()))
        Traceback (most recent call last):
        SystemExit: 1
    """

    @wraps(main)
    def run(infile: BufferedReader, outfile: BufferedWriter) -> None:
        try:
            is_open = bool(infile.peek(1))
        except ConnectionError:
            is_open = False
        if not is_open:
            raise SystemExit(1)
        main(infile, outfile)

    return run


def end_quietly(worker: str) -> None:
    """Have the ``main`` of a worker's module, such as ``pyspark.worker``, end when Spark closes its connection."""
    module = import_module(worker)
    module.main = until_closed(module.main)  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.path[:] = without_archives(sys.path)
    preload()
    end_quietly(sys.argv[1])
    from pyspark.daemon import manager

    manager()
