"""Some of the queries as Flink SQL, where its environment ``.venv-flink`` is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.contenders.flink import parquet_jars, printed_by

_PROGRAM = Path(__file__).with_name("flink_program.py")
_TIME = pl.Datetime("us", "UTC")
_BID = {"auction": pl.Int64, "bidder": pl.Int64, "price": pl.Int64}
COLUMNS: dict[str, dict[str, pl.DataType | type[pl.DataType]]] = {
    "q5": {"auction": pl.Int64, "n": pl.Int64, "starts": _TIME, "ends": _TIME},
    "q7": {"auction": pl.Int64, "price": pl.Int64, "bidder": pl.Int64, "at": _TIME, "extra": pl.String},
    "q8": {"id": pl.Int64, "name": pl.String, "window_start": _TIME},
    "q11": {"bidder": pl.Int64, "window_start": _TIME, "window_end": _TIME, "n": pl.Int64},
    "q18": {**_BID, "channel": pl.String, "url": pl.String, "at": _TIME, "extra": pl.String},
    "q19": {"auction": pl.Int64, "rank": pl.Int64, "bidder": pl.Int64, "price": pl.Int64, "at": _TIME},
}
"""What the queries give, by query."""
CHANGES = ("q18", "q19")
"""Those whose results change."""


def run(query: str, directory: Path, *, parallelism: int = 2) -> float:
    """Seconds of one query over all files, from the first of its SQL to the last file.

    Raises:
        FlinkError: the program failed, or took longer than a quarter of an hour.
    """
    return float(_printed(query, "time", directory, parallelism)["seconds"])


def results(query: str, directory: Path) -> pl.DataFrame:
    """The table that a query leads to, its rows read in their order; raises FlinkError as ``run`` does."""
    rows, columns = _printed(query, "results", directory, 1)["rows"], COLUMNS[query]
    times = [name for name, kind in columns.items() if kind == _TIME]
    text = {name: pl.String if name in times else kind for name, kind in columns.items()}
    return pl.DataFrame(rows, schema=text, orient="row").with_columns(
        pl.col(times).str.to_datetime(time_unit="us", time_zone="UTC")
    )


def written(query: str, directory: Path) -> pl.DataFrame | None:
    """What ``run`` wrote; None for a query that changes its results, because files take inserts only."""
    if query in CHANGES:
        return None
    rows = pl.read_parquet(sorted((directory / f"{query}-flink").rglob("part-*")))
    times = [name for name, kind in COLUMNS[query].items() if kind == _TIME]
    return rows.rename(dict(zip(rows.columns, COLUMNS[query], strict=True))).with_columns(
        pl.col(times).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    )


def _printed(query: str, what: str, directory: Path, parallelism: int) -> dict[str, Any]:
    arguments = [query, what, str(parallelism), str(directory), parquet_jars()]
    return printed_by(_PROGRAM, arguments, title=f"Nexmark's {query} on Flink")
