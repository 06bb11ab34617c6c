"""Restore and rescale on the real engine: state and sinks move together, and nothing is written needlessly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import StatefulJob
from state_engine.core.errors import MissingFilesError, SinkError
from tests.support.tiny import SavedSite, Site

pytestmark = pytest.mark.spark

BATCHES = [
    {"k": ["a", "b", "a"], "v": [1, 2, 3]},
    {"k": ["b", "c"], "v": [4, 5]},
    {"k": ["a", "c", "d"], "v": [6, 7, 8]},
]
TOTALS = [{"a": 4, "b": 2}, {"a": 4, "b": 6, "c": 5}, {"a": 10, "b": 6, "c": 12, "d": 8}]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> SavedSite:
    site = Site(tmp_path_factory.mktemp("site"), spark)
    for i, rows in enumerate(BATCHES):
        site.put(rows, f"{i}")
        site.engine().run(site.job())
    assert site.state() == TOTALS[2]
    return SavedSite(site)


@pytest.fixture
def site(saved: SavedSite) -> Site:
    """After three micro-batches."""
    return saved.anew()


def changes_of_state(site: Site) -> int:
    return DeltaTable(str(site.directory / "root" / "tiny" / "operators" / "sums" / "changelog")).count()


@pytest.mark.spark_tasks
def test_a_restore_moves_state_positions_and_sinks(site: Site) -> None:
    outputs = site.outputs()
    planned = site.engine().restore("tiny", checkpoint_id=1, dry_run=True)
    assert (planned.replaced_id, planned.abandoned, planned.committed_id) == (3, [2, 3], None)
    assert planned.rows_withdrawn == {"out": 5}
    assert (site.outputs(), len(site.engine().checkpoints("tiny"))) == (outputs, 3)

    done = site.engine().restore("tiny", checkpoint_id=1)
    assert done.committed_id == 4
    assert site.state() == TOTALS[0]
    assert len(site.outputs()) == 3
    history = site.engine().checkpoints("tiny")
    assert [(r.checkpoint_id, r.parent_id, r.kind, r.replaced_id) for r in history[2:]] == [
        (3, 2, "checkpoint", None),
        (4, 1, "restore", 3),
    ]

    site.engine().run(site.job())  # reads again what was given back, at another cut
    assert site.state() == TOTALS[2]
    assert sorted(site.outputs()) == sorted(outputs)
    assert site.engine().read_state("tiny", "sums", "total", checkpoint_id=2).count() == 3


def test_a_restore_can_be_undone(site: Site) -> None:
    outputs = site.outputs()
    site.engine().restore("tiny", checkpoint_id=1)
    site.engine().restore("tiny", checkpoint_id=3)
    assert site.state() == TOTALS[2]
    assert site.outputs() == outputs
    assert not site.engine().run(site.job()).batches


def test_outputs_may_be_kept(site: Site) -> None:
    outputs = site.outputs()
    site.engine().restore("tiny", checkpoint_id=2, outputs="keep")
    assert site.outputs() == outputs
    site.engine().run(site.job())
    assert len(site.outputs()) == len(outputs) + 3
    assert site.state() == TOTALS[2]


def test_what_cannot_be_withdrawn_is_refused_before_anything_is_done(site: Site) -> None:
    DeltaTable(str(site.sink)).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(SinkError, match=r"outputs=.keep."):
        site.engine().restore("tiny", checkpoint_id=1)
    assert len(site.engine().checkpoints("tiny")) == 3
    assert site.state() == TOTALS[2]


def test_a_crash_between_the_restore_and_its_publication_is_settled(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from state_engine.sinks.delta import DeltaPublisher

    with monkeypatch.context() as patch:
        patch.setattr(DeltaPublisher, "publish", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        with pytest.raises(OSError, match="gone"):
            site.engine().restore("tiny", checkpoint_id=1)
    assert len(site.outputs()) == 8
    assert site.engine().publish_pending(site.job()) == [4]
    assert len(site.outputs()) == 3


def test_outputs_whose_files_are_gone_before_they_were_published_are_left_by_a_restore(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from state_engine.sinks.delta import DeltaPublisher

    site.put({"k": ["a"], "v": [1]}, "more")
    with monkeypatch.context() as patch:
        patch.setattr(DeltaPublisher, "publish", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        with pytest.raises(OSError, match="gone"):
            site.engine().run(site.job())
    waiting = site.engine().checkpoints("tiny")[-1]
    [file] = waiting.sinks[0].files
    (site.sink / file.path).unlink()
    with pytest.raises(MissingFilesError, match="is gone"):
        site.engine().run(site.job())
    assert site.engine().restore(site.job(), checkpoint_id=3).replaced_id == waiting.checkpoint_id
    site.engine().run(site.job())
    assert site.state() == TOTALS[2] | {"a": 11}
    assert len(site.outputs()) == 9


@pytest.mark.parametrize(
    "steps", [(4, 2, 7, 1), pytest.param((4, 2, 7, 128, 1), marks=pytest.mark.long)], ids=len
)
def test_rescaling_writes_one_row_and_no_state(site: Site, steps: tuple[int, ...]) -> None:
    changes = changes_of_state(site)
    for at, parallelism in enumerate(steps):
        job = site.job(parallelism=2)
        planned = site.engine().rescale(job, parallelism=parallelism, dry_run=True)
        done = site.engine().rescale(job, parallelism=parallelism)
        assert (planned.changes, planned.committed_id) == (True, None)
        assert done == replace(planned, committed_id=done.committed_id)
        row = site.engine().checkpoints("tiny")[-1]
        assert (row.checkpoint_id, row.kind) == (done.committed_id, "rescale")
        assert not [f for o in row.operators for f in (*o.changelog, *o.base_files)]
        assert not site.engine().rescale(job, parallelism=parallelism, dry_run=True).changes
        assert site.engine().rescale(job, parallelism=parallelism).committed_id is None
        assert changes_of_state(site) == changes + 2 * at

        site.put({"k": ["a", "e"], "v": [1, 1]}, f"more-{at}")
        report = site.engine().run(job).batches[0]
        assert len(report.operators["sums"].subtasks) == parallelism
    assert site.state() == TOTALS[2] | {"a": 10 + len(steps), "e": len(steps)}


def test_the_later_word_on_parallelism_counts(site: Site) -> None:
    def subtasks(job: StatefulJob, at: str) -> int:
        site.put({"k": ["a"], "v": [1]}, at)
        return len(site.engine().run(job).batches[0].operators["sums"].subtasks)

    site.engine().rescale(site.job(parallelism=2), parallelism={"sums": 3})
    assert subtasks(site.job(parallelism=2), "x") == 3
    assert subtasks(site.job(parallelism=5), "y") == 5  # the declaration changed since
    assert subtasks(site.job(parallelism=2), "z") == 2
    site.engine().rescale(site.job(parallelism=2), parallelism=3)
    assert site.engine().rescale(site.job(parallelism=2)).changes  # back to what is declared
    assert subtasks(site.job(parallelism=2), "w") == 2
