"""The newest row of ``checkpoints`` is damaged: sinks withdraw its outputs, then it is left out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.errors import (
    DamagedFileError,
    DamagedOutputError,
    SinkError,
    StatelakeError,
    StorageError,
)
from state_engine.microbatch.coordinator import RunOptions
from state_engine.monitoring.head_repair import REQUESTED_BY, head_damages, leave_out
from state_engine.monitoring.lost_outputs import LostChange, LostOutputs
from state_engine.publishing.publication import Publication
from state_engine.sinks.file_moves import Mover
from state_engine.storage.checkpoint_log import CheckpointLog
from tests.faults.file_plane import Access, Plane, installed
from tests.faults.sites import CLOCK_MS, EVERY, LETTERS, WITHDRAWING, Site, check, in_this_process, opened
from tests.protocol.model_job import JOB


def damaged_head(site: Site) -> Path:
    """The file of the newest row, empty, as a power cut leaves what was not synced."""
    file = max((site.directory / "root" / JOB / "checkpoints").glob("checkpoint-*.parquet"))
    os.truncate(file, 0)
    return file


def restored(site: Site) -> None:
    with site.engine() as engine:
        engine.restore(JOB, checkpoint_id=1)


def put_back(site: Site) -> None:
    """The outputs of checkpoint 2 are published again, and those of the micro-batch in their place are withdrawn."""
    with site.engine() as engine:
        engine.restore(JOB, checkpoint_id=2)


def replayed(site: Site) -> None:
    options = RunOptions(clock=lambda: CLOCK_MS, bounded=True, branch="again", begin_id=1)
    with site.engine() as engine:
        assert engine.context.coordinator(site.job(), options).run_batch()


def promoted(site: Site) -> None:
    with site.engine() as engine:
        engine.promote(JOB, "again")


def batch(site: Site) -> None:
    site.run(max_batches=1)


def compacted(site: Site) -> None:
    with site.engine() as engine:
        engine.compact(JOB)


Step = Callable[[Site], None]
HEADS: dict[str, tuple[list[Step], Step]] = {
    "a micro-batch": ([batch], batch),
    "a restore": ([batch, batch], restored),
    "a restore that puts outputs back": ([batch, batch, restored, batch], put_back),
    "a promotion": ([batch, batch, replayed], promoted),
    "a compaction": ([batch, batch], compacted),
    "a row of a branch": ([batch, batch], replayed),
}
"""What comes before a row that is lost, and the row."""
MOVES_OUTPUTS = [name for name in HEADS if name not in ("a compaction", "a row of a branch")]


@contextmanager
def shown_in(sinks: int) -> Iterator[None]:
    """A power cut after so many sinks show a row."""
    real, calls = Publication._publish, []

    def publish(self: Publication, staged: StagedSink, checkpoint_id: int) -> None:
        calls.append(staged)
        if len(calls) > sinks:
            raise StatelakeError("out of power")
        real(self, staged, checkpoint_id)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Publication, "_publish", publish)
        yield


def lost_head(site: Site, head: str, cut: AbstractContextManager[None] | None = None) -> str:
    """Make a row, which is cut short where that is wanted, and lose it; the name of its file."""
    before, last = HEADS[head]
    for step in before:
        step(site)
    with cut or nullcontext(), suppress(StatelakeError):
        last(site)
    file = damaged_head(site)
    with pytest.raises(DamagedFileError):
        site.run()
    return file.name


def repaired(site: Site, name: str) -> str:
    with site.engine() as engine:
        return leave_out(engine, JOB, name)


def check_repaired(site: Site, name: str) -> None:
    """The row has no effect except its used id, and the job goes on."""
    assert not head_damages((site.directory / "root").as_uri())
    with site.engine() as engine:
        rows = engine.checkpoints(JOB)
    lost, top = int(name.split("-")[1]), rows[-1]
    assert (top.checkpoint_id, top.kind, top.requested_by) == (lost + 1, "retention", REQUESTED_BY)
    assert lost not in [row.checkpoint_id for row in rows]  # and it is never used again
    site.run()
    check(site)
    restored(site)  # what sinks show is what rows say: they can be moved again
    site.run()
    check(site)


CASES = [(head, sinks) for head in MOVES_OUTPUTS for sinks in (0, 2, 99)] + [
    (head, 99) for head in HEADS if head not in MOVES_OUTPUTS
]
"""Which row is lost, and how many sinks show it."""
ALWAYS = [
    ("a micro-batch", 99), ("a restore that puts outputs back", 99), ("a promotion", 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("head", "sinks"),
    [pytest.param(*case, marks=[] if case in ALWAYS else pytest.mark.faults) for case in CASES],
)
def test_a_damaged_head_is_left_out_and_done_again(head: str, sinks: int, tmp_path: Path) -> None:
    site = Site(tmp_path)
    with in_this_process():
        name = lost_head(site, head, shown_in(sinks))
        [damage] = head_damages((tmp_path / "root").as_uri())
        assert f"leave out checkpoint {int(name.split('-')[1])}" in damage.repair
        done = repaired(site, name)
        every = [*WITHDRAWING, LETTERS]
        changed = str(every[:sinks])
        if sinks == 0 or head not in MOVES_OUTPUTS:
            assert "no sink showed it" in done
        if sinks and head in ("a micro-batch", "a restore that puts outputs back", "a promotion"):
            assert f"its outputs were withdrawn from {changed}" in done
        if sinks and head in ("a restore", "a restore that puts outputs back", "a promotion"):
            assert f"withdrawn outputs were put back into {changed}" in done
        check_repaired(site, name)


@pytest.mark.parametrize(
    "head",
    [
        "a restore",
        pytest.param("a micro-batch", marks=pytest.mark.faults),
        pytest.param("a restore that puts outputs back", marks=pytest.mark.faults),
    ],
)
def test_a_repair_that_was_interrupted_is_repeated(
    head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    with in_this_process():
        name = lost_head(site, head)
        real, calls = LostOutputs.take_back, []

        def take_back(self: LostOutputs, change: LostChange, checkpoint_id: int) -> None:
            calls.append(change)
            if len(calls) == 4:
                raise StatelakeError("out of power")
            real(self, change, checkpoint_id)

        with monkeypatch.context() as patch:
            patch.setattr(LostOutputs, "take_back", take_back)
            patch.setattr(CheckpointLog, "_append", out_of_power)
            for _ in range(2):  # in the middle of the sinks, and before the row
                with pytest.raises(StatelakeError, match="out of power"):
                    repaired(site, name)
        repaired(site, name)
        check_repaired(site, name)


@contextmanager
def cut_in(step: str) -> Iterator[None]:
    """A power cut before a step of a move of files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mover, step, out_of_power)
        yield


