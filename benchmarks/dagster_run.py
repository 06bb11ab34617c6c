"""``python -m benchmarks.dagster_run``: what a run costs in Dagster beside ``statelake run``, for the same input.

By turns ``statelake run`` in a new process and ``dg launch`` of the same job with its three checks, each on an empty
root of its own with the same events. Counted are the wall time of the command and the processor time of all of its
processes, which a busy machine disturbs less. The last line is ``a Dagster run adds N s``, by the medians.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import psutil
import typer

from benchmarks.comparison import SMALL_BATCH
from benchmarks.figures import Spread, load_of_machine
from benchmarks.workload import Feed, Workload, hand_over, scratch
from state_engine.machine.java import find_java_home

COMMAND, DAGSTER = "statelake run", "dg launch"
_BIN = Path(sys.executable).parent
_COMMANDS: dict[str, list[str | Path]] = {
    COMMAND: [_BIN / "statelake", "run", "count_window_average"],
    DAGSTER: [
        _BIN / "dg",
        "launch",
        "--assets",
        "group:count_window_average",
        "-m",
        "benchmarks.dagster_project",
    ],
}
_EVERY_S = 0.1


def run(
    events: Annotated[int, typer.Option(min=1, help="Events, on an empty root.")] = SMALL_BATCH,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each command that are counted.")] = 3,
    warm_up: Annotated[
        int, typer.Option(min=1, help="Rounds before these; they set Dagster's storage up.")
    ] = 1,
) -> None:
    """Compare a run in Dagster with one of the command line, each in a new process."""
    wall: dict[str, list[float]] = {name: [] for name in _COMMANDS}
    processor: dict[str, list[float]] = {name: [] for name in _COMMANDS}
    with scratch() as directory:
        home = directory / "dagster"
        home.mkdir()
        batch = Feed(Workload(events), directory / "feed").write(events)
        for number in range(warm_up + rounds):
            for name, command in _COMMANDS.items():
                project = directory / f"{name.split()[0]}-{number}"
                (project / "input").mkdir(parents=True)
                hand_over(batch, project / "input")
                settings = 'root = "root"\n[jobs]\nmodules = ["benchmarks.started"]\n'
                (project / "statelake.toml").write_text(settings)
                seconds, processor_s = measured(command, project, home)
                print(
                    f"{name}: {seconds:.1f} s, {processor_s:.1f} s of processor; {load_of_machine()}",
                    flush=True,
                )
                if number >= warm_up:
                    wall[name].append(seconds)
                    processor[name].append(processor_s)
    for name in _COMMANDS:
        print(f"{name}: {Spread.of(wall[name])}; processor {Spread.of(processor[name]).median:.1f} s")
    added = [Spread.of(kind[DAGSTER]).median - Spread.of(kind[COMMAND]).median for kind in (wall, processor)]
    print(f"a Dagster run adds {added[0]:.1f} s, {added[1]:.1f} s of processor", flush=True)


def measured(command: list[str | Path], directory: Path, home: Path) -> tuple[float, float]:
    """Wall and processor seconds of a command and of all processes that it starts.

    Args:
        command: with its arguments.
        directory: that it works in.
        home: of Dagster.

    Raises:
        RuntimeError: it failed; with what it wrote.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "DAGSTER_HOME": str(home),
        "JAVA_HOME": str(find_java_home(environ=os.environ, explicit=None).path),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process compiles all of Dagster anew
    log, began = directory / "log", time.perf_counter()
    with log.open("wb") as output:
        process = psutil.Popen(
            command, cwd=directory, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        taken: dict[int, float] = {}
        while process.poll() is None:
            taken |= _processor_s(process)
            time.sleep(_EVERY_S)
    seconds = time.perf_counter() - began
    if process.returncode:
        raise RuntimeError(f"{command} failed:\n{log.read_text()[-4000:]}")
    return seconds, sum(taken.values())


def _processor_s(process: psutil.Process) -> dict[int, float]:
    """Processor time so far of a process and of all below it, by id."""
    times = {}
    for one in [process, *process.children(recursive=True)]:
        try:
            spent = one.cpu_times()
        except psutil.Error:  # it ended meanwhile
            continue
        times[one.pid] = spent.user + spent.system
    return times


if __name__ == "__main__":
    typer.run(run)
