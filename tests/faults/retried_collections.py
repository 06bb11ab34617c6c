"""A collection beside an attempt that sleeps before its commit, and whose task ran twice; clocks are days apart."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from state_engine.core.checkpoints.write_ids import write_id_at
from state_engine.core.errors import CommitFailedError
from state_engine.operations.maintenance import Maintenance
from tests.faults.plane import Fault, installed
from tests.faults.retried_tasks import Bed, shown, written_by

DAY_NS = 24 * 3_600_000_000_000
WAIT_S = 300


def collections(bed: Bed) -> dict[str, Any]:
    """The collector's clock is two days ahead or behind; it collects while the attempt sleeps, or sleeps itself."""
    cases = {}
    for days in (2, -2):
        for name, sleeping in (("beside", _while_it_sleeps), ("before the fence", _before_the_fence)):
            bed.put_back("one")
            orphan = _old_orphan(bed)
            outcome = sleeping(bed, days)
            missing = bed.missing()
            bed.site().run()
            cases[f"{name}, {days} days"] = {
                "outcome": outcome,
                "missing": [*missing, *bed.missing()],
                "seen": shown(bed.site()),
                "orphan": os.path.exists(orphan),
            }
    return cases


def _while_it_sleeps(bed: Bed, days: int) -> str:
    """A whole collection runs just before the commit."""
    dying = bed.dying()
    with installed([Fault("before commit", action="zombie")], meanwhile=lambda: _collect(bed, days)) as plane:
        outcome = _outcome(lambda: bed.site(dying=dying).run(max_batches=1))
    assert plane.fired
    assert written_by(dying)
    return outcome


def _before_the_fence(bed: Bed, days: int) -> str:
    """The collector has listed files, and sleeps; the attempt commits; then the collector fences."""
    looked, committed, failures = threading.Event(), threading.Event(), list[BaseException]()
    real = Maintenance.fence

    def fence(self: Maintenance) -> Any:
        looked.set()
        assert committed.wait(WAIT_S)
        return real(self)

    def collect() -> None:
        try:
            _collect(bed, days)
        except BaseException as error:
            failures.append(error)
        finally:
            looked.set()

    collector = threading.Thread(target=collect)

    def begin() -> None:
        collector.start()
        assert looked.wait(WAIT_S)

    dying = bed.dying()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Maintenance, "fence", fence)
        with installed([Fault("before commit", action="zombie")], meanwhile=begin) as plane:
            try:
                outcome = _outcome(lambda: bed.site(dying=dying).run(max_batches=1))
            finally:
                committed.set()
                collector.join(WAIT_S)
    assert not failures, failures
    assert plane.fired
    assert written_by(dying)
    return outcome


def _outcome(run: Callable[[], Any]) -> str:
    try:
        run()
    except CommitFailedError:
        return "refused"
    return "committed"


def _collect(bed: Bed, days: int) -> None:
    site = bed.site()
    with clocks(days), site.engine() as engine:
        engine.vacuum(site.job())


@contextmanager
def clocks(days: int) -> Iterator[None]:
    """This process's wall clock is ahead."""
    wall_ns = time.time_ns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: wall_ns() + days * DAY_NS)
        patch.setattr(time, "time", lambda: (wall_ns() + days * DAY_NS) / 1e9)
        yield


def _old_orphan(bed: Bed) -> str:
    """A file of an attempt that died three days ago, so that there is something to collect."""
    then_ns = time.time_ns() - 3 * DAY_NS
    write_id = write_id_at(then_ns // 1_000_000, uuid4().int)
    path = bed.work / "root" / "every_sink" / "operators" / "sums" / "changelog" / f"write_id={write_id}"
    path.mkdir()
    file = path / f"part-00000-{write_id}-0.parquet"
    file.write_bytes(b"of nobody")
    os.utime(file, ns=(then_ns, then_ns))
    return str(file)
