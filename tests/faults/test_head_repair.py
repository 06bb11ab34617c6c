"""The newest row of ``checkpoints`` is damaged: it is left out where no sink shows it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from state_engine.core.errors import (
    DamagedFileError,
    DamagedOutputError,
    SinkError,
    StatelakeError,
    StorageError,
)
from state_engine.microbatch.coordinator import RunOptions
from state_engine.monitoring.repairs import REQUESTED_BY, head_damages, leave_out
from state_engine.sinks.file_moves import Mover
from tests.faults.file_plane import Access, Plane, installed
from tests.faults.sites import CLOCK_MS, EVERY, LETTERS, WITHDRAWING, Site, check, in_this_process, shown_in
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


CASES = [*((head, 0) for head in MOVES_OUTPUTS), ("a compaction", 99), ("a row of a branch", 99)]
"""Which row is lost, and how many sinks it was published to by then: rows of the last two move no outputs."""


@pytest.mark.parametrize(("head", "sinks"), CASES)
def test_a_damaged_head_that_no_sink_shows_is_left_out_and_done_again(
    head: str, sinks: int, tmp_path: Path
) -> None:
    site = Site(tmp_path, EVERY if head == "a micro-batch" else WITHDRAWING)
    with in_this_process():
        lost = lost_head(site, head, shown_in(sinks))
        lost_id = int(lost.split("-")[1])
        [damage] = head_damages((tmp_path / "root").as_uri())
        assert f"leave out checkpoint {lost_id}" in damage.repair
        assert f"checkpoint {lost_id} is left out" in repaired(site, lost)
        assert not head_damages((tmp_path / "root").as_uri())
        with site.engine() as engine:
            rows = engine.checkpoints(JOB)
        top = rows[-1]
        assert (top.checkpoint_id, top.kind, top.requested_by) == (lost_id + 1, "retention", REQUESTED_BY)
        assert lost_id not in [row.checkpoint_id for row in rows]  # and it is never used again
        site.run()
        check(site)


SHOWN = [(head, sinks) for head in MOVES_OUTPUTS for sinks in (1, 99)]


@pytest.mark.parametrize(
    ("head", "sinks"),
    [pytest.param(*case, marks=[] if case[0] == "a micro-batch" else pytest.mark.faults) for case in SHOWN],
)
def test_a_damaged_head_that_a_sink_shows_is_refused_and_nothing_is_done(
    head: str, sinks: int, tmp_path: Path
) -> None:
    site = Site(tmp_path)
    with in_this_process():
        lost = lost_head(site, head, shown_in(sinks))
        before = {sink: site.shown(sink) for sink in (*WITHDRAWING, LETTERS)}
        files = sorted(path.name for path in (tmp_path / "root" / JOB / "checkpoints").iterdir())
        with pytest.raises(SinkError, match=r"show checkpoint \d, so .*second time.*backup.*savepoint"):
            repaired(site, lost)
        assert {sink: site.shown(sink) for sink in (*WITHDRAWING, LETTERS)} == before
        assert sorted(path.name for path in (tmp_path / "root" / JOB / "checkpoints").iterdir()) == files


def test_every_kind_of_sink_is_asked(tmp_path: Path) -> None:
    site = Site(tmp_path, EVERY)
    with in_this_process():
        lost = lost_head(site, "a micro-batch")
        with pytest.raises(SinkError) as refusal:
            repaired(site, lost)
        assert str(refusal.value).startswith(f"{[*EVERY, LETTERS]} show checkpoint 2")


@pytest.mark.parametrize("step", ["withdraw", "add"])
def test_a_sink_that_stands_in_the_middle_of_a_move_shows_the_damaged_head(step: str, tmp_path: Path) -> None:
    site = Site(tmp_path, ("out_files",))
    with in_this_process():
        lost = lost_head(site, "a restore that puts outputs back", cut_in(step))
        with pytest.raises(SinkError, match=r"'out_files'.* show checkpoint"):
            repaired(site, lost)


@contextmanager
def cut_in(step: str) -> Iterator[None]:
    """A power cut before a step of a move of files."""

    def out_of_power(*_: object, **__: object) -> None:
        raise StatelakeError("out of power")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mover, step, out_of_power)
        yield


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
