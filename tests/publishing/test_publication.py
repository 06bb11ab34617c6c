"""``Publication`` over real sinks of files and of SQLite: which sinks it asks, skips and repairs."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from state_engine import DeltaSink, FileSink, ForeachBatchSink, SqlSink
from state_engine.core.checkpoints.checkpoint import CheckpointRow, StagedSink
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.row_outputs import DEAD_LETTERS
from state_engine.core.errors import MissingFilesError, SinkBehindError, SinkError
from state_engine.databases.sink import SqlPublisher
from state_engine.job.graph import SinkNode
from state_engine.monitoring.job_history import JobHistory
from state_engine.publishing.publication import Publication
from state_engine.publishing.sink_places import Declared
from state_engine.sinks.base import Publisher, Sink, SinkRequest
from state_engine.sinks.files import FilePublisher
from state_engine.sinks.staging import Staging
from state_engine.storage.delta.log_tail import LogDurability
from state_engine.storage.layout import JobLayout
from tests.core.checkpoints.rows import checkpoint
from tests.sinks.requests import staged_files

SCHEMA = pa.schema([("id", pa.int64())])
APP = "0123/job"
NO_KERNEL: Any = SimpleNamespace(disk=LogDurability("os"), outlasting=lambda uri: None, write_new=None)
"""Commits nothing: the sinks here need none."""
NO_PARENT: Any = None
"""Nobody asks what a sink reads."""
Name = Literal["files", "sql"]


class Site:
    """A root, a directory of files and a database; and the path of a job that puts its checkpoint's id into both."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = f"file://{directory}/root"
        self.sinks: dict[Name, Sink] = {
            "files": FileSink(str(directory / "files")),
            "sql": SqlSink(f"sqlite:///{directory}/out.db", "out"),
        }
        self.path: list[CheckpointRow] = []

    def publication(self) -> Publication:
        """As in a new process."""
        log = SimpleNamespace(app=APP, history=History())
        tables: Any = SimpleNamespace(layout=JobLayout(self.root, "job"), log=log)
        return Publication(NO_KERNEL, tables)

    def code(self, *names: Name) -> Declared:
        return self.publication().places.declared(code_of(map(self.node, names)))

    def node(self, name: Name) -> SinkNode:
        return SinkNode(name, NO_PARENT, self.sinks[name])

    def commit(self, *names: Name, kind: str = "checkpoint") -> None:
        """A row that is not published yet."""
        i = len(self.path) + 1
        staged = [self._staged(name, i) for name in names]
        self.path.append(checkpoint(i, i - 1 or None, kind=kind, sinks=staged))

    def run(self, *names: Name, batches: int = 1) -> None:
        """Micro-batches of one process."""
        publication = self.publication()
        for _ in range(batches):
            publication.publish_pending(self.path, self.code(*names))
            self.commit(*names)
            publication.publish(self.path[-1])

    def shown(self, name: Name) -> list[int]:
        if name == "files":
            files = (self.directory / "files").glob("checkpoint_id=*/*.parquet")
            return sorted(i for f in files for i in pq.read_table(f)["id"].to_pylist())
        engine = sa.create_engine(f"sqlite:///{self.directory}/out.db", poolclass=sa.NullPool)
        with engine.connect() as connection:
            return sorted(row[0] for row in connection.execute(sa.text("SELECT id FROM out")))

    def _staged(self, name: Name, i: int) -> StagedSink:
        request = SinkRequest(NO_KERNEL, Staging(self.root), name, f"{APP}/{name}", SCHEMA, f"w{i}")
        return staged_files(self.sinks[name], request, pa.table({"id": [i]}, schema=SCHEMA))


