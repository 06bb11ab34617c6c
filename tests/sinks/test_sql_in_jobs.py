"""``SqlSink`` and ``ForeachBatchSink`` in running jobs: batches, a crash around the publish, and a restore."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

from state_engine import FileSource, ForeachBatchSink, SqlSink, StateEngine, StatefulJob
from state_engine.core.errors import SinkError, SinkIdentityError
from state_engine.databases.sink import SqlPublisher
from state_engine.sinks.base import Publisher
from state_engine.sinks.foreach_batch import ForeachBatchPublisher
from tests.support.killed import Killed
from tests.support.tiny import ROWS, Site, Sum

pytestmark = [pytest.mark.spark, pytest.mark.long]


Calls = list[tuple[int, list[tuple[Any, ...]]]]


class Jobs:
    """The tiny job with more sinks: rows appended, the newest total by key, and a function."""

    def __init__(self, site: Site) -> None:
        self.site, self.database = site, site.directory / "out.db"
        self.calls: Calls = []

    def job(self, *, lineage: bool = True, upsert: bool = True, as_dataframe: bool = False) -> StatefulJob:
        url = f"sqlite:///{self.database}"
        job = StatefulJob("tiny", parallelism=2)
        source = FileSource(str(self.site.feed), max_rows_per_batch=4)
        stream = job.source("events", source).key_by("k")
        out = stream.process(Sum(), uid="sums", output_type="k string, v bigint, total bigint")
        out.sink("rows", SqlSink(url, "rows", lineage=lineage))
        if upsert:
            out.sink("totals", SqlSink(url, "totals", key=["k"]))
            named = f"calls_{self.site.directory.name.lower()}".replace("-", "_")
            out.sink("calls", ForeachBatchSink(self.called, name=named, as_dataframe=as_dataframe))
        out.transform(lambda rows: rows.where("v > 2").select("v")).sink("large", SqlSink(url, "large"))
        return job

    def called(self, rows: Any, checkpoint_id: int) -> None:
        records = rows.to_pylist() if hasattr(rows, "to_pylist") else [r.asDict() for r in rows.collect()]
        self.calls.append((checkpoint_id, sorted(tuple(row.values()) for row in records)))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        engine = sa.create_engine(f"sqlite:///{self.database}", poolclass=sa.NullPool)
        with engine.connect() as connection:
            return sorted(tuple(row) for row in connection.execute(sa.text(query)))

    def put_all(self) -> None:
        self.site.put(ROWS, "0")
        self.site.put({"k": ["a", "d"], "v": [5, 6]}, "1")


FIRST = [("a", 1, 1), ("a", 3, 4), ("b", 2, 2), ("c", 4, 4)]
SECOND = [("a", 5, 9), ("d", 6, 6)]
TOTALS = [("a", 5, 9), ("b", 2, 2), ("c", 4, 4), ("d", 6, 6)]


@pytest.fixture
def jobs(spark: SparkSession, tmp_path: Path) -> Jobs:
    jobs_of_site = Jobs(Site(tmp_path, spark))
    jobs_of_site.put_all()
    return jobs_of_site


def test_batches_reach_every_sink_once(jobs: Jobs) -> None:
    with jobs.site.engine() as engine:
        report = engine.run(jobs.job())
        assert [b.rows_out for b in report.batches] == [
            {"rows": 4, "calls": 4, "large": 2},
            {"rows": 2, "calls": 2, "large": 2},
        ]
        assert engine.run(jobs.job(as_dataframe=True)).batches == []
        jobs.site.put({"k": ["d"], "v": [1]}, "2")
        engine.run(jobs.job(as_dataframe=True))
        rows = engine.checkpoints("tiny")
    assert jobs.rows("SELECT k, v, total FROM rows") == sorted([*FIRST, *SECOND, ("d", 1, 7)])
    assert jobs.rows("SELECT k, v, total FROM totals") == [*TOTALS[:3], ("d", 1, 7)]
    assert jobs.rows("SELECT v FROM large") == [(3,), (4,), (5,), (6,)]
    assert jobs.calls == [(1, FIRST), (2, SECOND), (3, [("d", 1, 7)])]
    written = {f"{row.write_id}/rows" for row in rows}
    assert {row[0] for row in jobs.rows("SELECT _write_id FROM rows")} == written
    columns = json.loads(rows[0].sinks[0].schema)["fields"]
    assert [c["name"] for c in columns] == ["k", "v", "total", "_write_id"]


@pytest.mark.parametrize("publisher", [SqlPublisher, ForeachBatchPublisher])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_crash_around_a_publish_is_settled(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, publisher: type[Publisher], after: bool
) -> None:
    publish: Callable[..., None] = publisher.publish

    def dies(self: Publisher, *args: Any) -> None:
        if after:
            publish(self, *args)
        raise Killed

    with jobs.site.engine() as engine:
        monkeypatch.setattr(publisher, "publish", dies)
        with pytest.raises(Killed):
            engine.run(jobs.job())
        monkeypatch.undo()
    with jobs.site.engine() as engine:
        assert len(engine.checkpoints("tiny")) == 1
        assert engine.publish_pending(jobs.job()) == [1]
        assert len(engine.run(jobs.job()).batches) == 1
    assert jobs.rows("SELECT k, v, total FROM rows") == sorted([*FIRST, *SECOND])
    assert jobs.rows("SELECT k, v, total FROM totals") == TOTALS
    assert jobs.rows("SELECT v FROM large") == [(3,), (4,), (5,), (6,)]
    assert jobs.calls == [(1, FIRST), (2, SECOND)]


def test_a_restore_withdraws_and_a_replay_of_it_comes_again(jobs: Jobs) -> None:
    def few() -> StatefulJob:
        job = jobs.job(upsert=False)
        del job.sinks["large"]
        return job

    with jobs.site.engine() as engine:
        engine.run(few())
        assert len(jobs.rows("SELECT * FROM rows")) == 6
        engine.restore("tiny", checkpoint_id=1)
        assert jobs.rows("SELECT k, v, total FROM rows") == FIRST
        engine.restore("tiny", checkpoint_id=2)
        assert jobs.rows("SELECT k, v, total FROM rows") == sorted([*FIRST, *SECOND])
        engine.restore("tiny", checkpoint_id=1)
        engine.run(few())
    assert jobs.rows("SELECT k, v, total FROM rows") == sorted([*FIRST, *SECOND])


def test_a_restore_that_sinks_cannot_follow_is_refused_or_keeps_outputs(jobs: Jobs) -> None:
    with jobs.site.engine() as engine:
        engine.run(jobs.job())
        with pytest.raises(SinkError, match=r'cannot be withdrawn.*outputs="keep"'):
            engine.restore("tiny", checkpoint_id=1)
        assert len(engine.checkpoints("tiny")) == 2
        engine.restore("tiny", checkpoint_id=1, outputs="keep")
        engine.run(jobs.job())
    assert jobs.rows("SELECT k, v, total FROM rows") == sorted([*FIRST, *SECOND, *SECOND])
    assert jobs.rows("SELECT k, v, total FROM totals") == TOTALS
    assert jobs.calls == [(1, FIRST), (2, SECOND), (4, SECOND)]


def test_a_copied_root_that_writes_to_the_same_table(jobs: Jobs, spark: SparkSession) -> None:
    with jobs.site.engine() as engine:
        engine.run(jobs.job(upsert=False), max_batches=1)
        shutil.copytree(jobs.site.directory / "root", jobs.site.directory / "copy")
        engine.run(jobs.job(upsert=False))
    with (
        StateEngine(jobs.site.directory / "copy", spark) as engine,
        pytest.raises(SinkIdentityError, match="already holds other rows of checkpoint 2"),
    ):
        engine.run(jobs.job(upsert=False))
    assert jobs.rows("SELECT k, v, total FROM rows") == sorted([*FIRST, *SECOND])
