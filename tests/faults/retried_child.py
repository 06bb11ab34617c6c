"""Cases of retried tasks, in one Spark application of their own: ``python -m tests.faults.retried_child <settings>``.

Writes to ``result.json`` what calm runs show after each checkpoint, and what each case saw, or how it failed.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.retried_collections import collections
from tests.faults.retried_flips import flips
from tests.faults.retried_markers import markers
from tests.faults.retried_outputs import outputs
from tests.faults.retried_power_cuts import power_cuts
from tests.faults.retried_tasks import ALL, CUT, EVERY_SINK, POSTGRES, Bed, PostgresSite, shown, workload

CASES: Mapping[str, Callable[[Bed], dict[str, Any]]] = {
    case.__name__: case for case in (outputs, collections, markers, flips, power_cuts)
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
