"""``python -m benchmarks.all``: the command behind ``make bench-all``.

Each part runs in a process of its own, one after the other, and leaves its figures as JSON; a run that was stopped goes
on with ``--resume``. What is there in the end becomes ``benchmarks.md``, with its pictures beside it, and
``last-figures.md``, the same section for ``docs/guides/benchmarks.md``, whose pictures belong into ``docs/pictures``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.all import page, records
from benchmarks.all.parts import PARTS
from benchmarks.figures import chosen_of, load_of_machine

OUTPUT = Path(".benchmarks")
_REPOSITORY = Path(__file__).parents[2]


def run(
    only: Annotated[str, typer.Option(help=f"Some of {', '.join(PARTS)}, comma-separated.")] = "",
    resume: Annotated[bool, typer.Option(help="Leave out parts whose figures are there.")] = False,
    quick: Annotated[bool, typer.Option(help="Small sizes: do all parts run? Figures mean nothing.")] = False,
    baseline: Annotated[
        Path | None, typer.Option(help="A checkout of 0.1.0, for catching up.", exists=True, file_okay=False)
    ] = None,
    output: Annotated[Path, typer.Option(help="Directory for figures, page and pictures.")] = OUTPUT,
) -> None:
    """Run all benchmarks, or some, and write one page."""
    chosen = chosen_of(only, list(PARTS), what="part")
    output.mkdir(parents=True, exist_ok=True)
    kept = records.read(output, quick=quick) if resume else {}
    waiting = [name for name in PARTS if name in chosen and name not in kept]
    minutes = sum(PARTS[name].minutes for name in waiting)
    print(
        f"{len(waiting)} parts{'' if quick else f', about {minutes:.0f} minutes'}; {load_of_machine()}",
        flush=True,
    )
    failed = [name for name in waiting if not _ran(name, output, quick=quick, baseline=baseline)]
    shown = page.write(output, records.read(output, quick=quick))
    print(f"wrote {shown}", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}; go on with --resume", flush=True)
        raise typer.Exit(code=1)


def _ran(name: str, output: Path, *, quick: bool, baseline: Path | None) -> bool:
    """Whether a new process measured a part; what an earlier one measured is dropped."""
    print(f"{name}: {PARTS[name].title}; {load_of_machine()}", flush=True)
    records.file_of(output, name).unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.all.one", name, str(output.resolve())]
    command += ["--quick"] if quick else []
    command += ["--baseline", str(baseline.resolve())] if baseline else []
    environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY)}
    return subprocess.run(command, env=environment, check=False).returncode == 0


if __name__ == "__main__":
    typer.run(run)
