"""The files of the first attempt of a task are never visible: at once, after it wakes up, or after a restore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.faults.retried_tasks import Bed, shown


def outputs(bed: Bed) -> dict[str, Any]:
    """The attempt's files are whole, or torn."""
    return {"whole": _left_behind(bed, torn=False), "torn": _left_behind(bed, torn=True)}


def _left_behind(bed: Bed, *, torn: bool) -> dict[str, Any]:
    """A task dies in the second micro-batch; another wakes up; the job goes back, without the function, and on."""
    bed.put_back("one")
    first = bed.run_retried(torn=torn)
    outputs_now: dict[str, Any] = {"first": first, "seen": shown(bed.site())}
    outputs_now["listed"] = [f.path.rsplit("/", 1)[-1] for s in bed.site().path()[-1].sinks for f in s.files]
    for path in first:
        if "/_staged-" in path:  # a task that was given up wakes up
            Path(path).parent.mkdir(exist_ok=True)
            Path(path).write_bytes(b"late")
    bed.site().run()
    outputs_now["woken"] = shown(bed.site())
    fewer = bed.site(function=False)
    with fewer.engine() as engine:
        outputs_now["left_alone"] = [s.name for s in engine.restore(fewer.job(), checkpoint_id=1).left_alone]
    outputs_now["restored"] = shown(fewer)
    fewer.run()
    outputs_now["again"] = shown(fewer)
    return outputs_now
