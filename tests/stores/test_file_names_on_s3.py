"""Names of objects: whatever they hold, the object is read, or it alone is refused with "rename"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import FileSource
from state_engine.core.errors import BadFileError
from state_engine.storage.stores.files import open_location
from tests.sources.runs import SourceRun
from tests.support.store_proxy import StoreProxy

pytestmark = [pytest.mark.spark_tasks, pytest.mark.usefixtures("quick_race")]

READ = ["a:b", "a b", " a", "a+b", "ü", "😀", "a=b", "a&b", "a;b", "a,b", "'a'", 'a"b', "a(b)", "a[1]", "a*b", "a{1}",
        "~a", "@a", "$a", "a|b", "a^b", "a\\b", "a. b"]  # fmt: skip
UNREAD = ["a%20b", "a%b", "a#b", "a?b", "a%2Fb"]
FORMATS: dict[str, dict[str, Any]] = {
    "parquet": {},
    "parquet by spark": {"options": {"mergeSchema": "false"}},
    "json": {"format": "json"},
}


def write(uri: str, names: list[str], form: str) -> None:
    """An object for each name, its number in it; and one below a directory of the name."""
    location = open_location(uri)
    for number, name in enumerate(names):
        for path, at in ((name, 2 * number), (f"in {name}/f", 2 * number + 1)):
            sink = pa.BufferOutputStream()
            pq.write_table(pa.table({"id": [at]}), sink)
            content = b'{"id": %d}' % at if form == "json" else sink.getvalue().to_pybytes()
            with location.fs.open_output_stream(f"{location.path}/{path}") as stream:
                stream.write(content)


@pytest.mark.parametrize("form", FORMATS)
def test_objects_are_read_whatever_their_names(
    tmp_path: Path, spark: SparkSession, store: StoreProxy, uri: str, form: str
) -> None:
    write(f"{uri}/feed", READ, form)
    run = SourceRun(spark, tmp_path, FileSource(f"{uri}/feed", schema="id bigint", **FORMATS[form]))
    run.run()
    assert sorted(run.ids()) == list(range(2 * len(READ)))
    assert run.run() == []


@pytest.mark.parametrize("form", FORMATS)
def test_a_name_that_no_uri_can_hold_is_one_letter_that_says_rename(
    tmp_path: Path, spark: SparkSession, store: StoreProxy, uri: str, form: str
) -> None:
    feed, options = f"{uri}/feed", {"schema": "id bigint", **FORMATS[form]}
    write(feed, UNREAD, form)
    run = SourceRun(spark, tmp_path, FileSource(feed, **options))
    with pytest.raises(BadFileError, match="rename the file or its directory"):
        run.run()
    write(f"{feed}/more", ["b"], form)
    run.use(FileSource(feed, on_bad_file="dead_letter", **options))
    run.run()
    assert sorted(run.ids()) == [0, 1]
    letters = run.engine.list_dead_letters(run.job)
    assert sorted(str(one.row) for one in letters) == sorted(
        f"{feed}/{path}" for name in UNREAD for path in (name, f"in {name}/f")
    )
    assert all("rename the file" in one.error for one in letters)
    assert run.run() == []
