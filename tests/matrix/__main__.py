"""The core suite on every version of Spark and Python that the engine works with: ``python -m tests.matrix``.

Each combination has an environment of its own below ``.venv-matrix``: the packages of the lock, and the PySpark of
``spark-<version>.txt`` in place of the lock's. A Python that this machine does not have is left out, and said.
Arguments name combinations: ``python -m tests.matrix 3.13-4.1``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from state_engine.machine.spark_versions import SPARK_VERSIONS

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENTS = REPOSITORY / ".venv-matrix"
PYTHONS = ("3.11", "3.13")
PURE = ("tests/core",)
"""What depends on the version of Python alone: with one Spark for each Python."""
SUITE = (
    "tests/machine",
    "tests/queries",
    "tests/spark/test_session.py",
    "tests/spark/test_engine_session.py",
    "tests/spark/test_frame_code.py",
    "tests/spark/test_code_versions.py",
    "tests/spark/test_catalog.py",
    "tests/spark/test_shipping.py",
    "tests/spark/test_key_columns.py",
    "tests/spark/test_task_progress.py",
    "tests/spark/test_failures.py",
    "tests/storage/test_kernel.py",
    "tests/storage/test_commit.py",
    "tests/storage/test_delta_log.py",
    "tests/sources/test_delta.py",
    "tests/sources/test_delta_changes.py",
    "tests/sources/test_task_rows.py",
    "tests/sources/test_row_by_row.py",
    "tests/sources/test_python_data_source.py",
    "tests/sinks/test_delta.py",
    "tests/sinks/test_delta_spark.py",
    "tests/state_tables/test_following.py",
    "tests/state_tables/test_keyed_sinks.py",
    "tests/microbatch/test_routing.py",
    "tests/microbatch/test_operator_state_on_spark.py",
    "tests/microbatch/test_timers_on_spark.py",
    "tests/microbatch/test_worker_daemon.py",
    "tests/microbatch/test_fencing.py",
    "tests/operations/test_rescale.py",
    "tests/replay/test_replay.py",
)
"""What asks most of Spark and Kernel: sessions, catalogs, commits, reading, tasks."""
LEFT_OUT = "not long and not faults and not ui and not servers and not cluster"
TIMEOUT_S = "1800"
"""Of a test. One that is ended while Java answers leaves the session useless to all tests behind it."""
LEAKED = "ignore:unclosed <socket.socket:ResourceWarning"
"""PySpark 4.1 leaves sockets to workers open until they are collected."""


def main(wanted: list[str]) -> int:
    """Run every combination, or those that are wanted; how many failed."""
    failed = []
    for python in PYTHONS:
        for spark in SPARK_VERSIONS:
            name = f"{python}-{spark}"
            if wanted and name not in wanted:
                continue
            interpreter = _interpreter(python)
            if interpreter is None:
                print(
                    f"== Python {python} is not on this machine: Spark {spark} with it was not tried",
                    flush=True,
                )
                continue
            print(f"== Python {python}, Spark {spark}", flush=True)
            suite = [*PURE, *SUITE] if spark == next(iter(SPARK_VERSIONS)) else SUITE
            failed += [] if _passes(name, interpreter, spark, suite) else [name]
    print(f"== failed: {', '.join(failed)}" if failed else "== all passed")
    return len(failed)


def _interpreter(version: str) -> str | None:
    """A Python of this version: on the path, or one that pyenv keeps; a name on the path may stand for none."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    names = [shutil.which(f"python{version}"), *map(str, sorted(kept.glob(f"{version}.*/bin/python")))]
    return next((name for name in names if name and _run([name, "-c", ""])), None)


def _passes(name: str, python: str, spark: str, suite: Sequence[str]) -> bool:
    environment = ENVIRONMENTS / name
    interpreter = str(environment / "bin" / "python")
    run = ["-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "--timeout", TIMEOUT_S]
    tests = [*run, "-m", LEFT_OUT, "-W", LEAKED, *suite]
    return (
        _is_ready(environment, python, spark)
        and _run([str(environment / "bin" / "statelake"), "setup", "--s3"])
        and _run([interpreter, *tests])
    )


def _is_ready(environment: Path, python: str, spark: str) -> bool:
    pins = [REPOSITORY / "requirements.lock", Path(__file__).with_name(f"spark-{spark}.txt")]
    text = "".join(one.read_text() for one in pins if one.exists())
    mark = environment / ".installed"
    if mark.exists() and mark.read_text() == text:
        return True
    uv = [sys.executable, "-m", "uv"]
    install = [*uv, "pip", "install", "--quiet", "--python", str(environment / "bin" / "python")]
    done = (
        _run([*uv, "venv", "--quiet", "--clear", "--python", python, str(environment)])
        and _run([*install, "--require-hashes", "-r", str(pins[0])])
        and (not pins[1].exists() or _run([*install, "--require-hashes", "--no-deps", "-r", str(pins[1])]))
        and _run([*install, "--no-deps", "--no-build-isolation", "-e", str(REPOSITORY)])
    )
    if done:
        mark.write_text(text)
    return done


def _run(command: list[str]) -> bool:
    kept = {name: value for name, value in os.environ.items() if not re.match("VIRTUAL_ENV|PYTHONHOME", name)}
    return subprocess.run(command, cwd=REPOSITORY, env=kept, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
