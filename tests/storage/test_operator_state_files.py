"""Operator state in files: what is written, what is referenced, who reads it, and every missing file is reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile, OperatorStateRef
from state_engine.core.checkpoints.resumption import restored_since_last_run
from state_engine.core.checkpoints.state_files import operator_of, operator_state_files
from state_engine.core.errors import MissingFilesError, RescaleError, StateAccessError
from state_engine.core.operator_state.operator_snapshot import StateElements, SubtaskSnapshot, assign
from state_engine.core.operator_state.operator_state_ref import build_ref, check_rescale, schemas_from_json
from state_engine.storage.layout import OPERATOR_STATE_SCHEMA, file_name, partition_path
from state_engine.storage.state.operator_state_files import read_subtask_state, write_subtask_state
from state_engine.storage.stores.files import normal_uri
from tests.core.checkpoints.rows import checkpoint

GROUPS = 8


def left(
    raw: bytes = b"", by_group: dict[int, bytes] | None = None, **states: Sequence[Any]
) -> SubtaskSnapshot:
    """A snapshot; the first letter of a state's name is its scheme: even, union or broadcast."""
    schemes = {"e": "even_split", "u": "union", "b": "broadcast"}
    lists = [
        StateElements(name, schemes[name[0]], "bigint", tuple(map(str, states[name])))
        for name in sorted(states)
    ]
    return SubtaskSnapshot(tuple(lists), raw, tuple(sorted((by_group or {}).items())))


class Job:
    """Runs "batches" of one operator that leave given snapshots; the path grows by a row each."""

    def __init__(self, directory: Path, operator: str = "sink") -> None:
        self.directory, self.uri, self.operator = directory, normal_uri(directory), operator
        self.path: list[CheckpointRow] = []

    @property
    def ref(self) -> OperatorStateRef | None:
        refs = self.path[-1].operator_state if self.path else []
        return next((r for r in refs if r.operator == self.operator), None)

    def batch(self, *snapshots: SubtaskSnapshot) -> list[DataFile]:
        """Commit the snapshots of the subtasks; returns the files that they wrote."""
        number = len(self.path) + 1
        files, declared = [], []
        for i, snapshot in enumerate(snapshots):
            file, states = write_subtask_state(
                snapshot, uri=self.uri, operator=self.operator, write_id=f"w{number}", subtask=i, attempt=9,
                parent=self.ref,
            )  # fmt: skip
            files += [file] if file else []
            declared.append(schemas_from_json(json.loads(json.dumps([asdict(s) for s in states]))))
        ref = build_ref(self.operator, declared, write_id=f"w{number}", parent=self.ref)
        self.path.append(
            checkpoint(number, number - 1 or None, operator_state=[ref], operator_state_files=files)
        )
        return files

    def row(self, kind: str, parent: int | None = None) -> None:
        """A row that is no micro-batch; a restore goes on from an earlier one."""
        number = len(self.path) + 1
        kept = self.path[: parent or len(self.path)]
        row = checkpoint(number, kept[-1].checkpoint_id, kind=kind, operator_state=kept[-1].operator_state)
        self.path = [*kept, row]

    def start(self, parallelism: int) -> list[SubtaskSnapshot | None]:
        ref = self.ref
        files = operator_state_files(self.path, ref) if ref else []
        restored = ref is not None and restored_since_last_run(self.path, ref)
        return [
            read_subtask_state(
                ref, files, uri=self.uri, subtask=i, parallelism=parallelism, max_parallelism=GROUPS,
                restored=restored,
            )
            for i in range(parallelism)
        ]  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        files = sorted(self.directory.rglob("*.parquet"))
        return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


# -- writing -----------------------------------------------------------------------------------------------------------


def test_rows_of_the_table(job: Job) -> None:
    files = job.batch(left(b"raw", {3: b"", 1: b"g"}, e=[7, 8], b=[5]), left(e=[9], b=[5]))
    known = {"operator": "sink", "value": None, "bytes": None}
    assert job.rows() == [
        known | {"state": "b", "scheme": "broadcast", "subtask": 0, "position": 0, "value": "5"},
        known | {"state": "e", "scheme": "even_split", "subtask": 0, "position": 0, "value": "7"},
        known | {"state": "e", "scheme": "even_split", "subtask": 0, "position": 1, "value": "8"},
        known
        | {"state": "raw_operator", "scheme": "raw_operator", "subtask": 0, "position": 0, "bytes": b"raw"},
        known | {"state": "raw_keyed", "scheme": "raw_keyed", "subtask": 0, "position": 1, "bytes": b"g"},
        known | {"state": "raw_keyed", "scheme": "raw_keyed", "subtask": 0, "position": 3, "bytes": b""},
        known | {"state": "e", "scheme": "even_split", "subtask": 1, "position": 0, "value": "9"},
    ]
    assert [(f.rows, f.subtask) for f in files] == [(6, 0), (1, 1)]
    for file in files:
        at = job.directory / file.path
        assert at.stat().st_size == file.bytes
        assert pq.read_schema(at).equals(OPERATOR_STATE_SCHEMA)
    assert files[1].path == "write_id=w1/part-00001-w1-9.sink.parquet"


