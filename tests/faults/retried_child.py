"""Cases of retried tasks, in one Spark application of their own: ``python -m tests.faults.retried_child <settings>``.

Writes to ``result.json`` what calm runs show after each checkpoint, and what each case saw, or how it failed.

For a power cut, the driver's accesses to files are counted, and before the chosen one everything stops. What the
workers and the JVM wrote until then counts like the rest: a file is on the disk once the driver has synced it.
"""

from __future__ import annotations

import json
import random
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from state_engine.cli.main import app
from state_engine.core.errors import StatelakeError
from tests.faults.file_plane import installed
from tests.faults.power_cut import Disk
from tests.faults.retried_flips import flips
from tests.faults.retried_tasks import (
    ALL,
    CUT,
    EVERY_SINK,
    POSTGRES,
    Bed,
    PostgresSite,
    shown,
    workload,
    written_by,
)


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


def repair(bed: Bed) -> str:
    """The output of ``statelake doctor --repair``; raises AssertionError where damage remains."""
    done = CliRunner().invoke(app, ["doctor", "--repair"], env={"STATELAKE__ROOT": str(bed.work / "root")})
    text = " ".join(done.output.split())
    assert done.exit_code == 0, f"{text} {done.exception!r}"
    return text


CASES: Mapping[str, Callable[[Bed], dict[str, Any]]] = {
    case.__name__: case for case in (outputs, flips, power_cuts)
}


def main(directory: str, master: str, options: dict[str, str], cases: Sequence[str] = tuple(CASES)) -> None:
    from state_engine.machine.settings import SparkSettings
    from state_engine.spark.session import local_session

    settings = SparkSettings(master=master, driver_memory="2g", options=options)
    spark = local_session(settings, app_name="statelake-retries")
    result: dict[str, Any] = {"calm": {}, "failures": {}}
    try:
        sinks = (*EVERY_SINK, f"{POSTGRES}_calm")
        calm = PostgresSite(Path(directory) / "calm", workload(sinks), spark, cut=CUT)
        for checkpoint_id in ALL:
            calm.run(max_batches=1)
            result["calm"][checkpoint_id] = shown(calm)
        bed = Bed(Path(directory), spark)
        bed.site().run(max_batches=1)
        bed.save("one")
        bed.run_retried()
        bed.save("retried")
        for name in cases:
            began = time.monotonic()
            try:
                result[name] = CASES[name](bed)
            except Exception:
                result["failures"][name] = traceback.format_exc()
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    finally:
        spark.stop()
    (Path(directory) / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
