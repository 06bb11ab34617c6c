"""A chain of operators gives what a plain program gives, whatever happens to its job."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.chain_of_operators import plainly
from tests.faults.operations import BRANCH
from tests.faults.plane import Fault, InjectedFault, installed
from tests.faults.workloads import WORKLOADS, Site

WORKLOAD = WORKLOADS["operators"]
CUT_OF_CHAIN = 4


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Site:
    return Site(tmp_path, WORKLOAD, spark, cut=CUT_OF_CHAIN)


def test_in_one_micro_batch_it_gives_what_a_plain_program_gives(site: Site) -> None:
    site.cut = 100
    assert site.run(parallelism=1).caught_up
    assert site.outputs() == plainly()


def test_faults_restores_rescales_and_replays_change_nothing(site: Site) -> None:
    def ends_at(point: str, nth: int = 1) -> None:
        with installed([Fault(point, nth)]) as plane, pytest.raises(InjectedFault):
            site.again().run()
        assert plane.fired

    name = WORKLOAD.name
    ends_at("after commit_changelog", 3)
    site.run(max_batches=1)
    ends_at("after operator", 2)
    ends_at("before rows of a Delta table")
    ends_at("after rows of a Delta table")
    with site.engine() as engine:
        engine.compact(name)
        engine.rescale(site.job(), parallelism=3)
    ends_at("after sink published")
    with site.engine() as engine:
        engine.restore(site.job(), checkpoint_id=1)
    first = site.outputs()
    ends_at("after entry of checkpoints")
    with site.engine() as engine:
        engine.restore(site.job(), checkpoint_id=1)
        assert site.outputs() == first
    assert site.run(parallelism=1).caught_up
    assert site.outputs() == plainly()
    with site.engine() as engine:
        engine.replay(site.job(), branch=BRANCH)
        comparison = engine.compare(name, BRANCH)
        assert comparison.is_equal, comparison.summary()
        engine.promote(site.job(), BRANCH)
    assert site.outputs() == plainly()
