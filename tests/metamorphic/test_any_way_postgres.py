"""However a job is run, PostgreSQL ends with the same tables; see ``test_any_way``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.metamorphic.jobs import CASES, SERVER
from tests.metamorphic.sessions import switches
from tests.metamorphic.variations import check_any_way, plain_run, rows_of
from tests.support.postgres import PASSWORD_ENV, Server

pytestmark = [pytest.mark.spark, pytest.mark.spark_tasks]

MORE = [("changed table", 2), ("aggregates", 1)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server.started() as started:
        yield started


@pytest.mark.parametrize(
    ("name", "seed"),
    [("hours", 1), ("history", 3), *(pytest.param(*way, marks=pytest.mark.long) for way in MORE)],
)
def test_any_way_gives_the_same_in_postgres(
    name: str, seed: int, tmp_path: Path, spark: SparkSession, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_ENV, server.password)
    plain, varied = tmp_path / "plain", tmp_path / "varied"
    for directory in (plain, varied):
        directory.mkdir()
        (directory / SERVER).write_text(server.new_database())
    case, turned = CASES[name], switches(spark.newSession())
    rows = rows_of(case, seed)
    expected = plain_run(case, rows, plain, spark)
    check_any_way(case, seed, turned, rows, varied, spark, expected)
