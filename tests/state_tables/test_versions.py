"""``scd2`` and ``top_n`` of keyed streams, shown by tables through the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import ChangeFormat, DeltaStateTable, FileSource, Row, RowKind, StateEngine, StatefulJob
from state_engine.core.errors import ConfigurationError

pytestmark = pytest.mark.spark

ROWS = [(1, "Turin", 10), (2, "Rome", 10), (1, "Bari", 30), (1, "Pisa", 20)]


def shown(path: Path, columns: list[str]) -> list[tuple[Any, ...]]:
    return sorted(pl.read_delta(str(path)).select(columns).rows())


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "files"])
def test_versions_follow_the_head(tmp_path: Path, spark: SparkSession, declared: bool) -> None:
    engine = StateEngine(tmp_path / "root", spark=spark)
    (tmp_path / "feed").mkdir()
    for at, row in enumerate(ROWS):
        pq.write_table(
            pa.table({name: [value] for name, value in zip(("id", "city", "moved"), row, strict=True)}),
            tmp_path / "feed" / f"{at}.parquet",
        )

    def job() -> StatefulJob:
        made = StatefulJob("homes", parallelism=2)
        if declared:
            columns = "id bigint, city string, moved bigint"
            rows = made.from_collection(ROWS, columns, name="rows", max_rows_per_batch=1)
        else:
            rows = made.source("rows", FileSource(str(tmp_path / "feed"), max_files_per_batch=1))
        versions = rows.key_by("id").scd2(valid_from="moved", uid="homes")
        versions.publish_state("versions", DeltaStateTable(str(tmp_path / "homes")), map_key="valid_from")
        return made

    columns = ["id", "valid_from", "valid_to", "is_current", "city"]
    engine.run(job(), max_batches=3)
    assert shown(tmp_path / "homes", columns) == [
        (1, 10, 30, False, "Turin"),
        (1, 30, None, True, "Bari"),
        (2, 10, None, True, "Rome"),
    ]
    engine.run(job())
    corrected = [
        (1, 10, 20, False, "Turin"),
        (1, 20, 30, False, "Pisa"),
        (1, 30, None, True, "Bari"),
        (2, 10, None, True, "Rome"),
    ]
    assert shown(tmp_path / "homes", columns) == corrected
    engine.restore("homes", checkpoint_id=2)
    assert shown(tmp_path / "homes", columns) == [(1, 10, None, True, "Turin"), (2, 10, None, True, "Rome")]
    engine.run(job())
    assert shown(tmp_path / "homes", columns) == corrected


@pytest.mark.parametrize("at_once", [1, 4], ids=["one by one", "at once"])
def test_a_feed_out_of_order_gives_one_history(tmp_path: Path, spark: SparkSession, at_once: int) -> None:
    (tmp_path / "feed").mkdir()
    changes = [("c", 1, "A", 0, 1), ("u", 1, "C", 10, 3), ("u", 1, "B", 10, 2), ("d", 1, "B", 10, 2)]
    for at, row in enumerate(changes):
        named = zip(("op", "id", "city", "moved", "lsn"), row, strict=True)
        pq.write_table(
            pa.table({name: [value] for name, value in named}), tmp_path / "feed" / f"{at}.parquet"
        )
    job = StatefulJob("homes", parallelism=2)
    feed = job.source(
        "feed",
        FileSource(str(tmp_path / "feed"), max_files_per_batch=at_once),
        format=ChangeFormat.columns(op="op", insert=["c"], update=["u"], delete=["d"], sequence="lsn"),
    )
    versions = feed.key_by("id").scd2(valid_from="moved", uid="homes")
    versions.publish_state("versions", DeltaStateTable(str(tmp_path / "homes")), map_key="valid_from")
    StateEngine(tmp_path / "root", spark=spark).run(job)
    columns = ["id", "valid_from", "valid_to", "is_current", "city"]
    assert shown(tmp_path / "homes", columns) == [(1, 0, 10, False, "A"), (1, 10, None, True, "C")]


@pytest.mark.parametrize("changing", [False, True], ids=["inserts", "changes"])
def test_a_top_list_follows_the_head(tmp_path: Path, spark: SparkSession, changing: bool) -> None:
    engine = StateEngine(tmp_path / "root", spark=spark)
    rows = [
        Row(game="go", player=player, points=points)
        for player, points in (("ada", 3), ("eva", 5), ("kim", 4))
    ]
    if changing:
        rows.append(Row.of_kind(RowKind.DELETE, game="go", player="eva", points=5))
    job = StatefulJob("games")
    scores = job.from_collection(
        rows,
        "game string, player string, points bigint",
        name="scores",
        changing=changing,
        max_rows_per_batch=3,
    )
    best = scores.key_by("game").top_n(2, by="points", uid="best")
    best.publish(DeltaStateTable(str(tmp_path / "best")))
    engine.run(job)
    left = [("go", 1, "kim"), ("go", 2, "ada")] if changing else [("go", 1, "eva"), ("go", 2, "kim")]
    assert shown(tmp_path / "best", ["game", "rank", "player"]) == left


def test_what_does_not_fit_is_refused_where_it_is_written() -> None:
    rows = StatefulJob("homes").from_collection(ROWS, "id bigint, city string, moved bigint").key_by("id")
    with pytest.raises(ConfigurationError, match=r"Scd2: there is no column \['since'\]"):
        rows.scd2(valid_from="since", uid="homes")
    with pytest.raises(ConfigurationError, match="TopN keeps at least one row"):
        rows.top_n(0, by="moved", uid="best")
    numbers = StatefulJob("numbers").from_collection([1, 2], int, name="n")
    with pytest.raises(ConfigurationError, match=r"scd2 needs rows with named columns"):
        numbers.key_by(lambda n: n, key_type=int).scd2(valid_from="n", uid="versions")
