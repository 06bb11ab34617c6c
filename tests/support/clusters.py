"""Clusters of Spark on this machine, whose executors run a Python of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

import psutil
import pyspark

from state_engine.machine.java import find_java_home
from tests.support.ports import free_port
from tests.support.waiting import until

_WAIT_S = 600.0
_EXECUTOR = "CoarseGrainedExecutorBackend"
_DEPLOY = "org.apache.spark.deploy"


def python_program(directory: Path, *, libraries: bool = True, without: Collection[str] = ()) -> Path:
    """This environment's Python, without what is installed as a link, as the engine is.

    Args:
        directory: new; the program and links to what it has lie there.
        libraries: whether there is any beside the standard library.
        without: names of modules that it does not have.
    """
    packages = directory / "packages"
    packages.mkdir(parents=True)
    for one in Path(sysconfig.get_path("purelib")).iterdir() if libraries else ():
        if one.name.partition(".")[0] not in without and one.suffix != ".pth":
            (packages / one.name).symlink_to(one)
    program = directory / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec "{sys.executable}" -S "$@"\n')
    program.chmod(0o755)
    return program


def spark_home(directory: Path) -> Path:
    """A home of this PySpark's Spark where executors of ``local-cluster`` can put their files."""
    directory.mkdir()
    for name in ("bin", "jars", "python"):
        (directory / name).symlink_to(Path(pyspark.__file__).parent / name)
    return directory


class Cluster:
    """A standalone master and workers, each with a host name of its own, and a core for each of its executors."""

    def __init__(self, directory: Path, stack: ExitStack, *, workers: int = 2, cores: int = 1) -> None:
        self._home = Path(pyspark.__file__).parent
        self.directory, self._cores, self.local = directory, cores, directory / "local"
        java = find_java_home(environ=os.environ, explicit=None)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYTHONPATH"))},
            "JAVA_HOME": str(java.path),
            "SPARK_HOME": str(self._home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.local),
        }
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        stack.callback(self._end)
        options = ["--host", "127.0.0.1", "--port", f"{port}", "--webui-port", "0"]
        self._start("master", "master.Master", options)
        log = directory / "master.log"
        until(lambda: "I have been elected leader" in log.read_text(), "master", within_s=_WAIT_S)
        for number in range(workers):
            self.start_worker(number)

    def start_worker(self, number: int) -> None:
        """Start a worker, for the first time or again."""
        # Spark runs no second attempt of a task on the host of the first one
        options = ["--host", f"127.0.0.{number + 1}", "--webui-port", "0", "--cores", f"{self._cores}"]
        options += ["--memory", f"{self._cores}g", "--work-dir", str(self.directory / f"work{number}")]
        self._start(f"worker{number}", "worker.Worker", [*options, self.master])

    def kill_worker(self, number: int) -> list[int]:
        """SIGKILL to a worker and to all that runs on it; the process ids of its executors."""
        process = self._processes[f"worker{number}"]
        executors = [one.pid for one in self.executors(number)]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return executors

    def executors(self, number: int) -> list[psutil.Process]:
        """Executors of a worker."""
        return [
            one
            for one in psutil.Process(self._processes[f"worker{number}"].pid).children()
            if is_executor(one)
        ]

    def worker_of(self, executor: psutil.Process) -> int:
        """The number of the worker whose child an executor is."""
        numbers = {process.pid: name for name, process in self._processes.items()}
        return int(numbers[executor.ppid()].removeprefix("worker"))

    def _start(self, name: str, kind: str, options: list[str]) -> None:
        command = [str(self._home / "bin" / "spark-class"), f"{_DEPLOY}.{kind}", *options]
        # what tasks need of the driver's environment has to be sent to them
        environment = {k: v for k, v in self.environment.items() if not k.startswith("STORE_")}
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                cwd=self.directory,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _end(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def is_executor(process: psutil.Process) -> bool:
    """Whether a process is an executor of Spark."""
    try:
        return any(_EXECUTOR in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def executor_of(worker: int) -> psutil.Process:
    """The executor whose Python worker a process is."""
    return next(process for process in psutil.Process(worker).parents() if is_executor(process))
