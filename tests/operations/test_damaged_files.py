"""A flipped bit in a file of a job, on the real engine: an error that names the file, and remedies that work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from state_engine.core.errors import DamagedFileError, MissingFilesError
from state_engine.monitoring.job_audit import files_are_there
from state_engine.monitoring.job_history import read_history
from tests.support.tiny import Site

pytestmark = pytest.mark.spark

IN_THE_FOOTER = -40
"""From the end of a file."""


def in_a_page(content: bytes, column: str) -> int:
    """The last byte of the values of a column."""
    metadata = pq.read_metadata(pa.BufferReader(content))
    chunks = (metadata.row_group(0).column(i) for i in range(metadata.num_columns))
    chunk = next(c for c in chunks if c.path_in_schema == column)
    return int((chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size) - 1


@pytest.fixture
def ran(tmp_path: Path, spark: SparkSession) -> Site:
    """After two micro-batches, the second with a row that was refused; more input waits, also for its key."""
    site = Site(tmp_path, spark)
    site.put({"k": ["a", "b"], "v": [1, 2]}, "0").engine().run(site.job(on_error="dead_letter"))
    site.put({"k": ["a", None], "v": [10, 5]}, "1").engine().run(site.job(on_error="dead_letter"))
    assert len(site.dead_letters()) == 1
    return site.put({"k": ["a", "b", "c"], "v": [0, 20, 30]}, "2")


class Flipped:
    """A file of the second checkpoint with one flipped bit; the block's end restores it."""

    def __init__(self, site: Site, below: str, column: str | None = None) -> None:
        listed = site.engine().checkpoints("tiny")[1]
        known = {
            "operators/sums/changelog": [f.path for f in listed.operators[0].changelog],
            "operator_state": [f.path for f in listed.operator_state_files],
            "dead_letters": [f.path for f in listed.dead_letters],
        }
        directory = site.directory / "root" / "tiny" / below
        self.file = directory / known[below][-1] if below in known else max(directory.glob("checkpoint-*2-*"))
        self._content = self.file.read_bytes()
        flipped = bytearray(self._content)
        flipped[IN_THE_FOOTER if column is None else in_a_page(self._content, column)] ^= 1
        self.file.write_bytes(flipped)

    def back(self) -> None:
        self.file.write_bytes(self._content)


def test_every_use_of_a_damaged_file_names_it(ran: Site) -> None:
    job = ran.job(on_error="dead_letter")
    uses: dict[str, list[tuple[Callable[[], Any], str]]] = {
        "operators/sums/changelog": [
            (lambda: ran.engine().run(job), "job 'tiny': checkpoint 2, operator 'sums': "),
            (ran.state, "checkpoint 2, operator 'sums': "),
            (lambda: ran.engine().compact("tiny", full=True), "checkpoint 2, operator 'sums': "),
            (lambda: ran.engine().savepoints("tiny").create("copy"), "checkpoint 2, operator 'sums': "),
        ],
        "operator_state": [(lambda: ran.engine().run(job), "checkpoint 2, source positions: ")],
        "checkpoints": [(lambda: ran.engine().run(job), "rows of checkpoints: ")],
        "dead_letters": [(lambda: ran.engine().dead_letters("tiny"), "dead letters of job 'tiny': ")],
    }
    for below, cases in uses.items():
        flipped = Flipped(ran, below)
        for use, of in cases:
            with pytest.raises(
                DamagedFileError, match=f"{of}file:.*{flipped.file.name} is damaged: its footer"
            ):
                use()
        flipped.back()
    assert ran.state() == {"a": 11, "b": 2}


def test_a_damaged_page_is_no_data_for_spark_either(ran: Site) -> None:
    history = read_history(str(ran.directory / "root"), "tiny")
    assert history is not None
    assert files_are_there(history).problems == ()
    engine = ran.engine()
    for below, column, read in (
        ("operators/sums/changelog", "v_total", lambda: engine.read_state("tiny", "sums", "total")),
        ("dead_letters", "error", lambda: engine.dead_letters("tiny")),
    ):
        flipped = Flipped(ran, below, column)
        with pytest.raises((PySparkException, Py4JJavaError), match="CRC checksum verification failed"):
            read().collect()
        flipped.back()
    Flipped(ran, "operators/sums/changelog")
    (problem,) = files_are_there(history).problems
    assert "is damaged: its footer is not the one that was written" in problem


@pytest.mark.parametrize("damage", [DamagedFileError, MissingFilesError])
def test_a_checkpoint_before_the_damage_leads_on(ran: Site, damage: type[MissingFilesError]) -> None:
    flipped = Flipped(ran, "operators/sums/changelog", "v_total")
    advice = "restore a checkpoint that does not need it"
    if damage is MissingFilesError:
        flipped.file.unlink()
        advice = "somebody deleted it. Restore an older checkpoint"
    job = ran.job(on_error="dead_letter")
    with pytest.raises(damage, match=advice):
        ran.engine().run(job)
    ran.engine().restore("tiny", checkpoint_id=1)
    ran.engine().run(job)
    assert ran.state() == {"a": 11, "b": 22, "c": 30}
    assert len(ran.outputs()) == 6