def test_the_reference_counts_elements_by_state_and_subtask(job: Job) -> None:
    job.batch(left(b"raw", e=[7, 8], b=[5]), left(e=[], b=[5]))
    ref = job.ref
    assert ref is not None
    assert (ref.operator, ref.write_id, ref.last_run, ref.elements, ref.parallelism) == (
        "sink",
        "w1",
        "w1",
        4,
        2,
    )
    assert {s.name: [(p.subtask, p.elements) for p in s.parts] for s in ref.states} == {
        "b": [(0, 1)],
        "e": [(0, 2), (1, 0)],
        "raw_operator": [(0, 1)],
    }
    assert ref.write_ids() == {"w1"}


def test_nothing_changed_nothing_written(job: Job) -> None:
    same = left(b"raw", {3: b"x"}, e=[1, 2], u=[3], b=[4]), left(e=[], b=[4])
    job.batch(*same)
    before = job.ref
    assert job.batch(*same) == []
    assert job.ref == replace(before, last_run="w2")  # type: ignore[type-var]


def test_only_the_lists_that_changed_are_written(job: Job) -> None:
    job.batch(left(e=[1, 2], u=[3], b=[4]), left(e=[5], u=[6], b=[4]))
    files = job.batch(left(e=[1, 2], u=[3], b=[4]), left(e=[5], u=[6, 7], b=[4]))
    assert [(f.subtask, f.rows) for f in files] == [(1, 2)]
    assert job.ref is not None
    assert {s.name: [p.write_id for p in s.parts] for s in job.ref.states} == {
        "b": ["w1"],
        "e": ["w1", "w1"],
        "u": ["w1", "w2"],
    }
    assert job.ref.write_id == "w2"


@pytest.mark.parametrize(
    "changed",
    [left(e=[2, 1]), left(e=[1]), left(e=[12]), left(e=[1, 2, 2]), left(u=[1, 2]), left(e_other=[1, 2])],
)
def test_any_change_of_a_list_is_seen(job: Job, changed: SubtaskSnapshot) -> None:
    job.batch(left(e=[1, 2]))
    assert len(job.batch(changed)) == 1
    assert job.start(1) == [changed]


def test_elements_are_distinguished_and_not_only_their_texts(job: Job) -> None:
    job.batch(left(e=[1, 11]))
    assert len(job.batch(left(e=[11, 1]))) == 1


def test_a_change_of_type_is_seen(job: Job) -> None:
    job.batch(left(e=[1]))
    retyped = SubtaskSnapshot((StateElements("e", "even_split", "string", ("1",)),))
    assert len(job.batch(retyped)) == 1
    assert job.start(1) == [retyped]


def test_what_was_emptied_is_known_and_needs_no_file(job: Job) -> None:
    job.batch(left(b"raw", {3: b"x"}, e=[1]))
    assert job.batch(left(e=[])) == []
    assert job.ref is not None
    assert (job.ref.write_id, job.ref.elements, job.ref.write_ids()) == ("w2", 0, set())
    assert job.start(1) == [left(e=[])]


def test_one_copy_of_broadcast_state_is_stored(job: Job) -> None:
    files = job.batch(*[left(b=[1, 2])] * 3)
    assert [(f.subtask, f.rows) for f in files] == [(0, 2)]
    assert job.start(3) == [left(b=[1, 2])] * 3
    assert job.start(5) == [left(b=[1, 2])] * 5
    assert job.batch(*[left(b=[1, 2])] * 5) == []  # also after a rescale it is pointed to


@pytest.mark.parametrize("other", [left(b=[1]), left(b=[2, 1]), left(b=[]), left()])
def test_copies_of_broadcast_state_that_differ_are_refused(job: Job, other: SubtaskSnapshot) -> None:
    for subtasks in ((left(b=[1, 2]), other), (other, left(b=[1, 2]))):
        with pytest.raises(StateAccessError, match="operator 'sink': broadcast state 'b' is not the same in"):
            job.batch(*subtasks)


def test_broadcast_state_that_some_subtasks_only_looked_at_is_none_yet(job: Job) -> None:
    for subtasks in ((left(b=[]), left()), (left(), left(b=[]))):
        assert job.batch(*subtasks) == []
        assert job.ref is not None
        assert job.ref.states == []
        assert job.start(2) == [left()] * 2


