"""The guides on reading files and change feeds: their code runs, and the table of defaults is what we and Spark do."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from state_engine import StateEngine
from state_engine.spark.placement import USUAL
from tests.sources.test_text_files import Read, read
from tests.support.guides import GUIDES, blocks_of, code_blocks

GUIDE = GUIDES / "reading_files.md"
REFUSED: Any = "refused"


class Default(NamedTuple):
    """A line of the table.

    Attributes:
        content: of a file.
        format: of it.
        schema: declared.
        ours, spark: rows that come of it; REFUSED where ours has none.
        options: given to both.
        to_have: options that give what Spark gives; None where there are none.
    """

    content: str
    format: str
    schema: str
    ours: Any
    spark: list[tuple[Any, ...]]
    options: Mapping[str, str] = MappingProxyType({})
    to_have: Mapping[str, str] | None = None


HEADER = {"header": "true"}
DEFAULTS = {
    "CSV with `header`": Default(
        "b,a\n1,2\n", "csv", "a string, b string", [("2", "1")], [("1", "2")], HEADER, {"enforceSchema": "true"},
    ),
    "quotes in CSV": Default(
        '"27\\" x",1\n', "csv", "a string, b int", REFUSED, [('27" x', 1)], {}, {"escape": "\\"},
    ),
    "line ends in quotes": Default(
        '"a\nb"\n', "csv", "a string", [("a\nb",)], [("a",), ('b"',)],
    ),
    '`""` in CSV': Default('"",1\n', "csv", "a string, b int", [("", 1)], [(None, 1)], {}, {"nullValue": ""}),
    "`10.005` as `decimal(10,2)` in JSON": Default('{"k":10.005}\n', "json", "k decimal(10,2)", REFUSED, [("10.01",)]),
    "`1e400` as `double`": Default('{"k":1e400}\n', "json", "k double", REFUSED, [(float("inf"),)]),
    '`{"k":"a"}{"k":"b"}` in one line': Default(
        '{"k":"a"}{"k":"b"}\n', "json", "k string", [("a",), ("b",)], [("a",)],
    ),
    "a row that does not fit": Default("x\n", "csv", "a int", REFUSED, [(None,)]),
    "times without a zone": Default(
        "2024-01-05 10:00:00\n", "csv", "a timestamp", [("2024-01-05 10:00:00+00:00",)],
        [("2024-01-05 09:00:00+00:00",)], {}, {"timeZone": "Europe/Rome"},
    ),
}  # fmt: skip


def plain(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows whose decimals and times are texts."""
    return [tuple(v if isinstance(v, str | int | float | None) else str(v) for v in row) for row in rows]


@pytest.mark.parametrize("what", DEFAULTS)
def test_a_default_is_what_the_table_says(tmp_path: Path, spark: SparkSession, what: str) -> None:
    one = DEFAULTS[what]

    def ours(options: Mapping[str, str]) -> Read:
        return read(tmp_path, one.content, one.schema, format=one.format, options={**one.options, **options})

    given = ours({})
    assert (plain(given.rows) or REFUSED) == one.ours
    assert bool(given.refused) == (one.ours == REFUSED)
    spark.conf.set("spark.sql.session.timeZone", "Europe/Rome")
    try:
        theirs = spark.read.schema(one.schema).options(**one.options).format(one.format).load(str(tmp_path))
        assert plain([tuple(row.values()) for row in theirs.toArrow().to_pylist()]) == one.spark
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    if one.to_have is not None:
        assert plain(ours(one.to_have).rows) == one.spark


def test_the_table_has_these_lines() -> None:
    table = re.findall(r"^\| (.+?) \| .+? \| .+? \| (.+?) \| .+ \|$", GUIDE.read_text(), re.MULTILINE)
    assert [what for what, _ in table] == list(DEFAULTS)
    for what, way in table:
        for name, value in (DEFAULTS[what].to_have or {}).items():
            assert f'`{name}="{value.replace(chr(92), chr(92) * 2)}"`' == way


def test_the_bounds_are_those_of_the_source() -> None:
    text = GUIDE.read_text()
    assert f"up to {USUAL.batch_files:,} files, or {USUAL.batch_bytes // 2**30} GiB" in text
    assert f"with `max_rows_per_batch` {USUAL.cut_files:,} files" in text


def test_the_guide(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = [block.text for block in blocks_of(GUIDE) if block.language == "python"]
    names: dict[str, Any] = {"engine": StateEngine(tmp_path / "root", spark)}
    exec(code, names)
    (batch,) = names["report"].batches
    assert (batch.rows_in, batch.rows_refused) == (1, 0)
    (row,) = [row for f in Path("orders").rglob("*.parquet") for row in pq.ParquetFile(f).read().to_pylist()]
    assert ", ".join(str(row[name]) for name in ("id", "size", "city", "day")) in GUIDE.read_text()


CHANGE_FEEDS = GUIDES / "change_feeds.md"


def test_the_guide_on_change_feeds(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module: Any = ModuleType("change_feeds_guide")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    cloudpickle.register_pickle_by_value(module)
    table, debezium, columns, refused, snapshots = code_blocks(CHANGE_FEEDS, "python")
    accounts = pa.table({"id": [1, 2], "owner": ["ada", "ada"], "amount": [5, 3]})
    write_deltalake("accounts", accounts, configuration={"delta.enableChangeDataFeed": "true"})
    module.engine = StateEngine(tmp_path / "root", spark)
    exec(table, vars(module))
    assert shown_balances() == {("ada", 5), ("ada", 8)}
    DeltaTable("accounts").update(updates={"owner": "'bob'"}, predicate="id = 2")
    DeltaTable("accounts").delete("id = 1")
    module.engine.run(module.balances(module.DeltaSource("accounts", changes=True)))
    assert shown_balances() - {("ada", 5), ("ada", 8)} == {("bob", 3), ("ada", 0)}

    module.engine = StateEngine(tmp_path / "other root", spark)
    (tmp_path / "feeds").mkdir()
    monkeypatch.chdir(tmp_path / "feeds")
    exec(debezium, vars(module))
    assert shown_balances() == {("ada", 5), ("ada", 0), ("bob", 7)}
    exec(columns, vars(module))
    assert module.format.sequence == "lsn"
    exec(refused, vars(module))
    assert module.letter.error.startswith(
        "SourceError: a truncate (op 't') deletes rows without saying which: "
    )
    exec(snapshots, vars(module))
    versions = [
        (row["id"], row["city"], row["valid_from"].day, row["is_current"])
        for row in pl.read_delta("customers").rows(named=True)
    ]
    current, ended = (
        {(1, "Bari", 2, True), (3, "Pisa", 2, True)},
        {(1, "Turin", 1, False), (2, "Rome", 1, False)},
    )
    assert set(versions) == current | ended


def shown_balances() -> set[tuple[str, int]]:
    return {tuple(r.values()) for r in DeltaTable("balances").to_pyarrow_table().to_pylist()}