def out_of_power(*_: object, **__: object) -> None:
    raise StatelakeError("out of power")


def test_a_move_of_files_that_stands_in_the_middle_is_taken_back(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with in_this_process():
        name = lost_head(site, "a restore that puts outputs back", cut_in("add"))
        assert site.shown("out_files") != site.shown("out")
        repaired(site, name)
        check_repaired(site, name)


@pytest.mark.parametrize(
    ("head", "step"),
    [
        ("a micro-batch", "add"),
        ("a restore", "_write"),
        pytest.param("a micro-batch", "withdraw", marks=pytest.mark.faults),
        pytest.param("a restore that puts outputs back", "withdraw", marks=pytest.mark.faults),
        pytest.param("a restore that puts outputs back", "add", marks=pytest.mark.faults),
    ],
)
def test_a_repair_that_was_cut_in_the_middle_of_a_move_goes_on_with_it(
    head: str, step: str, tmp_path: Path
) -> None:
    site = Site(tmp_path)
    with in_this_process():
        name = lost_head(site, head)
        with cut_in(step), pytest.raises(StatelakeError, match="out of power"):
            repaired(site, name)
        repaired(site, name)
        check_repaired(site, name)


def test_outputs_that_a_consumer_took_cannot_be_withdrawn(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with in_this_process():
        name = lost_head(site, "a micro-batch")
        (tmp_path / "out_csv" / "checkpoint_id=000000000002").rename(tmp_path / "taken")
        with pytest.raises(
            SinkError, match=r"'out_csv' shows checkpoint 2: .*somebody removed the files.* Nothing was done"
        ):
            repaired(site, name)


def test_rows_that_somebody_changed_since_are_no_evidence(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with in_this_process():
        name = lost_head(site, "a restore")
        with opened(f"{tmp_path}/out_sql.db") as database:
            database.execute("delete from out")  # the outputs of checkpoint 1 as well
        before = site.shown("out")
        with pytest.raises(SinkError, match=r"'out_sql' shows checkpoint 3: .*somebody has changed rows"):
            repaired(site, name)
        assert site.shown("out") == before


def test_a_function_keeps_a_head_that_it_was_called_with_and_nothing_is_done(tmp_path: Path) -> None:
    site = Site(tmp_path, EVERY)
    with in_this_process():
        name = lost_head(site, "a micro-batch")
        before = {sink: site.shown(sink) for sink in EVERY}
        with pytest.raises(
            SinkError, match=r"'out_function' shows checkpoint 2: its function was called .* Nothing was done"
        ):
            repaired(site, name)
        assert {sink: site.shown(sink) for sink in EVERY} == before


def test_an_older_row_or_the_only_one_is_for_a_person(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with in_this_process():
        site.run(max_batches=1)
        file = damaged_head(site)
        [only] = head_damages((tmp_path / "root").as_uri())
        assert only.apply is None
        assert "backup" in only.repair
        file.unlink()
        [gone] = head_damages((tmp_path / "root").as_uri())
        assert gone.apply is None


@pytest.mark.parametrize("sink", ["out", "out_files"])
def test_outputs_that_are_shown_and_empty_are_noticed(sink: str, tmp_path: Path) -> None:
    """Without syncs the disk may have lost them; a restore withdraws them, and the next run writes them again."""
    site = Site(tmp_path)
    with in_this_process():
        site.run(max_batches=2)
        before = set(tmp_path.glob(f"{sink}/**/part-*.parquet"))
        site.run(max_batches=1)
        for file in set(tmp_path.glob(f"{sink}/**/part-*.parquet")) - before:
            os.truncate(file, 0)
        with pytest.raises(DamagedOutputError, match=f"sink '{sink}', checkpoint 3.* has 0 bytes"):
            site.run()
        with site.engine() as engine:
            engine.restore(JOB, checkpoint_id=2)
        site.run()
        check(site)


def test_what_cannot_be_looked_at_is_not_damaged(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with in_this_process():
        site.run(max_batches=1)
        log = "root/model/checkpoints/_delta_log"
        for access in (Access("list", log, 1), Access("read", f"{log}/#.json", 2)):
            with (
                installed(Plane(str(tmp_path), access)) as plane,
                pytest.raises(StorageError, match=f"job '{JOB}'"),
            ):
                head_damages((tmp_path / "root").as_uri())
            assert plane.fired
