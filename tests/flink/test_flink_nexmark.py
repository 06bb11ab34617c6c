"""Queries of Nexmark as Flink SQL give what polars gives, and so what ours give."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.nexmark import on_flink
from benchmarks.nexmark.events import write
from benchmarks.nexmark.expected import EXPECTED, frames
from benchmarks.nexmark.measure import compare

pytestmark = [pytest.mark.flink, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("nexmark")
    write(directory, 6_000, files=1, per_second=200)
    return directory


@pytest.mark.parametrize("query", on_flink.COLUMNS)
def test_a_query_of_flink_gives_what_polars_gives(query: str, events: Path) -> None:
    assert compare(query, on_flink.results(query, events), EXPECTED[query](frames(events)))
