"""The newest row of ``checkpoints`` is damaged: it is left out, and a sink that shows it lets go of it first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from state_engine.core.errors import DamagedFileError, DamagedOutputError, StatelakeError
from state_engine.runtime.head_repair import REQUESTED_BY, head_damages, leave_out
from state_engine.runtime.publication import Publication
from tests.faults.ground import Site, check, in_this_process
from tests.protocol.model_job import JOB


def damaged_head(site: Site) -> Path:
    """The file of the newest row, empty, as a power cut leaves what was not synced."""
    file = max((site.directory / "root" / JOB / "checkpoints").glob("checkpoint-*.parquet"))
    os.truncate(file, 0)
    return file


@pytest.mark.parametrize("shown", ["in no sink", "in one sink", "in all sinks"])
def test_a_damaged_head_is_left_out_and_done_again(
    shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    with in_this_process():
        site.run(max_batches=1)
        real, calls = Publication._publish, []

        def publish(self: Publication, staged: object, checkpoint_id: int) -> None:
            calls.append(staged)
            if shown == "in no sink" or (shown == "in one sink" and len(calls) > 1):
                raise StatelakeError("out of power")
            real(self, staged, checkpoint_id)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(Publication, "_publish", publish)
            if shown == "in all sinks":
                site.run(max_batches=1)
            else:
                with pytest.raises(StatelakeError, match="out of power"):
                    site.run(max_batches=1)
        file = damaged_head(site)
        with pytest.raises(DamagedFileError):
            site.run()

        [damage] = head_damages((tmp_path / "root").as_uri())
        assert "leave out checkpoint 2" in damage.repair
        with site.engine() as engine:
            done = leave_out(engine, JOB, file.name)
        expected = {"in no sink": "no sink showed it", "in one sink": "['out']"}
        assert expected.get(shown, "['out', 'out_files', 'out_sql']") in done

        assert not head_damages((tmp_path / "root").as_uri())
        site.run()
        check(site)
        with site.engine() as engine:
            rows = engine.checkpoints(JOB)
        assert [(row.checkpoint_id, row.kind) for row in rows][:3] == [
            (1, "checkpoint"),
            (3, "retention"),  # 2 is never used again
            (4, "checkpoint"),
        ]
        assert rows[1].requested_by == REQUESTED_BY


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
    """Without syncs the disk may have lost them; a restore takes them back, and the next run makes them anew."""
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
            engine.restore(JOB, 2)
        site.run()
        check(site)
