"""Operators leave a job that goes on; other columns of a key are no other type of the same key."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession

from state_engine import DeltaSink, DeltaStateTable, FileSource, StatefulJob
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.errors import ConfigurationError, StateMigrationError
from tests.support.tiny import Site, Sum

pytestmark = pytest.mark.spark


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Site:
    """After one micro-batch of a job with two operators; more input waits."""
    site = Site(tmp_path, spark).put({"k": ["a", "b"], "v": [1, 2]})
    site.engine().run(job_of(site, "sums", "old"))
    return site.put({"k": ["a"], "v": [10]}, "1")


def job_of(site: Site, *uids: str, key: str = "k") -> StatefulJob:
    job = StatefulJob("tiny", parallelism=2)
    rows = job.source("events", FileSource(str(site.feed)))
    for uid in uids:
        sums = rows.key_by(key).process(Sum(), uid=uid, output_type="k string, v bigint, total bigint")
        sums.sink(uid, DeltaSink(str(site.directory / uid)))
        if uid == "old":
            sums.publish_state("total", DeltaStateTable(str(site.directory / "shown")), name="shown")
    return job


def test_an_operator_leaves_and_the_job_goes_on(site: Site) -> None:
    engine, job = site.engine(), job_of(site, "sums")
    with pytest.raises(StateMigrationError, match=r"drop_operators\('old'\).*drop-operators tiny --operator"):
        engine.run(job)
    processor = engine.state_processor(job)
    planned = processor.drop_operators("old", dry_run=True)
    assert (planned.operators, planned.committed_id) == ({"old": {"total": 2}}, None)
    assert len(engine.checkpoints(job)) == 1
    done = processor.drop_operators("old", requested_by="me")
    row = engine.checkpoints(job)[-1]
    assert (row.checkpoint_id, row.kind, row.requested_by) == (
        done.committed_id,
        CheckpointKind.TRANSFORM,
        "me",
    )
    assert [operator.uid for operator in row.operators] == ["sums"]
    engine.run(job)
    assert site.state() == {"a": 11, "b": 2}
    assert sorted(pl.read_delta(str(site.directory / "shown")).rows()) == [("a", 1), ("b", 2)]  # as it was

    engine.run(job_of(site.put({"k": ["b"], "v": [5]}, "2"), "sums", "old"))  # it begins with nothing
    assert (site.state(), site.state(operator="old")) == ({"a": 11, "b": 7}, {"b": 5})
    engine.restore("tiny", checkpoint_id=1)
    assert site.state(operator="old") == {"a": 1, "b": 2}


def test_an_operator_that_the_code_has_or_nobody_knows_is_not_dropped(site: Site) -> None:
    processor = site.engine().state_processor(job_of(site, "sums", "old"))
    with pytest.raises(ConfigurationError, match=r"its code still has operators \['old'\]: take them out"):
        processor.drop_operators("old")
    with pytest.raises(ConfigurationError, match=r"holds no state of operators \['other'\]; it holds that"):
        processor.drop_operators("other")
    assert len(site.engine().checkpoints("tiny")) == 1


def test_a_key_of_other_columns_is_no_other_type(site: Site) -> None:
    processor = site.engine().state_processor(job_of(site, "sums", "old", key="v"))
    with pytest.raises(ConfigurationError, match=r"stored by \['k'\], the job keys by \['v'\]. Other"):
        processor.change_key_type("sums", dry_run=True)
