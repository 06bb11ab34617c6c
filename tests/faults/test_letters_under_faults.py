"""Dead letters that are sent again, with every kind of sink that can withdraw: every fault point of the micro-batch.

By raising, and with a zombie that another runner overtakes; then it is done again, and nothing is lost or doubled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import DataStream, StatefulJob
from state_engine.core.errors import StaleParentError
from tests.faults.cases import COMMITTED, ONCE
from tests.faults.plane import Action, Fault, InjectedFault, installed
from tests.faults.workloads import CLOCK_MS, EVENTS, REFUSED, WORKLOADS, Seen, Site, _events, sums

pytestmark = [pytest.mark.spark, pytest.mark.faults]


def _mended(job: StatefulJob, cut: int) -> Mapping[str, DataStream]:
    """The job of the workload ``sinks`` with a function that refuses no element."""
    return dict.fromkeys(WORKLOADS["sinks"].sinks, sums(_events(job, cut), "k", "sums"))


MENDED = replace(WORKLOADS["sinks"], build=_mended)
SINKS = len(MENDED.sinks)


def faults(action: Action) -> Iterator[Fault]:
    for point in (*ONCE, "after operator"):
        yield Fault(point, 1, action)
    for nth in range(1, SINKS + 1):
        yield Fault("after sink published", nth, action)


@dataclass(frozen=True)
class Letters:
    """A job that has refused some rows, to be broken again and again, and what sending them gives."""

    site: Site
    saved: Path
    sent: Seen
    waiting: int

    def fresh(self) -> Site:
        self.site.put_back(self.saved)
        return self.site.again()

    def check_end(self, site: Site) -> None:
        """Finish after a fault; the results equal those without one."""
        with site.engine() as engine:
            engine.publish_pending(site.job())
        send(site)
        assert waiting(site) == 0
        assert site.run().batches == []
        assert site.seen() == self.sent


def send(site: Site) -> Any:
    with site.engine() as engine:
        return engine.replay_dead_letters(site.job(), clock=CLOCK_MS)


def waiting(site: Site) -> int:
    with site.engine() as engine:
        return len(engine.list_dead_letters(site.job()))


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Letters:
    base = tmp_path_factory.mktemp("letters")
    Site(base / "work", WORKLOADS["sinks"], spark).run()
    site, count = Site(base / "work", MENDED, spark), sum(n == REFUSED for _, n in EVENTS)
    site.save(base / "saved")
    assert waiting(site) == count
    before = site.outputs()
    report = send(site)
    assert (len(report.sent), report.refused, len(report.batches)) == (count, 0, 1)
    sent = site.seen()
    assert all(len(sent.outputs[name]) == len(before[name]) + count for name in MENDED.sinks)
    return Letters(site, base / "saved", sent, count)


@pytest.mark.parametrize("fault", list(faults("raise")), ids=str)
def test_sending_that_fails_is_done_again(fault: Fault, letters: Letters) -> None:
    site = letters.fresh()
    with installed([fault]) as plane:
        with pytest.raises(InjectedFault):
            send(site)
        assert plane.fired == [fault]
    assert waiting(site) == (0 if fault.point in COMMITTED else letters.waiting)
    letters.check_end(site)


@pytest.mark.parametrize("fault", list(faults("zombie")), ids=str)
def test_a_sender_that_slept_sends_nothing_twice(fault: Fault, letters: Letters) -> None:
    """While it sleeps another runner sends them, unless they are sent already."""
    site = letters.fresh()
    with installed([fault], meanwhile=lambda: send(site.again())):
        if fault.point in COMMITTED:
            send(site)
        else:
            with pytest.raises(StaleParentError):
                send(site)
    letters.check_end(site)