def test_two_operators_and_source_positions_share_an_attempt(job: Job, tmp_path: Path) -> None:
    other = Job(tmp_path, "other")
    mine, theirs = job.batch(left(e=[1])), other.batch(left(e=[2]))
    positions = DataFile(partition_path("w1", file_name("w1", 0, 9)), 1, 1, 0)
    together = [*mine, *theirs, positions]
    assert len({f.path for f in together}) == 3
    assert [operator_of(f) for f in together] == ["sink", "other", None]
    for one in (job, other):
        one.path[0] = replace(one.path[0], operator_state_files=together)
    assert (job.start(1), other.start(1)) == ([left(e=[1])], [left(e=[2])])


# -- reading -----------------------------------------------------------------------------------------------------------


def test_an_operator_that_no_checkpoint_knows(job: Job) -> None:
    assert job.start(2) == [None, None]


def test_between_batches_every_subtask_gets_its_own_lists(job: Job) -> None:
    own = left(b"raw", {0: b"x"}, e=[1, 2, 3], u=[4]), left(b"", {7: b"y"}, e=[], u=[5])
    job.batch(*own)
    assert job.start(2) == [*own]


@pytest.mark.parametrize("own", [0, 1, 2])
def test_between_batches_only_its_own_file_is_opened(job: Job, own: int) -> None:
    files = job.batch(left(e=[0]), left(e=[1]), left(e=[2]))
    for file in files:
        if file.subtask != own:
            (job.directory / file.path).unlink()
    given_to = {"uri": job.uri, "parallelism": 3, "max_parallelism": GROUPS, "restored": False}
    assert read_subtask_state(job.ref, files, subtask=own, **given_to) == left(e=[own])  # type: ignore[arg-type]
    with pytest.raises(MissingFilesError, match=f"subtask {(own + 1) % 3}: .*does not exist"):
        read_subtask_state(job.ref, files, subtask=(own + 1) % 3, **given_to)  # type: ignore[arg-type]


def test_the_files_to_read_are_those_that_hold_elements_of_the_operator(job: Job, tmp_path: Path) -> None:
    first = job.batch(left(e=[1], u=[1]), left(e=[2], u=[2]))
    job.batch(left(e=[3], u=[1]), left(e=[4], u=[3]))
    last = job.batch(left(e=[5], u=[1]), left(e=[4], u=[3]))
    theirs = Job(tmp_path, "other").batch(left(e=[2]))
    job.path[0] = replace(job.path[0], operator_state_files=[*theirs, *first])
    assert job.ref is not None
    held = operator_state_files(job.path, job.ref)
    assert [(f.path.split("/")[0], f.subtask) for f in held] == [
        ("write_id=w1", 0), ("write_id=w1", 1), ("write_id=w2", 0), ("write_id=w2", 1), ("write_id=w3", 0),
    ]  # fmt: skip
    job.batch(left(e=[6], u=[6]), left(e=[7], u=[7]))
    assert [f.path.split("/")[0] for f in operator_state_files(job.path, job.ref)] == ["write_id=w4"] * 2
    assert len(last) == 1


def test_union_acts_at_a_restore_and_not_again(job: Job) -> None:
    job.batch(left(e=[1], u=[1]), left(e=[2], u=[2]))
    job.row("restore", 1)
    assert job.start(2) == [left(e=[1], u=[1, 2]), left(e=[2], u=[1, 2])]
    assert job.batch(left(e=[1], u=[1]), left(e=[2], u=[2])) == []  # each took its own again
    assert job.start(2) == [left(e=[1], u=[1]), left(e=[2], u=[2])]


def test_raw_keyed_state_moves_and_raw_operator_state_does_not(job: Job) -> None:
    job.batch(left(by_group={0: b"a", 3: b"b"}), left(by_group={4: b"c"}))
    check_rescale(job.ref, 4)  # type: ignore[arg-type]
    assert job.start(4) == [
        left(by_group={0: b"a"}),
        left(by_group={3: b"b"}),
        left(by_group={4: b"c"}),
        left(),
    ]
    job.batch(left(b"x"), left())
    check_rescale(job.ref, 2)  # type: ignore[arg-type]
    for refused in (lambda: job.start(4), lambda: check_rescale(job.ref, 4)):  # type: ignore[arg-type]
        with pytest.raises(RescaleError, match="operator 'sink' has raw operator state in 1 of 2 subtasks"):
            refused()


# -- damage ------------------------------------------------------------------------------------------------------------


def _delete(at: Path) -> None:
    at.unlink()


def _shorten(at: Path) -> None:
    pq.write_table(pq.ParquetFile(at).read().slice(1), at)


def _other_value(at: Path) -> None:
    table = pq.ParquetFile(at).read()
    pq.write_table(table.set_column(5, "value", pa.array(["7"] * table.num_rows)), at)


