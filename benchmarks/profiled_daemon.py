"""The engine's daemon of Python workers with a sampler in each: Spark starts it for ``benchmarks.profile``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.sampling import Sampler
from state_engine.microbatch.subtask.worker_daemon import preload, without_archives

DIRECTORY = "STATELAKE_PROFILE"
"""Environment of the daemon: the directory of the profile."""

if __name__ == "__main__":
    sys.path[:] = without_archives(sys.path)
    preload()
    directory = Path(os.environ[DIRECTORY])
    os.register_at_fork(after_in_child=lambda: Sampler(directory, "worker").start())
    from pyspark.daemon import manager

    manager()