def waiting(site: Site, *names: Name) -> list[tuple[int, str]]:
    """Unpublished checkpoints of sinks: a runner and a reader agree."""
    job: Any = SimpleNamespace(sinks={name: site.node(name) for name in names}, published={})
    history = JobHistory(JobLayout(site.root, "job"), "0123", History(site.path))
    looked_up = history.unpublished(job if names else None)
    declared = site.code(*names) if names else None
    assert list(site.publication().unpublished(site.path, declared)) == looked_up
    return [(row.checkpoint_id, staged.name) for row, staged in looked_up]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sinks whose last publication was read."""
    names: list[str] = []

    def counted(publisher: type[Publisher]) -> None:
        real = publisher.seen

        def seen(self: Publisher, uri: str, app: str) -> int:
            names.append(app.rsplit("/", 1)[-1])
            return real(self, uri, app)

        monkeypatch.setattr(publisher, "seen", seen)

    counted(FilePublisher)
    counted(SqlPublisher)
    return names


def test_only_the_last_row_can_wait_and_is_published_by_the_next_process(site: Site) -> None:
    site.run("files", "sql", batches=2)
    site.commit("files", "sql")
    site.commit(kind="compaction")
    assert site.shown("files") == site.shown("sql") == [1, 2]
    assert site.publication().publish_pending(site.path, site.code("files", "sql")) == [3]
    assert site.shown("files") == site.shown("sql") == [1, 2, 3]
    assert site.publication().publish_pending(site.path, site.code("files", "sql")) == []


def test_whoever_only_looks_knows_the_same_of_what_waits(site: Site) -> None:
    site.run("files", "sql", batches=2)
    assert waiting(site, "files", "sql") == []
    backup = backup_of_the_database(site)
    site.run("files", "sql")
    site.commit("files", "sql")
    assert waiting(site) == waiting(site, "files", "sql") == [(4, "files"), (4, "sql")]
    assert waiting(site, "sql") == [(4, "sql")]
    shutil.copy(backup, site.directory / "out.db")
    assert waiting(site, "files", "sql") == [(3, "sql"), (4, "files"), (4, "sql")]


def test_sinks_are_asked_once_a_batch_whether_they_still_show_what_was_published(
    site: Site, asked: list[str]
) -> None:
    site.run("files", "sql", batches=3)
    del asked[:]
    site.run("files", "sql", batches=5)
    assert sorted(asked) == ["files"] * 5 + ["sql"] * 5
    del asked[:]
    site.commit("files")
    assert site.publication().publish_pending(site.path) == [9]
    assert asked == ["files"], "without code only the sinks of the last row"


def test_sinks_of_a_job_that_begins_are_not_known_from_what_it_publishes_itself(
    site: Site, asked: list[str]
) -> None:
    """So each batch of the first process checks for another root that writes to the same table."""
    publication, code = site.publication(), site.code("files")
    assert publication.publish_pending(site.path, code) == []
    site.commit("files")
    publication.publish(site.path[-1])
    assert publication.publish_pending(site.path, code) == []
    assert asked == ["files"], "whether it still shows that"
    assert not publication.knows("files")


@pytest.mark.parametrize("gone", ["files", "sql"])
def test_a_sink_that_was_given_up_blocks_nobody_and_is_reported(
    site: Site, gone: Name, asked: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    site.run("files", "sql", batches=2)
    site.commit("files", "sql")
    left: Name = "sql" if gone == "files" else "files"
    if gone == "files":
        shutil.rmtree(site.directory / "files")
    else:  # nobody can open it
        (site.directory / "out.db").unlink()
        (site.directory / "out.db").mkdir()
    del asked[:]
    with caplog.at_level(logging.INFO, logger="state_engine"):
        assert site.publication().publish_pending(site.path, site.code(left)) == [3]
    assert site.shown(left) == [1, 2, 3]
    assert asked == [left]
    [printed] = [r for r in caplog.records if f"no longer has the sink '{gone}'" in r.getMessage()]
    assert printed.levelno == logging.WARNING
    assert "nobody checked whether it shows checkpoint 3" in printed.getMessage()
    site.run(left, batches=2)
    assert site.shown(left) == [1, 2, 3, 4, 5]
    assert [s.name for s in site.publication().left_alone(site.path, site.code(left))] == [gone]


def backup_of_the_database(site: Site) -> Path:
    return Path(shutil.copy(site.directory / "out.db", site.directory / "backup.db"))


def test_a_sink_that_was_put_back_from_a_backup_stops_the_job_and_is_repaired(site: Site) -> None:
    site.run("files", "sql", batches=2)
    backup = backup_of_the_database(site)
    site.run("files", "sql", batches=2)
    site.commit("files", "sql")
    shutil.copy(backup, site.directory / "out.db")
    code = site.code("files", "sql")
    for _ in range(2):
        with pytest.raises(SinkBehindError, match=r"job 'job', sink 'sql': .* does not show what"):
            site.publication().publish_pending(site.path, code)
    assert (site.shown("files"), site.shown("sql")) == ([1, 2, 3, 4], [1, 2]), "nothing was done"
    with pytest.raises(SinkBehindError, match="what checkpoint 3 published"):
        site.publication().publish_pending(site.path, code, again_from=4)
    assert site.publication().publish_pending(site.path, code, again_from=3) == [3, 4, 5]
    assert site.publication().publish_pending(site.path, code, again_from=1) == []
    assert site.shown("files") == site.shown("sql") == [1, 2, 3, 4, 5]
    site.run("files", "sql")
    assert site.shown("files") == site.shown("sql") == [1, 2, 3, 4, 5, 6]


def test_a_sink_that_comes_back_into_the_code_is_behind_by_what_it_did_not_get(site: Site) -> None:
    site.run("files", "sql", batches=2)
    site.commit("files", "sql")
    site.run("sql", batches=2)
    both = site.code("files", "sql")
    with pytest.raises(SinkBehindError, match=r"sink 'files'.*checkpoint 3 published"):
        site.publication().publish_pending(site.path, both)
    assert site.publication().publish_pending(site.path, both, again_from=3) == [3]
    assert (site.shown("files"), site.shown("sql")) == ([1, 2, 3], [1, 2, 3, 4, 5])


def test_an_operation_by_name_does_not_spare_a_run_the_look_at_its_sinks(site: Site) -> None:
    site.run("sql", batches=2)
    backup = backup_of_the_database(site)
    site.run("sql")
    site.run("files")
    shutil.copy(backup, site.directory / "out.db")
    publication = site.publication()
    assert publication.publish_pending(site.path) == []
    with pytest.raises(SinkBehindError, match="checkpoint 3 published"):
        publication.publish_pending(site.path, site.code("files", "sql"))


def test_a_consumer_takes_the_newest_directory_of_files_away(site: Site) -> None:
    site.run("files", batches=3)
    shutil.move(site.directory / "files" / "checkpoint_id=000000000003", site.directory / "taken")
    site.run("files", batches=2)
    assert site.shown("files") == [1, 2, 4, 5]
    assert site.publication().publish_pending(site.path, site.code("files"), again_from=1) == []
    shutil.rmtree(site.directory / "files" / "checkpoint_id=000000000005")
    site.commit("files")
    assert site.publication().publish_pending(site.path, site.code("files")) == [6]


def test_what_can_never_be_published_is_kept_apart_for_a_restore(site: Site) -> None:
    site.run("files", "sql", batches=2)
    backup = backup_of_the_database(site)
    site.run("files", "sql")
    site.commit("files", "sql")
    [waiting] = site.path[-1].sinks[0].files
    (site.directory / "files" / waiting.path).unlink()
    with pytest.raises(MissingFilesError):
        site.publication().publish_pending(site.path, site.code("files"))
    refused = site.publication().publish_what_can_be(site.path, site.code("files", "sql"))
    assert [(row.checkpoint_id, s.name) for row, s in refused] == [(4, "files")]
    shutil.copy(backup, site.directory / "out.db")
    refused = site.publication().publish_what_can_be(site.path, site.code("files", "sql"))
    assert [(row.checkpoint_id, s.name) for row, s in refused] == [(4, "files"), (3, "sql"), (4, "sql")]
    assert site.shown("sql") == [1, 2]


def test_a_root_that_was_moved_knows_its_sinks(site: Site) -> None:
    site.run("sql", batches=2)
    (site.directory / "root").rename(site.directory / "moved")
    site.root = f"file://{site.directory}/moved"
    assert site.publication().left_alone(site.path, site.code("sql")) == []
    site.run("sql")
    assert site.shown("sql") == [1, 2, 3]


def code_of(sinks: Iterable[Any]) -> Any:
    """A job with these sinks."""
    return SimpleNamespace(sinks={node.name: node for node in sinks}, published={})


def test_a_place_is_what_checkpoints_record(tmp_path: Path) -> None:
    staging = Staging("file:///root")
    assert DeltaSink(str(tmp_path / "t")).place(f"{APP}/out", staging) == f"file://{tmp_path}/t"
    function = ForeachBatchSink(lambda rows, checkpoint_id: None, name="place_of_a_function")
    assert function.place(f"{APP}/out", staging) == "file:///root/job/sinks/out/place_of_a_function"
    publication = Site(tmp_path).publication()
    assert list(publication.places.declared(code_of([]))) == [
        (DEAD_LETTERS, f"file://{tmp_path}/root/job/dead_letters")
    ]
    assert issubclass(SinkBehindError, SinkError)