def _no_value(at: Path) -> None:
    table = pq.ParquetFile(at).read()
    pq.write_table(table.set_column(5, "value", pa.nulls(table.num_rows, pa.string())), at)


def _other_state(at: Path) -> None:
    table = pq.ParquetFile(at).read()
    pq.write_table(table.set_column(1, "state", pa.array(["other"] * table.num_rows)), at)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_delete, "does not exist"),
        (_shorten, "has 1 row, 2 were recorded"),
        (_other_value, "does not hold what was written"),
        (_no_value, "holds 0 elements, 2 were recorded"),
        (_other_state, "holds 0 elements, 2 were recorded"),
    ],
)
def test_damage_is_reported(job: Job, damage: Callable[[Path], None], message: str) -> None:
    files = job.batch(left(e=[1, 2]))
    damage(job.directory / files[0].path)
    known = "does not exist|is damaged"
    with pytest.raises(
        MissingFilesError, match=f"operator 'sink', state 'e', subtask 0: .*({known}).*[Rr]estore a"
    ):
        job.start(1)
    # older versions recorded no checksum, and sizes of sinks' files only
    plain = [replace(file, bytes=0, footer=None) for file in files]
    job.path[0] = replace(job.path[0], operator_state_files=plain)
    for parallelism in (1, 2):
        with pytest.raises(
            MissingFilesError, match=f"operator 'sink', state 'e', subtask 0: .*{message}.*Restore an older"
        ):
            job.start(parallelism)


def test_a_file_that_no_checkpoint_lists_is_missing(job: Job) -> None:
    job.batch(left(e=[1]))
    job.path[0] = replace(job.path[0], operator_state_files=[])
    with pytest.raises(MissingFilesError, match="no checkpoint on the path lists a file of attempt w1"):
        job.start(1)


# -- a model -----------------------------------------------------------------------------------------------------------

SUBTASK = st.fixed_dictionaries({
    "e": st.lists(st.integers(0, 3), max_size=3),
    "u": st.lists(st.integers(0, 3), max_size=2),
    "groups": st.sets(st.integers(0, 7), max_size=2),
    "touched": st.booleans(),
})  # fmt: skip
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["batch", "batch", "restore", "compaction"]),
        st.integers(1, 3),
        st.lists(SUBTASK, min_size=3, max_size=3),
        st.lists(st.integers(0, 3), max_size=2),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40)
@given(STEPS)
def test_any_history_reads_what_handing_it_over_in_memory_gives(steps: list[Any]) -> None:
    with TemporaryDirectory() as directory:
        job = Job(Path(directory))
        memory: dict[
            int, tuple[list[SubtaskSnapshot], bool]
        ] = {}  # by row: what was left, and whether restored since
        for kind, parallelism, subtasks, rules, back in steps:
            if kind != "batch":
                if job.path:
                    parent = job.path[back % len(job.path)] if kind == "restore" else job.path[-1]
                    old, restored = memory[parent.checkpoint_id]
                    _extend(job, kind, parent, number=max(memory) + 1)
                    memory[max(memory) + 1] = old, restored or kind == "restore"
                continue
            starts = job.start(parallelism)
            if job.path:
                old, restored = memory[job.path[-1].checkpoint_id]
                expected = assign(
                    old, parallelism, operator="sink", max_parallelism=GROUPS, restored=restored
                )
                assert starts == expected
            snapshots = []
            for i, (start, new) in enumerate(zip(starts, subtasks, strict=False)):
                if start is not None and not new["touched"]:
                    kept = {s.name: s.elements for s in start.states} | {"b": rules}
                    snapshots.append(left(start.raw_operator, dict(start.raw_keyed), **kept))
                else:
                    groups = {g: b"%d" % g for g in new["groups"] if g * parallelism // GROUPS == i}
                    snapshots.append(left(b"", groups, e=new["e"], u=new["u"], b=rules))
            number = max(memory, default=0) + 1
            _batch(job, snapshots, number)
            memory[number] = snapshots, False


def _batch(job: Job, snapshots: list[SubtaskSnapshot], number: int) -> None:
    parent = job.path[-1].checkpoint_id if job.path else None
    numbered = Job(job.directory)
    numbered.path = [*[checkpoint(0)] * (number - 1 - len(job.path)), *job.path]
    numbered.batch(*snapshots)
    job.path = [*job.path, replace(numbered.path[-1], checkpoint_id=number, parent_id=parent)]


def _extend(job: Job, kind: str, parent: CheckpointRow, *, number: int) -> None:
    kept = job.path[: job.path.index(parent) + 1]
    row = checkpoint(number, parent.checkpoint_id, kind=kind, operator_state=parent.operator_state)
    job.path = [*kept, row]
