"""What other programs wrote is read as they wrote it: no value differs.

The oracle is what was put into the writing program. What it wrote and fits the declared schema comes out equal, once.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.sources.other_values import BINARY, FLAT, NESTED, Kind, Rows, comparable, drawn_kinds, drawn_rows
from tests.sources.other_writers import Writer, writers
from tests.sources.reading import Reading, read
from tests.support.limits import limits_of_session

pytestmark = pytest.mark.spark
FILES, ROWS = 8, 5
WAYS = ("the driver", "tasks", "Spark")
"""Who reads the files: few are read by the driver, and Parquet by Spark where options are given."""


def kept(rng: Random, kind: Kind, writer: Writer) -> Any:
    """A value that the program keeps; null where it keeps none of the kind that is drawn soon."""
    drawn = (kind.draw(rng) for _ in range(50))
    return next((value for value in drawn if writer.holds(kind.ddl, value)), None)


def files(rng: Random, writer: Writer, directory: Path, spark: SparkSession) -> Rows:
    """Files of one schema; returns the rows of all."""
    kinds: tuple[Kind, ...] = FLAT + (NESTED if writer.nested else ())
    if writer.format == "parquet":
        kinds += (BINARY,)
    columns = drawn_kinds(rng, kinds, rng.randrange(1, 6))
    (directory / "in").mkdir(parents=True)
    everything = Rows(columns, [])
    for number in range(FILES):
        rows = drawn_rows(rng, columns, number * ROWS, ROWS, nulls=writer.nulls)
        for row in rows.rows:
            for name, kind in list(columns.items())[1:]:
                if row[name] is not None and not writer.holds(kind.ddl, row[name]):
                    row[name] = kept(rng, kind, writer)
        writer.write(rows, directory / "in" / f"{number}.{writer.format}", spark)
        everything.rows.extend(rows.rows)
    return everything


def differences(rows: Rows, reading: Reading) -> list[str]:
    """Rows that came out otherwise than they were put in, twice, or not at all."""
    wrong = []
    came = {row["id"]: row for row in reading.rows}
    if len(came) < len(reading.rows):
        wrong.append("rows came twice")
    for row in rows.rows:
        got = came.get(row["id"])
        if got is None or comparable(got) != comparable({name: row[name] for name in got}):
            wrong.append(f"put in {row}, came out {got}")
    return wrong


NAMES = [name for name in writers() if name != "jq" or shutil.which("jq")]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(1, 10), marks=pytest.mark.long)], ids=["once", "more"]
)
def test_what_other_programs_wrote_is_read_as_they_wrote_it(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str, seeds: range
) -> None:
    writer = writers()[name]
    wrong: list[str] = []
    for seed in seeds:
        directory, way = tmp_path / str(seed), WAYS[seed % len(WAYS)]
        rows = files(Random(f"{name} {seed}"), writer, directory, spark)
        options = (
            {"mergeSchema": "false"} if way == "Spark" and writer.format == "parquet" else writer.options
        )
        with limits_of_session(spark) as set_limits:
            if way == "tasks":
                set_limits(stored_bytes=-1)
            reading = read(spark, directory, rows.ddl, format=writer.format, options=options)
        wrong += differences(rows, reading)
        wrong += [f"refused {text}: {error}" for text, error in reading.letters]
    assert not wrong, "\n".join(wrong)
