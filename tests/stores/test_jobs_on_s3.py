"""A job whose root and Delta tables are in a store gives what it gives on a disk, through all operations.

The sinks that are no Delta tables lie on the disk in both cases; those of files need a rename.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine.storage.stores.files import join
from tests.faults.operations import HOURS, KEEP_ONE, KEY_GROUPS_AFTER, collect
from tests.faults.workloads import CUT, WORKLOADS, Site
from tests.support.store_proxy import StoreProxy

pytestmark = [pytest.mark.spark_tasks, pytest.mark.usefixtures("quick_race")]


def two_sites(
    workload: str, directory: Path, uri: str, spark: SparkSession, *, cut: int
) -> tuple[Site, Site]:
    """A job on a disk, and the same one in a store."""
    on_a_disk = Site(directory / "disk", WORKLOADS[workload], spark, cut=cut)
    return on_a_disk, Site(directory / "store", WORKLOADS[workload], spark, cut=cut, store=uri)


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

    place = site.store and join(site.store, "other")
    other = Site(site.directory / "other", site.workload, site.spark, store=place)
    with other.engine() as engine:
        engine.restore(other.job(), savepoint=savepoint)
    other.run()
    yield "from the savepoint", other.seen()


@pytest.mark.long
@pytest.mark.parametrize("workload", ["keyed", "sinks"])
def test_a_whole_life_in_a_store(
    workload: str, store: StoreProxy, uri: str, tmp_path: Path, spark: SparkSession
) -> None:
    on_a_disk, in_a_store = two_sites(workload, tmp_path, uri, spark, cut=CUT)
    for (step, seen), (_, wanted) in zip(life(in_a_store), life(on_a_disk), strict=True):
        assert seen == wanted, step


@pytest.mark.long
@pytest.mark.parametrize("workload", [name for name in WORKLOADS if name != "sinks"])
def test_a_job_in_a_store(
    workload: str, store: StoreProxy, uri: str, tmp_path: Path, spark: SparkSession
) -> None:
    on_a_disk, in_a_store = two_sites(workload, tmp_path, uri, spark, cut=5)
    on_a_disk.run()
    in_a_store.run()
    assert in_a_store.seen() == on_a_disk.seen()
