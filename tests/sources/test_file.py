"""``FileSource`` through the engine: order, cuts, types, and input that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from state_engine import FileSource
from state_engine.core.errors import SourceError
from tests.sources.runs import SourceRun, write_ids


@pytest.fixture
def feed(tmp_path: Path) -> Path:
    directory = tmp_path / "feed"
    directory.mkdir()
    return directory


def test_new_files_between_runs_and_row_ranges_over_several_files(
    spark: SparkSession, tmp_path: Path, feed: Path
) -> None:
    write_ids(feed / "a b" / "ü 1.parquet", 0, 7)
    write_ids(feed / "a b" / "ü 2.parquet", 7, 7)
    write_ids(feed / "a b" / "ü 3.parquet", 14, 0)
    write_ids(feed / "c=1" / "x'(1)&+,;=@~!.parquet", 14, 7)
    source = FileSource(str(feed), max_rows_per_batch=5)
    run = SourceRun(spark, tmp_path, source, parallelism=2)
    assert [b.rows_in for b in run.run()] == [5, 5, 5, 5, 1]
    assert run.ids() == list(range(21))
    write_ids(feed / "0.parquet", 100, 3)
    assert [b.rows_in for b in run.run()] == [3]
    assert run.ids() == [*range(21), 100, 101, 102]
    assert run.run() == []


BAD: dict[str, tuple[str, list[str], str]] = {
    "csv": ("3,x\nfour,y\n5,z\n6\n", ["four,y", "6"], "row 1: column 'id': 'four': it is not a whole number"),
    "json": ('{"id": 3, "text": "x"}\n{"id": "four"}\n{oops\n{"id": 5, "text": "z"}\n', ['{"id": "four"}', "{oops"],
             "row 1: column 'id': 'four': it is not a number"),
}  # fmt: skip
"""Per format: a file with bad rows, their texts, and the text of the error about the first one."""


@pytest.mark.parametrize("form", ["csv", "json"])
def test_rows_that_cannot_be_parsed(spark: SparkSession, tmp_path: Path, feed: Path, form: Any) -> None:
    text, bad, shown = BAD[form]
    good = {"csv": "1,x\n2,y\n", "json": '{"id": 1, "text": "x"}\n{"id": 2, "text": "y"}\n'}[form]
    (feed / f"a.{form}").write_text(good)
    (feed / f"b.{form}").write_text(text)
    (feed / f"c.{form}").write_text(text)
    source = FileSource(str(feed), schema="id int, text string", format=form)
    run = SourceRun(spark, tmp_path, source)
    with pytest.raises(
        SourceError, match=rf"job 'numbered', source 'input'.*[bc]\.{form}: {shown}"
    ) as caught:
        run.run()
    assert "on_error='dead_letter'" in str(caught.value)
    assert run.heads() == 0
    assert not run.sink.exists() or run.rows() == []

    run.use(source, on_error="dead_letter", parallelism=2)
    (report,) = run.run()
    assert (report.rows_in, report.rows_refused) == (10, 4)
    assert run.ids() == [1, 2, 3, 5, 3, 5]
    letters = [(r["position"], r["row"]) for r in run.engine.dead_letters("numbered").collect()]
    named = [(n, row) for position, row in letters for n in "abc" if f"file://{feed}/{n}.{form}" in position]
    assert sorted(named) == [(n, row) for n in "bc" for row in sorted(bad)]
    assert len(letters) == 4
    assert run.run() == []


def test_a_schema_that_is_an_object_stays_as_it_is(spark: SparkSession, tmp_path: Path, feed: Path) -> None:
    schema = StructType().add("id", "integer").add("text", "string")
    source = FileSource(str(feed), schema=schema, format="csv", max_files_per_batch=1)
    for name in "ab":
        (feed / f"{name}.csv").write_text("1,x\n2,y\nthree,z\n")
    run = SourceRun(spark, tmp_path, source, on_error="dead_letter")
    assert [(r.rows_in, r.rows_refused) for r in run.run()] == [(3, 1), (3, 1)]
    assert run.ids() == [1, 2, 1, 2]
    assert schema == StructType().add("id", "integer").add("text", "string")


def test_an_option_of_the_session_skips_no_damaged_file(
    spark: SparkSession, tmp_path: Path, feed: Path
) -> None:
    (feed / "a.parquet").write_text("PAR1 not really PAR1")
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        run = SourceRun(spark, tmp_path, FileSource(str(feed), schema="id bigint"))
        with pytest.raises(SourceError, match=r"a\.parquet"):
            run.run()
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


def test_a_file_that_changes_during_the_batch_commits_nothing(
    spark: SparkSession, tmp_path: Path, feed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ids(feed / "a.parquet", 0, 3)
    run = SourceRun(spark, tmp_path, FileSource(str(feed)))
    confirm = FileSource.confirm

    def rewritten_before(self: FileSource, part: Any) -> None:
        write_ids(feed / "a.parquet", 0, 4)
        confirm(self, part)

    monkeypatch.setattr(FileSource, "confirm", rewritten_before)
    with pytest.raises(SourceError, match="while it was being read"):
        run.run()
    assert run.heads() == 0
    monkeypatch.undo()
    run.run()
    assert run.ids() == [0, 1, 2, 3]


def test_two_sources_of_which_one_starts_later(spark: SparkSession, tmp_path: Path, feed: Path) -> None:
    from state_engine import DeltaSink, StateEngine, StatefulJob

    for name in ("one", "two"):
        (feed / name).mkdir()
    job = StatefulJob("both")
    for name in ("one", "two"):
        stream = job.source(name, FileSource(str(feed / name), schema="id bigint"))
        stream.sink(f"out_{name}", DeltaSink(str(tmp_path / name)))
    write_ids(feed / "one" / "a.parquet", 0, 3)
    with StateEngine(tmp_path / "root", spark) as engine:
        assert [b.rows_in for b in engine.run(job).batches] == [3]
        write_ids(feed / "two" / "a.parquet", 0, 4)
        assert [b.rows_in for b in engine.run(job).batches] == [4]
