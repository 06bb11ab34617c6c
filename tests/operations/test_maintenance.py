"""Compaction and retention on the real engine: they change no result and disturb no micro-batch."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.errors import ConfigurationError
from state_engine.microbatch.coordinator import CheckpointCoordinator
from tests.support.tiny import SavedSite, Site

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> SavedSite:
    site = Site(tmp_path_factory.mktemp("site"), spark)
    for i in range(4):
        site.put({"k": ["a", "b", "c"][: i + 1], "v": [1, 10, 100][: i + 1]}, f"{i}")
        site.engine().run(site.job())
    return SavedSite(site)


@pytest.fixture
def site(saved: SavedSite) -> Site:
    """After four micro-batches."""
    return saved.anew()


TOTALS = {"a": 4, "b": 30, "c": 200}


def test_compaction_changes_no_state_and_nothing_that_comes_after(site: Site) -> None:
    done = site.engine().compact("tiny")
    assert (done.checkpoint_id, done.committed_id, done.entries) == (4, 5, {"sums": 3})
    assert site.state() == TOTALS
    base = DeltaTable(str(site.directory / "root" / "tiny" / "operators" / "sums" / "base"))
    assert base.count() == 3
    assert sorted(base.to_pyarrow_table()["v_total"].to_pylist()) == [4, 30, 200]

    site.put({"k": ["a", "d"], "v": [1, 1]}, "more")
    site.engine().run(site.job(parallelism=3))
    assert site.state() == TOTALS | {"a": 5, "d": 1}
    assert site.engine().read_state("tiny", "sums", "total", checkpoint_id=2).count() == 2
    assert site.engine().compact("tiny", ["sums"]).entries == {"sums": 2}  # b and c keep their base
    assert site.state() == TOTALS | {"a": 5, "d": 1}
    assert site.engine().compact("tiny").committed_id is None  # nothing changed since


def test_a_micro_batch_goes_on_upon_a_compaction_that_came_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = site.outputs()
    stage = CheckpointCoordinator.stage

    def late(self: Any, attempt: Any) -> Any:
        staged = stage(self, attempt)
        assert site.engine().compact("tiny").committed_id == 5
        return staged

    site.put({"k": ["a"], "v": [1]}, "more")
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointCoordinator, "stage", late)
        report = site.engine().run(site.job())
    assert report.checkpoint_id == 6
    history = site.engine().checkpoints("tiny")
    assert [(r.checkpoint_id, r.parent_id, r.kind) for r in history[4:]] == [
        (5, 4, "compaction"),
        (6, 5, "checkpoint"),
    ]
    assert [b.base_id for o in history[5].operators for b in o.bases] == [history[4].write_id]
    assert site.state() == TOTALS | {"a": 5}
    assert len(site.outputs()) == len(outputs) + 1


def test_a_compaction_is_dropped_when_the_head_went_elsewhere(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from state_engine.operations import maintenance

    written = maintenance.write_base

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        files = written(*arguments, **options)
        site.engine().restore("tiny", checkpoint_id=2)
        return files

    monkeypatch.setattr(maintenance, "write_base", meanwhile)
    assert site.engine().compact("tiny").committed_id is None
    assert site.state() == {"a": 2, "b": 10}


def test_expired_checkpoints_cannot_be_restored(site: Site) -> None:
    policy = RetentionPolicy(keep_last=2)
    assert site.engine().expire_checkpoints("tiny", policy, dry_run=True) == [1, 2]
    assert len(site.engine().checkpoints("tiny")) == 4
    assert site.engine().expire_checkpoints("tiny", policy) == [1, 2]
    assert site.engine().expire_checkpoints("tiny", policy) == []
    with pytest.raises(ConfigurationError, match="checkpoint 2 was expired by row 5"):
        site.engine().restore("tiny", checkpoint_id=2)
    site.engine().restore("tiny", checkpoint_id=3)
    assert site.state() == {"a": 3, "b": 20, "c": 100}
