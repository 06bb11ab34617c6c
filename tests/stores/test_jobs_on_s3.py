"""A job whose root and Delta tables are in a store gives what it gives on a disk, through all operations.

With every kind of sink at once, but for those of files, which need a rename and lie on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine.storage.files import join
from tests.faults.performing import HOURS, KEEP_ONE, KEY_GROUPS_AFTER, collect
from tests.faults.workloads import WORKLOADS, Site
from tests.support.store_proxy import StoreProxy

pytestmark = [pytest.mark.spark_tasks, pytest.mark.usefixtures("quick_race")]


def life(site: Site) -> Iterator[tuple[str, Any]]:
    """What is seen of a job after each operation on it."""
    name, savepoint = site.workload.name, join(site.store or str(site.directory), "safe")
    site.run(max_batches=1)
    yield "one micro-batch", site.seen()
    with site.engine() as engine:
        engine.savepoints(name).create("safe", savepoint)
        assert engine.savepoints(name).verify("safe").checkpoint_id == 1
        yield "state by SQL", sorted(map(tuple, engine.sql(name, "SELECT k, value FROM sum").collect()))
    site.run()
    yield "all micro-batches", site.seen()
    with site.engine() as engine:
        engine.restore(name, checkpoint_id=1)
    yield "restored", site.seen()
    with site.engine() as engine:
        engine.rescale(site.job(), parallelism=3)
        engine.compact(name)
    site.run(parallelism=3)
    yield "rescaled, compacted, all again", site.seen()
    with site.engine() as engine:
        yield "letters", len(engine.list_dead_letters(name))
        engine.rescale(site.job(), max_parallelism=KEY_GROUPS_AFTER)
        engine.expire_checkpoints(name, KEEP_ONE)
    site.max_parallelism = KEY_GROUPS_AFTER
    yield "in more key groups", site.seen()
    gone = [collect(site, hours=hours) for hours in (HOURS, 2 * HOURS)]
    yield "collected", [len(report.files) for report in gone]
    yield "seen after that", site.seen()

    other = Site(
        site.directory / "other",
        site.workload,
        site.spark,
        store=site.store and f"{site.store}/other",
    )
    with other.engine() as engine:
        engine.restore(other.job(), savepoint=savepoint)
    other.run()
    yield "from the savepoint", other.seen()


@pytest.mark.long
@pytest.mark.parametrize("workload", ["keyed", "sinks"])
def test_a_whole_life_in_a_store(
    workload: str, store: StoreProxy, uri: str, tmp_path: Path, spark: SparkSession
) -> None:
    on_a_disk, in_a_store = (
        Site(tmp_path / where, WORKLOADS[workload], spark, store=place)
        for where, place in (("disk", None), ("store", uri))
    )
    for (step, seen), (_, wanted) in zip(life(in_a_store), life(on_a_disk), strict=True):
        assert seen == wanted, step


@pytest.mark.long
@pytest.mark.parametrize(
    "workload",
    [name for name in WORKLOADS if name != "sinks"],
)
def test_a_job_in_a_store(
    workload: str, store: StoreProxy, uri: str, tmp_path: Path, spark: SparkSession
) -> None:
    sites = [
        Site(tmp_path / where, WORKLOADS[workload], spark, cut=5, store=place)
        for where, place in (("disk", None), ("store", uri))
    ]
    for site in sites:
        site.run()
    assert sites[0].seen() == sites[1].seen()
