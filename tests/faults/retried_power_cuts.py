"""A power cut during a micro-batch with a retried task; the disk loses what was not synced.

The driver's accesses to files are counted, and before the chosen one everything stops. What the workers and the JVM
wrote until then counts like the rest: whoever wrote it, a file is on the disk once the driver has synced it.
"""

from __future__ import annotations

import random
import traceback
from typing import Any

from state_engine.core.errors import StatelakeError
from tests.faults.file_plane import installed
from tests.faults.power_cut import Disk
from tests.faults.retried_markers import repair
from tests.faults.retried_tasks import Bed, shown, written_by

MOMENTS = 8


def power_cuts(bed: Bed) -> dict[str, Any]:
    """Cut at moments that divide the micro-batch evenly, and after its end; then repair where asked to, and run on."""
    accesses = _cut(bed, None)[0].seen
    cases = {}
    for number in range(1, MOMENTS + 1):
        stop = accesses * number // MOMENTS + (number == MOMENTS)
        disk, died = _cut(bed, stop)
        lost = disk.lose(random.Random(f"retried {number}"))
        bed.forget()
        failure = ""
        try:
            _run_on(bed)
        except Exception:
            failure = traceback.format_exc()
        cases[f"{stop} of {accesses}"] = {
            "off": disk.is_off,
            "died": died,
            "lost": lost,
            "failure": failure,
            "missing": [] if failure else bed.missing(),
            "seen": {} if failure else shown(bed.site()),
        }
    return cases


def _cut(bed: Bed, stop: int | None) -> tuple[Disk, bool]:
    """The second micro-batch, up to an access; whether its task had died before."""
    bed.put_back("one")
    dying = bed.dying()
    disk = Disk(str(bed.work), stop)
    with installed(disk):
        try:
            bed.site(dying=dying).run(max_batches=1)
        except BaseException:
            if not disk.is_off:
                raise
    return disk, bool(dying.marker.exists() and written_by(dying))


def _run_on(bed: Bed) -> None:
    """Run to the end, with a repair where the engine asks for it."""
    try:
        bed.site().run()
    except StatelakeError as error:
        if "doctor --repair" not in str(error):
            raise
        repair(bed)
        bed.site().run()
