"""Text files that tasks read: the rows, the order and the letters that the driver gives, wherever they are cut."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from state_engine import FileSource
from state_engine.core.errors import BadFileError, SourceError
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, SourceFrame
from state_engine.sources.rows import TaskRows
from state_engine.sources.text.text_files import text_chunks
from tests.sources.runs import SourceRun
from tests.support.limits import SetLimits

SCHEMA = "id bigint, text string"


def lines_of(form: str, number: int, *, seed: int) -> list[str]:
    """Records of one to three lines, some of which do not fit."""
    chance = random.Random(seed)
    lines = []
    for i in range(number):
        text, bad = chance.choice(["", "é" * chance.randrange(9), "a,b", "x"]), chance.random() < 0.1
        value = "no" if bad else str(i)
        if form == "json":
            lines.append(f'{{"id":{value!r:s},"text":"{text}"}}'.replace("'", '"' if bad else ""))
        else:
            lines.append(f'{value},"{text}{chance.choice(["", chr(10), chr(34) * 2, chr(13) + chr(10)])}"')
    return lines


def given(spark: SparkSession, source: FileSource) -> tuple[type, list[Any], list[Any]]:
    """Who reads; rows in their order, and letters."""
    part = source.plan(spark, [])
    assert part is not None
    frame: SourceFrame = source.read(spark, part, keep_refused=True)
    rows, refused = frame.rows, frame.refused
    if isinstance(rows, TaskRows):
        batches = [batch for task in range(rows.tasks) for batch in rows.read(task, rows.schema.names)]
        rows = pa.Table.from_batches(batches, rows.schema)
    if isinstance(refused, DataFrame):
        refused = refused.toArrow()
    assert isinstance(rows, pa.Table)
    ordered = [(FILE_COLUMN, "ascending"), (ROW_COLUMN, "ascending")]
    values = rows.sort_by(ordered).select(["id", "text", FILE_COLUMN]).to_pylist()
    letters = (
        refused.sort_by(ordered).select(["record", FILE_COLUMN, "reason"]).to_pylist() if refused else []
    )
    return type(frame.rows), values, letters


@pytest.mark.parametrize("options", [{}, {"multiLine": "false"}], ids=["default", "lines"])
@pytest.mark.parametrize("form", ["csv", "json"])
def test_tasks_read_what_the_driver_reads(
    tmp_path: Path, spark: SparkSession, limits: SetLimits, form: Any, options: dict[str, str]
) -> None:
    for number in range(5):
        (tmp_path / f"{number}.{form}").write_text("\n".join(lines_of(form, number * 40 + 1, seed=number)))
    source = FileSource(str(tmp_path), schema=SCHEMA, format=form, options=options)
    who, rows, letters = given(spark, source)
    assert (who, len(rows) > 100, len(letters) > 10) == (pa.Table, True, True)
    for least in (2**22, 64):
        limits(stored_bytes=0, least_task_bytes=least)
        assert given(spark, source) == (TaskRows, rows, letters)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("form", ["csv", "json"])
def test_chunks_do_not_matter(
    tmp_path: Path, spark: SparkSession, limits: SetLimits, form: Any, chunk: int
) -> None:
    (tmp_path / f"x.{form}").write_text("\ufeff" + "\r\n".join(lines_of(form, 60, seed=7)))
    source = FileSource(str(tmp_path), schema=SCHEMA, format=form)
    whole = given(spark, source)
    limits(chunk_bytes=chunk)
    assert given(spark, source) == whole


@pytest.mark.parametrize("content", [b"", b"\n", b"a", b"a\nbb\n\nccc", b"a\nbb\n\nccc\n", b"\n\n\n"])
def test_ranges_of_bytes_have_every_line_once(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x"
    file.write_bytes(content)
    for chunk in (1, 2, 100):
        for size in range(1, len(content) + 2):
            parts = [
                "".join(text_chunks(f"file://{file}", "utf-8", start=at, end=at + size, at_once=chunk))
                for at in range(0, max(len(content), 1), size)
            ]
            assert "".join(parts).encode() == content
            assert all(
                part.endswith("\n") for part in parts[:-1] if part and not content.endswith(part.encode())
            )


def test_a_job_over_tasks(spark: SparkSession, tmp_path: Path, limits: SetLimits) -> None:
    """Fails with file, row, column and value; and sets aside rows, and a file."""
    limits(stored_bytes=0)
    feed = tmp_path / "feed"
    feed.mkdir()
    (feed / "a.csv").write_text("text,id\nx,1\ny,two\n")
    (feed / "b.csv").write_text("id,text\n3,z\n")
    options = {"header": "true"}
    run = SourceRun(spark, tmp_path, FileSource(str(feed), schema=SCHEMA, format="csv", options=options))
    with pytest.raises(SourceError, match=r"job 'numbered', source 'input'.*a\.csv: row 1: column") as error:
        run.run()
    assert "on_error='dead_letter'" in str(error.value)
    (feed / "c.csv").write_text("what,ever\n3,z\n")
    source = FileSource(str(feed), schema=SCHEMA, format="csv", options=options)
    run.use(source, on_error="dead_letter")
    with pytest.raises(BadFileError, match=r"c\.csv: its header \['what', 'ever'\] names none") as bad:
        run.run()
    assert bad.value.uri == f"file://{feed}/c.csv"
    source = FileSource(str(feed), schema=SCHEMA, format="csv", options=options, on_bad_file="dead_letter")
    run.use(source, on_error="dead_letter")
    (batch,) = run.run()
    assert (batch.rows_in, batch.rows_refused) == (3, 2)
    assert run.rows() == [{"id": 1, "text": "x"}, {"id": 3, "text": "z"}]
    letters = run.engine.list_dead_letters(run.job)
    assert sorted(one.row or "" for one in letters) == [f"file://{feed}/c.csv", "y,two"]

    run.use(
        FileSource(str(feed), schema="id string, text string", format="csv", options=options), on_error="fail"
    )
