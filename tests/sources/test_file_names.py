"""Names of files: whatever they hold, the file is read, or it alone is refused with "rename"."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine.core.errors import BadFileError
from state_engine.sources.file import FileSource
from tests.sources.runs import SourceRun

NAMES = [
    "a b", "a%20b", "a%b", "a%2Fb", "a#b", "x#schema", "a?b", "a*b", "a[1]b", "a{1,2}b", "a\\b", "a\nb", "a\tb", "ü",
    "a+b", "a&b=c", "'a\"", ";a", "a,b", "x" * 240, "~a", "$a", "a|b^`", "😀", "a\x7fb", "e\u0301", " a", "a. b", "-a",
    "a=b", "a\ufffdb",
]  # fmt: skip
FORMATS: dict[str, dict[str, Any]] = {
    "parquet": {},
    "parquet by spark": {"options": {"mergeSchema": "false"}},
    "csv": {"format": "csv"},
    "json": {"format": "json"},
}


def write(path: bytes | Path, number: int, form: str) -> None:
    directory = os.path.dirname(os.fsencode(path))
    os.makedirs(directory, exist_ok=True)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [number]}), sink)
    content = {
        "parquet": sink.getvalue().to_pybytes(),
        "csv": b"%d\n" % number,
        "json": json.dumps({"id": number}).encode(),
    }
    Path(os.fsdecode(path)).write_bytes(content[form.split()[0]])


@pytest.mark.parametrize("form", FORMATS)
def test_files_are_read_whatever_their_names(tmp_path: Path, spark: SparkSession, form: str) -> None:
    feed = tmp_path / "feed"
    for number, name in enumerate(NAMES):
        write(feed / name, 2 * number, form)
        if not name.startswith("x" * 240):
            write(feed / f"in {name}" / "f", 2 * number + 1, form)
    run = SourceRun(
        spark, tmp_path, FileSource(str(feed), schema="id bigint", max_files_per_batch=40, **FORMATS[form])
    )
    run.run()
    expected = {2 * n for n in range(len(NAMES))} | {
        2 * n + 1 for n, name in enumerate(NAMES) if name != "x" * 240
    }
    assert sorted(run.ids()) == sorted(expected)
    assert run.run() == []


UNREAD = [b"a\xff.f", b"d\xfe/b.f", b"\xc3.f"]


@pytest.mark.parametrize("form", FORMATS)
def test_a_name_that_no_uri_can_hold_is_one_letter_that_says_rename(
    tmp_path: Path, spark: SparkSession, form: str
) -> None:
    feed = tmp_path / "feed"
    write(feed / "a", 1, form)
    for name in UNREAD:
        write(os.fsencode(feed) + b"/" + name, 2, form)
    options = {"schema": "id bigint", **FORMATS[form]}
    run = SourceRun(spark, tmp_path, FileSource(str(feed), **options), on_error="dead_letter")
    with pytest.raises(BadFileError, match="rename the file or its directory"):
        run.run()
    run.use(FileSource(str(feed), on_bad_file="dead_letter", **options), on_error="dead_letter")
    run.run()
    assert run.ids() == [1]
    letters = run.engine.list_dead_letters(run.job)
    assert sorted(str(one.row) for one in letters) == sorted(
        f"file://{feed}/{name.decode(errors='backslashreplace')}" for name in UNREAD
    )
    assert run.run() == []
    write(feed / "b", 3, form)
    run.run()
    assert run.ids() == [1, 3]


@pytest.mark.parametrize("form", FORMATS)
def test_a_colon_is_read_or_one_letter(tmp_path: Path, spark: SparkSession, form: str) -> None:
    """Hadoop's local file system opens no such file; Arrow does."""
    feed = tmp_path / "feed"
    write(feed / "a", 1, form)
    write(feed / "b:c", 2, form)
    options = {"schema": "id bigint", **FORMATS[form]}
    run = SourceRun(spark, tmp_path, FileSource(str(feed), **options))
    if form != "parquet by spark":
        run.run()
        assert run.ids() == [1, 2]
        return
    with pytest.raises(BadFileError, match=r"b:c: .*Rename the file") as refused:
        run.run()
    assert "Repair or remove" not in str(refused.value)
    run.use(FileSource(str(feed), on_bad_file="dead_letter", **options))
    run.run()
    assert run.ids() == [1]
    (letter,) = run.engine.list_dead_letters(run.job)
    assert letter.row == f"file://{feed}/b:c"
