"""A job with a Delta sink and a directory of files, and a collector whose clock a test sets ahead."""

from __future__ import annotations

import time
from typing import Any

import pytest

from state_engine import DeltaSink, FileSink, FileSource, StatefulJob
from state_engine.microbatch.coordinator import CheckpointCoordinator
from state_engine.operations.file_collector import VacuumReport
from tests.support.tiny import OUTPUT, Site, Sum

HOUR_MS = 3_600_000


class Crash(Exception):
    """A simulated crash."""


class CollectedSite(Site):
    def both(self, name: str = "tiny") -> StatefulJob:
        job = StatefulJob(name, parallelism=2, max_parallelism=8)
        events = job.source("events", FileSource(str(self.feed)))
        out = events.key_by("k").process(Sum(), uid="sums", output_type=OUTPUT)
        out.sink("out", DeltaSink(str(self.sink)))
        out.sink("files", FileSink(str(self.directory / f"files_of_{name}")))
        return job

    def run(self, i: int) -> None:
        self.put({"k": ["a", "b", "abc"[i % 3]], "v": [1, 10, 100 + i]}, f"{i:04d}")
        self.engine().run(self.both())

    def collect(self, *, hours: float, **options: Any) -> VacuumReport:
        """Collect with a clock that is ahead by some hours."""
        now_ms = time.time_ns() // 1_000_000 + int(hours * HOUR_MS)
        return self.engine().vacuum(options.pop("job", self.both()), clock=now_ms, **options)

    def files(self, inside: str = "") -> set[str]:
        """Data files on disk, relative to the directory, without hidden files and logs."""
        data_files = (self.directory / inside).rglob("*-*.parquet")
        kept = (
            str(p.relative_to(self.directory))
            for p in data_files
            if p.is_file() and "_delta_log" not in p.parts
        )
        return {path for path in kept if not path.startswith("feed")}

    def restorable(self) -> dict[int, tuple[Any, ...]]:
        """State by key as of every checkpoint that can be restored."""
        engine = self.engine()
        history = engine.checkpoints("tiny")
        gone = {i for row in history for i in row.retired}
        totals = {}
        for row in history:
            if row.checkpoint_id not in gone:
                state = engine.read_state("tiny", "sums", "total", checkpoint_id=row.checkpoint_id)
                totals[row.checkpoint_id] = tuple(sorted(map(tuple, state.collect())))
        return totals


def crashed(site: CollectedSite, patch: pytest.MonkeyPatch, step: str = "commit", batch: int = 7) -> str:
    """A micro-batch that dies before a step; its ``write_id``."""
    write_ids: list[str] = []

    def dies(self: Any, attempt: Any) -> Any:
        write_ids.append(attempt.batch.write_id)
        raise Crash

    with patch.context() as planted:
        planted.setattr(CheckpointCoordinator, step, dies)
        planted.setattr(CheckpointCoordinator, "_drop_exchange", lambda *_: None)
        with pytest.raises(Crash):
            site.run(batch)
    return write_ids[0]
