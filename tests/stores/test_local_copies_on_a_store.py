"""Local copies of bases in a store: a job gives what it gives on a disk, and copies hide no object that is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from state_engine.core.errors import MissingFilesError
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores.files import open_location, parquet_files
from tests.faults.workloads import WORKLOADS, Site
from tests.support.forced_copies import forced
from tests.support.store_proxy import StoreProxy

NAME, OPERATOR = "keyed", "sums"


@pytest.mark.usefixtures("quick_race")
def test_a_job_in_a_store_with_local_copies(
    store: StoreProxy, uri: str, tmp_path: Path, spark: SparkSession
) -> None:
    here = Site(tmp_path / "disk", WORKLOADS[NAME], spark, cut=2)
    there = Site(tmp_path / "store", WORKLOADS[NAME], spark, cut=2, store=uri)
    layout = JobLayout(there.root, NAME)
    with forced(tmp_path / "copies") as copies:
        for site in (here, there):
            site.run(max_batches=2)
            with site.engine() as engine:
                engine.compact(NAME)
            site.run(max_batches=2)
        assert list(copies.of_operator(layout, OPERATOR).glob("*.blocks"))
        assert there.seen() == here.seen()
        base = layout.base(OPERATOR)
        for path in parquet_files(base):
            open_location(f"{base}/{path}").delete()
        with pytest.raises(MissingFilesError, match="somebody deleted it"):
            there.run(max_batches=1)
