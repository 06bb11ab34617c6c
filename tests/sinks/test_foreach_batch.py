"""``ForeachBatchSink``: a function is given every checkpoint, at least once, and normally once."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from state_engine import ForeachBatchSink
from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.errors import (
    ConfigurationError,
    InvalidNameError,
    MissingFilesError,
    SinkError,
    SinkIdentityError,
)
from state_engine.sinks import foreach_batch
from state_engine.sinks.foreach_batch import ForeachBatchPublisher
from state_engine.sinks.staging import located
from state_engine.storage.layout import JobLayout
from tests.sinks.requests import APP, asked, staged_files

SCHEMA = pa.schema([("id", pa.int64())])


KERNEL: Any = None
"""The sink needs none to be prepared."""


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[int, list[int]]] = []
        self.fails_with: BaseException | None = None

    def __call__(self, rows: pa.Table, checkpoint_id: int) -> None:
        self.calls.append((checkpoint_id, rows["id"].to_pylist()))
        if self.fails_with is not None:
            raise self.fails_with


@pytest.fixture
def function() -> Recorder:
    return Recorder()


class StagingPublisher(ForeachBatchPublisher):
    """The publisher, and the root in which outputs are staged for it."""

    def __init__(self, root: str) -> None:
        super().__init__(KERNEL)
        self.root = root


@pytest.fixture
def sink(function: Recorder) -> ForeachBatchSink:
    return ForeachBatchSink(function, name="recorder")


@pytest.fixture
def publisher(tmp_path: Path) -> StagingPublisher:
    return StagingPublisher(f"file://{tmp_path}/root")


def staged(
    publisher: StagingPublisher, sink: ForeachBatchSink, write_id: str, *parts: list[int]
) -> StagedSink:
    """The staged outputs of one attempt, a file for each part."""
    subtasks = [pa.table({"id": part}, schema=SCHEMA) for part in parts]
    outputs = staged_files(sink, asked(KERNEL, SCHEMA, write_id, root=publisher.root), *subtasks)
    publisher.sinks[outputs.path] = sink
    return outputs


def test_every_checkpoint_is_given_once(
    publisher: StagingPublisher, sink: ForeachBatchSink, function: Recorder
) -> None:
    first, second = staged(publisher, sink, "w1", [1, 3], [2]), staged(publisher, sink, "w2", [4])
    assert publisher.seen(first.path, APP) == 0
    for one, checkpoint_id in ((first, 2), (first, 2), (second, 10), (second, 10), (first, 2)):
        publisher.publish(one, APP, checkpoint_id)
    assert function.calls == [(2, [1, 3, 2]), (10, [4])]
    assert publisher.seen(first.path, APP) == 10


def test_nothing_is_no_call(publisher: StagingPublisher, sink: ForeachBatchSink, function: Recorder) -> None:
    publisher.publish(staged(publisher, sink, "w1"), APP, 1)
    assert function.calls == []


@pytest.mark.parametrize("death", [KeyboardInterrupt(), None], ids=["inside", "before the marker"])
def test_a_crash_gives_the_same_rows_again(
    publisher: StagingPublisher,
    sink: ForeachBatchSink,
    function: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    death: BaseException | None,
) -> None:
    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    mine = staged(publisher, sink, "w1", [1, 2])
    function.fails_with = death
    with monkeypatch.context() as patch:
        if death is None:
            patch.setattr(foreach_batch, "write_note", dies)
        with pytest.raises(KeyboardInterrupt):
            publisher.publish(mine, APP, 7)
    assert publisher.seen(mine.path, APP) == 0
    function.fails_with = None
    for _ in range(2):
        publisher.publish(mine, APP, 7)
    assert function.calls == [(7, [1, 2])] * 2
    assert publisher.seen(mine.path, APP) == 7


def test_a_function_that_raises_keeps_the_rows_waiting(
    publisher: StagingPublisher, sink: ForeachBatchSink, function: Recorder
) -> None:
    mine = staged(publisher, sink, "w1", [1])
    function.fails_with = OSError("the mail server is down")
    with pytest.raises(SinkError, match="'recorder' failed on the rows of checkpoint 3: OSError: the mail"):
        publisher.publish(mine, APP, 3)
    assert publisher.seen(mine.path, APP) == 0
    function.fails_with = None
    publisher.publish(mine, APP, 3)
    assert publisher.seen(mine.path, APP) == 3


def test_twins_at_once_call_once(
    publisher: StagingPublisher, sink: ForeachBatchSink, function: Recorder
) -> None:
    mine = staged(publisher, sink, "w1", [1])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: publisher.publish(mine, APP, 1), range(4)))
    assert function.calls == [(1, [1])]


def test_other_rows_under_the_same_number(
    publisher: StagingPublisher, sink: ForeachBatchSink, function: Recorder
) -> None:
    publisher.publish(staged(publisher, sink, "w1", [1]), APP, 3)
    for checkpoint_id in (3, 2):
        with pytest.raises(SinkIdentityError, match="was called for other rows"):
            publisher.publish(staged(publisher, sink, "w2", [2]), APP, checkpoint_id)
    assert function.calls == [(3, [1])]


def test_what_was_done_cannot_be_withdrawn(publisher: StagingPublisher, sink: ForeachBatchSink) -> None:
    one, two = staged(publisher, sink, "w1", [1]), staged(publisher, sink, "w2", [2])
    publisher.publish(one, APP, 1)
    back = replace(two, withdrawn=one.files)
    with pytest.raises(SinkError, match=r'cannot be withdrawn.*outputs="keep"'):
        publisher.check_withdrawable(back)
    with pytest.raises(SinkError, match=r'cannot be withdrawn.*outputs="keep"'):
        publisher.publish(back, APP, 2)
    publisher.check_withdrawable(two)


def test_a_later_process_needs_the_function(publisher: StagingPublisher, sink: ForeachBatchSink) -> None:
    mine = staged(publisher, sink, "w1", [1])
    publisher.sinks.clear()
    with pytest.raises(SinkError, match="wait for the function 'recorder', which this call was not given"):
        publisher.publish(mine, APP, 1)
    newer = Recorder()
    publisher.sinks[mine.path] = ForeachBatchSink(newer, name="recorder")
    publisher.publish(mine, APP, 1)
    assert newer.calls == [(1, [1])]


def test_a_root_that_was_moved_and_files_that_are_gone(
    tmp_path: Path, publisher: StagingPublisher, sink: ForeachBatchSink, function: Recorder
) -> None:
    one, two = staged(publisher, sink, "w1", [1]), staged(publisher, sink, "w2", [2])
    publisher.publish(one, APP, 1)
    shutil.move(tmp_path / "root", tmp_path / "moved")
    moved = JobLayout(f"file://{tmp_path}/moved", "job")
    one, two = located(one, moved), located(two, moved)
    assert publisher.seen(one.path, APP) == 1
    (tmp_path / "moved/job/sinks/out/recorder/w2" / Path(two.files[0].path).name).unlink()
    with pytest.raises(MissingFilesError, match="is gone"):
        publisher.publish(two, APP, 2)
    assert function.calls == [(1, [1])]


def test_names_of_functions() -> None:
    with pytest.raises(InvalidNameError):
        ForeachBatchSink(print, name="One")
    with pytest.raises(ConfigurationError, match="'x' cannot be called"):
        ForeachBatchSink("x", name="two")  # type: ignore[arg-type]
