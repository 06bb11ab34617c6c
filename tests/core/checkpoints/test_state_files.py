"""Which files hold the state as of a checkpoint: one rule for those who read it and for who deletes the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from hypothesis import given, settings

from state_engine.core.checkpoints.checkpoint import BaseFile, BaseRange, CheckpointRow, DataFile
from state_engine.core.checkpoints.needed_files import reachable
from state_engine.core.checkpoints.state_files import (
    KeyedStateFiles,
    keyed_state_files,
    operator_of,
    position_files,
)
from state_engine.core.checkpoints.table_names import base_table, changelog_table
from state_engine.monitoring.restorable import needed_files
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.located_files import state_files
from tests.core.checkpoints.histories import GROUPS, History, histories
from tests.core.checkpoints.rows import checkpoint

LAYOUT = JobLayout("file:///root", "job")


def path_of(history: History, checkpoint_id: int | None = None) -> list[CheckpointRow]:
    """The path to a checkpoint, the newest by default."""
    return history.rows.path(checkpoint_id or max(history.rows))


def opened(path: list[CheckpointRow]) -> set[str]:
    """The files that readers of the operator open, relative to the directory of the job."""
    return {f.listed.uri.removeprefix("file:///root/job/") for f in state_files(LAYOUT, path, "counter")}


def names(files: KeyedStateFiles) -> tuple[list[str], list[str]]:
    return [f.file.path for f in files.base], [f.file.path for f in files.changelog]


@settings(max_examples=50)
@given(histories())
def test_readers_open_only_what_the_collector_keeps(history: History) -> None:
    kept = {
        f"{table}/{file.path}"
        for table in (base_table("counter"), changelog_table("counter"))
        for file in reachable(history.rows).get(table, ())
    }
    for row in history.restorable():
        assert opened(path_of(history, row.checkpoint_id)) <= kept


def test_an_operator_that_left_the_job_begins_anew_when_it_comes_back() -> None:
    history = History()
    history.batch((0,))
    history.append(history.rows[1], "checkpoint", operators=[])
    history.batch((1,))
    path = path_of(history)
    assert names(keyed_state_files(path, "counter")) == ([], ["write_id=w3/c1"])
    assert opened(path) == {"operators/counter/changelog/write_id=w3/c1"}
    assert (
        names(keyed_state_files(path[:2], "counter")) == names(keyed_state_files([], "counter")) == ([], [])
    )


def test_changes_come_oldest_first_and_without_those_of_another_max_parallelism() -> None:
    history = History()
    history.batch((3, 0))
    history.batch((1,))
    changes = ["write_id=w1/c3", "write_id=w1/c0", "write_id=w2/c1"]
    assert names(keyed_state_files(path_of(history), "counter")) == ([], changes)
    fewer = replace(
        history.rows[2].operators[0], changelog=[], max_parallelism=2, bases=[BaseRange(0, 1, "w3", 2)],
        base_files=[BaseFile("b", 1, 1, 0, 0, 1)],
    )  # fmt: skip
    history.append(history.rows[2], "rescale", operators=[fewer])
    assert names(keyed_state_files(path_of(history), "counter")) == (["b"], [])


def test_changes_after_bases_of_another_max_parallelism_may_be_in_any_of_its_key_groups() -> None:
    """So it is while a rescale writes bases in other key groups, and micro-batches go on in the old ones."""
    history = History()
    history.batch((3,))
    history.batch((1,))
    more = replace(
        history.rows[2].operators[0], changelog=[], max_parallelism=6, bases=[BaseRange(0, 5, "w3", 1)],
        base_files=[BaseFile("b", 1, 1, 0, 0, 5)],
    )  # fmt: skip
    path = [*path_of(history), checkpoint(3, 2, write_id="w3", kind="rescale", operators=[more])]
    (changed,) = keyed_state_files(path, "counter").changelog
    assert (changed.file.path, changed.groups.start, changed.groups.end) == ("write_id=w2/c1", 0, 5)


def test_a_base_may_stand_for_its_own_row() -> None:
    history = History()
    history.batch(())
    base = BaseRange(0, GROUPS - 1, "w1", 1)
    imported = replace(history.rows[1].operators[0], bases=[base], base_files=[BaseFile("b", 1, 1, 0, 0, 3)])
    row = checkpoint(1, None, kind="import", operators=[imported])
    assert names(keyed_state_files([row], "counter")) == (["b"], [])


def test_a_base_that_no_row_of_the_path_wrote_is_missing() -> None:
    history = History()
    history.batch((0,))
    history.compact(0, (0, 3))
    history.batch((1,))
    files = keyed_state_files([history.rows[1], history.rows[3]], "counter")
    assert files.missing_bases == ("w2",)
    assert names(files) == ([], ["write_id=w3/c1"])


class Unread(list[DataFile]):
    """Files that nobody looks at."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("somebody looked at changes that bases hold")


def test_changes_that_bases_hold_are_not_looked_at_although_an_old_base_stands_for_later_checkpoints() -> (
    None
):
    history = History()
    for changed in ((0,), (1,)):
        history.batch(changed)
    history.compact(0, (0, 3))
    history.batch((0,))
    history.compact(0, (0, 1), advance=True)
    history.batch((0,))
    path = [
        row
        if i > 3
        else replace(row, operators=[replace(o, changelog=Unread(o.changelog)) for o in row.operators])
        for i, row in enumerate(path_of(history))
    ]
    files = keyed_state_files(path, "counter")
    assert {base.base_id for base in path[-1].operators[0].bases} == {"w3", "w5"}
    assert sorted(one.checkpoint_id for one in files.base) == [3, 3, 5, 5]
    assert names(files)[1] == ["write_id=w6/c0"]


def test_files_of_operators_and_of_source_positions_are_kept_apart() -> None:
    assert operator_of(DataFile("write_id=w/part-00000-w-0.parquet", 1, 1, 0)) is None
    assert operator_of(DataFile("write_id=w/part-00000-w-0.sink.parquet", 1, 1, 0)) == "sink"


def test_an_audit_does_not_miss_positions_that_a_compaction_stated_whole() -> None:
    history = History()
    history.batch((0,))
    history.batch((0,))
    history.compact(0, (0, 3), positions=True)
    history.batch((1,))
    path = path_of(history)
    whole, after = (f"write_id=w{i}/part-00000-w{i}-0.parquet" for i in (3, 4))
    assert [f.path for f in position_files(path)] == [whole, after]
    looked_at = {(at, f.path) for at, f in needed_files(LAYOUT, path)}
    operator_state = "write_id=w4/part-00000-w4-0.counter.parquet"
    assert {p for at, p in looked_at if at == LAYOUT.operator_state} == {whole, after, operator_state}
