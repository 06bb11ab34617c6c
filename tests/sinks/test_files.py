"""``FileSink``: one directory a checkpoint, staged out of sight, published by one rename."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from state_engine import FileSink
from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.errors import ConfigurationError, MissingFilesError, SinkError, SinkIdentityError
from state_engine.microbatch.subtask.subtask_outputs import write_sink_file
from state_engine.sinks import file_moves
from state_engine.sinks.file_moves import STAGED_PREFIX, Mover
from state_engine.sinks.files import FilePublisher
from state_engine.storage.layout import file_name
from tests.sinks.requests import APP, asked, move, staged_files

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
NO_KERNEL: Any = None


def staged(
    directory: Path, write_id: str, ids: list[int], form: Literal["parquet", "csv"] = "parquet"
) -> StagedSink:
    """The staged outputs of one attempt with two subtasks."""
    subtasks = [
        pa.table({"id": some, "text": [f"t{i}" if i else None for i in some]}, schema=SCHEMA)
        for some in (ids[::2], ids[1::2])
    ]
    return staged_files(FileSink(str(directory), form), asked(NO_KERNEL, SCHEMA, write_id), *subtasks)


def test_staged_rows_are_out_of_sight_until_published_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    publisher = FilePublisher()
    first, second = staged(out, "w1", [1, 2, 3]), staged(out, "w2", [4, 5])
    assert publisher.seen(first.path, APP) == 0
    assert ds.dataset(out, format="parquet", partitioning="hive").count_rows() == 0
    for one, checkpoint_id in ((first, 1), (first, 1), (second, 12), (second, 12), (first, 1)):
        publisher.publish(one, APP, checkpoint_id)
    assert publisher.seen(first.path, APP) == 12
    rows = ds.dataset(out, format="parquet", partitioning="hive").to_table().to_pylist()
    assert sorted((r["checkpoint_id"], r["id"], r["text"]) for r in rows) == [
        (1, 1, "t1"), (1, 2, "t2"), (1, 3, "t3"), (12, 4, "t4"), (12, 5, "t5"),
    ]  # fmt: skip
    assert {p.name for p in out.iterdir() if p.is_dir()} == {
        "checkpoint_id=000000000001",
        "checkpoint_id=000000000012",
    }


def test_directory_that_was_made_anew_is_refused(tmp_path: Path) -> None:
    mine = staged(tmp_path / "out", "w1", [1])
    shutil.move(tmp_path / "out", tmp_path / "aside")
    with pytest.raises(SinkIdentityError, match="deleted or re-created"):
        FilePublisher().publish(mine, APP, 1)
    staged(tmp_path / "out", "w2", [2])
    with pytest.raises(SinkIdentityError, match="deleted or re-created"):
        FilePublisher().publish(mine, APP, 1)
    shutil.rmtree(tmp_path / "out")
    shutil.move(tmp_path / "aside", tmp_path / "out")
    FilePublisher().publish(mine, APP, 1)
    assert FilePublisher().seen(mine.path, APP) == 1


def test_staged_files_that_are_gone(tmp_path: Path) -> None:
    mine = staged(tmp_path / "out", "w1", [1, 2])
    (tmp_path / "out" / mine.files[1].path).unlink()
    with pytest.raises(MissingFilesError, match="is gone"):
        FilePublisher().publish(mine, APP, 1)
    assert FilePublisher().seen(mine.path, APP) == 0


def test_another_job_is_refused(tmp_path: Path) -> None:
    staged(tmp_path / "out", "w1", [1])
    for other, root in (("0123/other/out", "file:///no_root"), ("9999/job/out", "file:///other_root")):
        request = asked(NO_KERNEL, SCHEMA, "w1", app=other, root=root)
        with pytest.raises(SinkIdentityError, match=f"is the sink of '{APP}', not of '{other}'"):
            FileSink(str(tmp_path / "out")).prepare(request)


def test_a_directory_that_nobody_published_to_is_taken_over(tmp_path: Path) -> None:
    def begin(app: str, *, root: str = "file:///roots/one", at: str = "out") -> StagedSink:
        sink = FileSink(str(tmp_path / at))
        return sink.prepare(asked(NO_KERNEL, SCHEMA, "w1", app=app, root=root)).staged([])

    publisher, other = FilePublisher(), "4567/job/out"
    failed, newer = begin(APP), begin(other)
    publisher.check_identity(newer)
    with pytest.raises(SinkIdentityError, match="re-created"):  # who slept meanwhile commits nothing
        publisher.check_identity(failed)

    (tmp_path / "out" / "_staged-w1").mkdir()
    (tmp_path / "out" / "_statelake_sink.json.0123").touch()  # a crash left it
    begin(APP)
    (
        tmp_path / "out" / "_staged-w1" / "part-00000-w1-0.parquet"
    ).touch()  # perhaps of a checkpoint that waits
    with pytest.raises(SinkIdentityError, match=f"is the sink of '{APP}', not of '{other}'.*empty this one"):
        begin(other, root="file:///roots/two")
    begin(other)  # the root that staged it was rebuilt, so nobody can publish that
    (tmp_path / "out" / "checkpoint_id=000000000001").mkdir()
    with pytest.raises(SinkIdentityError, match="is the sink of"):
        begin(APP)

    (tmp_path / "older").mkdir()  # a version that noted less of what it published
    (tmp_path / "older" / "_statelake_sink.json").write_text(f'{{"id": "x", "app": "{other}"}}')
    with pytest.raises(SinkIdentityError, match="is the sink of"):
        begin(APP, at="older")


def test_a_store_without_atomic_rename_is_refused() -> None:
    for uri in ("s3a://bucket/out", "s3://bucket/out", "gs://bucket/out"):
        with pytest.raises(ConfigurationError, match=r"atomic rename.*use a DeltaSink"):
            FileSink(uri)


def rows(directory: Path) -> list[int]:
    dataset = ds.dataset(directory, format="parquet", partitioning="hive", schema=SCHEMA)
    return sorted(dataset.to_table()["id"].to_pylist())


def published(directory: Path) -> tuple[StagedSink, StagedSink, StagedSink]:
    sinks = tuple(staged(directory, f"w{i}", [i * 10, i * 10 + 1]) for i in (1, 2, 3))
    for checkpoint_id, one in enumerate(sinks, start=1):
        FilePublisher().publish(one, APP, checkpoint_id)
    return sinks  # type: ignore[return-value]


def test_outputs_are_withdrawn_and_come_again(tmp_path: Path) -> None:
    out, publisher = tmp_path / "out", FilePublisher()
    one, two, three = published(out)
    back = move(one, add=[], withdraw=[two, three])
    for _ in range(2):
        publisher.check_withdrawable(move(one, add=[], withdraw=[]))
        publisher.publish(back, APP, 4)
        assert rows(out) == [10, 11]
        assert publisher.seen(one.path, APP) == 4
    other = staged(out, "w5", [50])
    publisher.publish(other, APP, 5)
    forth = move(one, add=[two, three], withdraw=[other])
    publisher.check_withdrawable(forth)
    for _ in range(2):
        publisher.publish(forth, APP, 6)
        assert rows(out) == [10, 11, 20, 21, 30, 31]
    assert {p.name for p in out.iterdir() if not p.name.startswith((".", "_"))} == {
        "checkpoint_id=000000000001",
        "checkpoint_id=000000000006",
    }
    publisher.publish(move(one, add=[other], withdraw=[three]), APP, 7)
    assert rows(out) == [10, 11, 20, 21, 50], "a part of what came together may leave"


def test_what_was_left_behind_cannot_be_published_late(tmp_path: Path) -> None:
    out, publisher = tmp_path / "out", FilePublisher()
    one, two, three = published(out)
    never = staged(out, "w9", [90])
    publisher.publish(move(one, add=[], withdraw=[two, three]), APP, 5)
    publisher.publish(three, APP, 3)
    assert rows(out) == [10, 11], "published before, and withdrawn since"
    with pytest.raises(SinkIdentityError, match="moved on by a later one"):
        publisher.publish(never, APP, 4)
    with pytest.raises(SinkIdentityError, match="or a later one"):
        publisher.publish(move(one, add=[two], withdraw=[one]), APP, 4)
    with pytest.raises(SinkIdentityError, match="moved otherwise by checkpoint 5"):
        publisher.publish(move(one, add=[], withdraw=[three]), APP, 5)
    assert rows(out) == [10, 11]


@contextmanager
def crash_after(monkeypatch: pytest.MonkeyPatch, survived: int, *, of: int) -> Iterator[None]:
    """The process dies after so many of all renames."""
    left = [survived]
    rename = Mover._rename

    def dies(self: Mover, source: str, into: str) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        rename(self, source, into)

    with monkeypatch.context() as patch:
        patch.setattr(Mover, "_rename", dies)
        with suppress(KeyboardInterrupt) if survived < of else nullcontext():
            yield
    assert left == [0], "a step more or less than the test knows"


def test_a_directory_that_another_runner_takes_away_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    one = staged(out, "w1", [10, 11])
    listed = file_moves.names_in
    gone = f"{STAGED_PREFIX}w9"
    monkeypatch.setattr(
        file_moves, "names_in", lambda at, *inside: [*listed(at, *inside), *([] if inside else [gone])]
    )
    FilePublisher().publish(one, APP, 1)
    assert rows(out) == [10, 11]


STEPS_OF_A_MOVE = 13
"""Note, two directories out of sight, four files back, four files together, in sight, done."""


@pytest.mark.parametrize("survived", range(STEPS_OF_A_MOVE + 1))
def test_crash_at_every_step_of_a_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    out = tmp_path / "out"
    one, two, three = published(out)
    target = move(one, add=[staged(out, "w5", [50, 51]), staged(out, "w6", [60])], withdraw=[two, three])
    with crash_after(monkeypatch, survived, of=STEPS_OF_A_MOVE):
        FilePublisher().publish(target, APP, 4)
    assert set(rows(out)) in ({10, 11, 20, 21, 30, 31}, {10, 11, 30, 31}, {10, 11}, {10, 11, 50, 51, 60})
    assert (FilePublisher().seen(one.path, APP) == 4) == (survived == STEPS_OF_A_MOVE), "else it goes on"
    FilePublisher().publish(target, APP, 4)
    assert rows(out) == [10, 11, 50, 51, 60]
    assert FilePublisher().seen(one.path, APP) == 4
    FilePublisher().publish(move(one, add=[two, three], withdraw=[]), APP, 5)
    assert rows(out) == [10, 11, 20, 21, 30, 31, 50, 51, 60]


def test_files_that_are_gone_cannot_be_withdrawn(tmp_path: Path) -> None:
    out, publisher = tmp_path / "out", FilePublisher()
    one, two, _ = published(out)
    shutil.move(out / "checkpoint_id=000000000002", tmp_path / "aside")
    back = move(one, add=[], withdraw=[two])
    for attempt in (
        lambda: publisher.check_withdrawable(back),
        lambda: publisher.publish(back, APP, 4),
    ):
        with pytest.raises(SinkError, match=r'2 files are gone.*part-00000-w2-.*outputs="keep"'):
            attempt()
    assert publisher.seen(one.path, APP) == 3
    shutil.move(tmp_path / "aside", out / "checkpoint_id=000000000002")
    publisher.publish(back, APP, 4)
    assert rows(out) == [10, 11, 30, 31]


def test_a_move_and_its_twin_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    one, two, three = published(out)
    target = move(one, add=[staged(out, "w5", [50])], withdraw=[two, three])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: FilePublisher().publish(target, APP, 4), range(4)))
    assert rows(out) == [10, 11, 50]


# -- what lies beside the listed files ------------------------------------------------------------------------------


def beside(one: StagedSink, *, attempt: int, ids: list[int], torn: bool = False) -> str:
    """Write the file that another attempt of the first task leaves beside a micro-batch; its name."""
    write_id = one.files[0].path.split("/")[0].removeprefix("_staged-")
    target = FileSink(one.path).prepare(asked(NO_KERNEL, SCHEMA, write_id))
    table = pa.table({"id": ids, "text": ["again"] * len(ids)}, schema=SCHEMA)
    name = file_name(write_id, 0, attempt)
    write_sink_file(table, target, name, 0)
    if torn:
        path = Path(target.directory.removeprefix("file://")) / name
        path.write_bytes(path.read_bytes()[:100])
    return name


def test_only_the_listed_files_are_published_whatever_lies_beside_them(tmp_path: Path) -> None:
    out, publisher = tmp_path / "out", FilePublisher()
    one = staged(out, "w1", [10, 11])
    beside(one, attempt=1, ids=[10])
    beside(one, attempt=2, ids=[10], torn=True)
    publisher.publish(one, APP, 1)
    assert rows(out) == [10, 11]
    beside(one, attempt=3, ids=[10])
    publisher.publish(one, APP, 1)
    assert rows(out) == [10, 11], "a task that wakes up after the publish"
    publisher.publish(move(one, add=[], withdraw=[one]), APP, 2)
    assert rows(out) == []
    publisher.publish(move(one, add=[one], withdraw=[]), APP, 3)
    assert rows(out) == [10, 11]
    assert {p.name for p in (out / "_staged-w1").iterdir()} == {
        f"part-00000-w1-{attempt}.parquet" for attempt in (1, 2, 3)
    }, "left where they were written, for the collector"


STEPS_OF_A_PUBLISH = 4
"""Two files together, the note, in sight."""


@pytest.mark.parametrize("survived", range(STEPS_OF_A_PUBLISH + 1))
def test_crash_at_every_step_of_a_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    out, publisher = tmp_path / "out", FilePublisher()
    publisher.publish(staged(out, "w1", [10]), APP, 1)
    one = staged(out, "w2", [20, 21])
    beside(one, attempt=1, ids=[99])
    with crash_after(monkeypatch, survived, of=STEPS_OF_A_PUBLISH):
        publisher.publish(one, APP, 2)
    assert rows(out) == ([10, 20, 21] if survived == STEPS_OF_A_PUBLISH else [10])
    assert publisher.seen(one.path, APP) == (2 if survived == STEPS_OF_A_PUBLISH else 1)
    beside(one, attempt=2, ids=[99])
    publisher.publish(one, APP, 2)
    assert (rows(out), publisher.seen(one.path, APP)) == ([10, 20, 21], 2)


@pytest.mark.parametrize("survived", range(1, STEPS_OF_A_PUBLISH))
def test_what_was_given_up_in_the_middle_of_a_publish_can_be_brought_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    out, publisher = tmp_path / "out", FilePublisher()
    publisher.publish(staged(out, "w1", [10]), APP, 1)
    given_up, other = staged(out, "w2", [20, 21]), staged(out, "w3", [30])
    with crash_after(monkeypatch, survived, of=STEPS_OF_A_PUBLISH):
        publisher.publish(given_up, APP, 2)
    publisher.publish(other, APP, 4)
    assert rows(out) == [10, 30]
    with pytest.raises(SinkIdentityError, match="moved on by a later one"):
        publisher.publish(given_up, APP, 2)
    publisher.publish(move(other, add=[given_up], withdraw=[other]), APP, 5)
    assert rows(out) == [10, 20, 21]


def test_files_of_another_row_of_the_same_number_are_not_published_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a root was restored from a backup and its sink was not."""
    out, publisher = tmp_path / "out", FilePublisher()
    lost, mine = staged(out, "w1", [10, 11]), staged(out, "w2", [20])
    with crash_after(monkeypatch, 1, of=STEPS_OF_A_PUBLISH):
        publisher.publish(lost, APP, 1)
    publisher.publish(mine, APP, 1)
    assert rows(out) == [20]


def test_a_consumer_may_take_published_directories_away(tmp_path: Path) -> None:
    out, publisher = tmp_path / "out", FilePublisher()
    one, two, three = published(out)
    for checkpoint_id in (2, 3):
        shutil.move(out / f"checkpoint_id={checkpoint_id:012d}", tmp_path / f"taken_{checkpoint_id}")
    assert publisher.seen(one.path, APP) == 3
    for checkpoint_id, each in ((2, two), (3, three)):
        publisher.check_seen(each, APP, checkpoint_id)
        publisher.publish(each, APP, checkpoint_id)
    assert rows(out) == [10, 11]
    with pytest.raises(SinkIdentityError, match="other files than checkpoint 3 staged"):
        publisher.publish(staged(out, "w9", [90]), APP, 3)
    publisher.publish(staged(out, "w4", [40]), APP, 4)
    assert rows(out) == [10, 11, 40]
