"""A hundred compactions beside micro-batches, most of them interrupted at some step: results stay right."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from state_engine import DataStream, StatefulJob
from state_engine.core.errors import StatelakeError
from tests.faults.plane import Fault, InjectedFault, installed
from tests.faults.workloads import PAIR, Site, Workload, sums

pytestmark = [pytest.mark.spark, pytest.mark.faults]

ROUNDS = 100
EVENTS = [("abcdefg"[i * i % 7], (i * 5 + 2) % 13) for i in range(ROUNDS)]
STEPS = ("after base written", "after base committed", "before background row", "after background row")


def _raced(job: StatefulJob, cut: int) -> Mapping[str, DataStream]:
    events = job.from_collection(EVENTS, PAIR, name="events", max_rows_per_batch=cut)
    return {"delta": sums(events, "k", "sums")}


RACED = Workload("raced", _raced, ("sums",), ("delta",))


@pytest.mark.timeout(1200)
def test_a_hundred_compactions_change_nothing(tmp_path: Path, spark: SparkSession) -> None:
    plain = Site(tmp_path / "plain", RACED, spark, cut=ROUNDS)
    assert plain.run().caught_up
    site, dice, shown = Site(tmp_path / "raced", RACED, spark, cut=1), random.Random(7), Counter[str]()
    assert len(site.run(max_batches=1).batches) == 1
    for _ in range(ROUNDS - 1):
        broken_at = dice.choice([None, *STEPS])

        def compact(broken_at: str | None = broken_at) -> None:
            with site.engine() as engine:
                try:
                    done = engine.compact(RACED.name)
                    shown["committed" if done.committed_id else "nothing to do, or dropped"] += 1
                except InjectedFault:
                    shown[f"broken off {broken_at}"] += 1
                except StatelakeError as error:
                    shown[f"failed: {error}"] += 1

        with installed([Fault(broken_at)] if broken_at else []):
            beside = threading.Thread(target=compact)
            beside.start()
            ran = site.again().run(max_batches=1)
            beside.join()
        assert len(ran.batches) == 1
    assert site.run().caught_up
    assert site.seen() == plain.seen()
    print(dict(shown))
    assert not [text for text in shown if text.startswith("failed")]
    assert set(shown) >= {"committed", *(f"broken off {step}" for step in STEPS)}
    # what broke off is nobody's, and the next compaction leaves one base
    with site.engine() as engine:
        engine.compact(RACED.name, full=True)
    assert site.seen() == plain.seen()
