"""The marker of a root is altered or missing after a micro-batch with a retried task: nothing is published twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from state_engine.cli.main import app
from state_engine.core.errors import RootError
from state_engine.storage.root import MARKER
from tests.faults.retried_tasks import Bed, shown


def _flipped(marker: Path) -> None:
    text = marker.read_text()
    root_id = json.loads(text)["root_id"]
    marker.write_text(text.replace(root_id, format(int(root_id[0], 16) ^ 1, "x") + root_id[1:]))


DAMAGES: dict[str, Callable[[Path], None]] = {"flipped": _flipped, "gone": Path.unlink}


def markers(bed: Bed) -> dict[str, Any]:
    """Refused, restored from the tables; then the job runs on."""
    cases = {}
    for name, damage in DAMAGES.items():
        bed.put_back("retried")
        marker = bed.work / "root" / MARKER
        before = json.loads(marker.read_text())
        damage(marker)
        refused = ""
        try:
            bed.site().run()
        except RootError as error:
            refused = str(error)
        seen = shown_without_the_engine(bed)
        done = repair(bed)
        bed.site().run()
        cases[name] = {
            "refused": refused,
            "outputs": seen,
            "repair": done,
            "same_id": json.loads(marker.read_text())["root_id"] == before["root_id"],
            "seen": shown(bed.site()),
        }
    return cases


def repair(bed: Bed) -> str:
    """The output of ``statelake doctor --repair``; raises AssertionError where damage remains."""
    done = CliRunner().invoke(app, ["doctor", "--repair"], env={"STATELAKE__ROOT": str(bed.work / "root")})
    text = " ".join(done.output.split())
    assert done.exit_code == 0, f"{text} {done.exception!r}"
    return text


def shown_without_the_engine(bed: Bed) -> dict[str, Any]:
    """The outputs, by kind of sink: they need no root."""
    outputs = bed.site().outputs()
    return {name.split("_")[0] if name != "dead_letters" else name: rows for name, rows in outputs.items()}
