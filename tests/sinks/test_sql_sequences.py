"""A keyed ``SqlSink`` with the sequence of its feed, on real databases: changes come in any order, and again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import ChangeFormat, FileSource, SqlSink, StateEngine, StatefulJob
from tests.sinks.databases import Database

pytestmark = pytest.mark.spark


def change(number: int, op: str, before: Any, after: Any) -> dict[str, Any]:
    """A change of PostgreSQL and MySQL at once; the files of the log get another digit, and positions begin anew."""
    source = {"lsn": number, "file": f"bin.{99 + number // 3}", "pos": 98 + number % 3, "row": 0}
    images = [one and {"id": one[0], "name": one[1]} for one in (before, after)]
    return {"op": op, "before": images[0], "after": images[1], "source": source}


CHANGES = [
    change(1, "c", None, (1, "a")),
    change(2, "u", (1, "a"), (1, "b")),
    change(3, "c", None, (2, "c")),
    change(4, "u", (1, "b"), (1, "d")),
    change(5, "d", (2, "c"), None),
    change(6, "u", (1, "d"), (3, "d")),
]
ROW, PLACE = "struct<id: bigint, name: string>", "struct<lsn: bigint, file: string, pos: bigint, row: int>"
ENVELOPES = f"before {ROW}, after {ROW}, op string, source {PLACE}"
SEQUENCES: dict[str, tuple[Any, str]] = {
    "postgresql": ("source.lsn", "lsn"),
    "mysql": (["source.file", "source.pos", "source.row"], "file_pos_row"),
}


@pytest.mark.parametrize("feed", SEQUENCES)
def test_a_table_of_a_database_ends_at_that_of_the_feed(
    spark: SparkSession, tmp_path: Path, db: Database, feed: str
) -> None:
    sequence, column = SEQUENCES[feed]
    (tmp_path / "feed").mkdir()

    def job() -> StatefulJob:
        source = FileSource(str(tmp_path / "feed"), schema=ENVELOPES, format="json")
        job = StatefulJob("latest", parallelism=2)
        stream = job.source("feed", source, format=ChangeFormat.debezium(sequence=sequence))
        stream.sink("latest", SqlSink(db.url, "latest", key=["id"], password_env=db.password_env))
        return job

    def shown() -> list[tuple[Any, ...]]:
        return db.rows("SELECT id, name FROM latest ORDER BY id")

    expected = [
        ([6, 2], [(3, "d")]),  # the update of 6 takes 1 away, however late 2 comes
        ([1, 4, 3], [(2, "c"), (3, "d")]),
        ([5, 2, 6], [(3, "d")]),
        ([3, 5, 1], [(3, "d")]),
    ]
    with StateEngine(tmp_path / "root", spark) as engine:
        for number, (came, rows) in enumerate(expected):
            text = "\n".join(json.dumps(CHANGES[at - 1]) for at in came)
            (tmp_path / "feed" / f"{number}.json").write_text(text)
            engine.run(job())
            assert shown() == rows, came
    last = "6" if feed == "postgresql" else ".".join(f"{n:020}" for n in (101, 98, 0))
    assert [str(row[0]) for row in db.rows(f"SELECT {column} FROM latest")] == [last]
