"""polars in this process: state is a data frame in memory, and a Parquet file after each batch.

No checkpoint, no transaction, no second process: what a batch costs where nothing has to be safe but one file.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import polars as pl
from pyspark.sql import SparkSession

from benchmarks.contenders.contender import Contender, Taken
from benchmarks.workload import WINDOW, Results

OPEN = {"k": pl.Int64, "count": pl.Int64, "total": pl.Float64}
"""Columns of the open windows."""


class PolarsFrames(Contender):
    """polars; see the module docstring.

    Args:
        spark: not used.
        directory: for outputs, a file a batch, and the state.
    """

    name = "polars"

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        del spark
        self._directory, self._windows, self._batches = directory, pl.DataFrame(schema=OPEN), 0
        directory.mkdir(parents=True)

    def run(self, batch: Path) -> Taken:
        started = time.perf_counter()
        outputs, self._windows = count_windows(pl.read_parquet(sorted(batch.iterdir())), self._windows)
        self._batches += 1
        outputs.write_parquet(self._directory / f"outputs-{self._batches:04d}.parquet")
        self._windows.write_parquet(self._directory / "windows.new")
        (self._directory / "windows.new").replace(self._directory / "windows.parquet")
        return Taken(time.perf_counter() - started)

    def results(self) -> Results:
        outputs = pl.read_parquet(self._directory / "outputs-*.parquet")
        windows = pl.read_parquet(self._directory / "windows.parquet")
        return Results(
            Counter(outputs.iter_rows()), {k: (count, total) for k, count, total in windows.iter_rows()}
        )


def count_windows(events: pl.DataFrame, windows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Averages of windows that became full, and the open windows afterwards.

    Args:
        events: k and v, in order.
        windows: k, count and total of the open windows before.

    Example:
        >>> events = pl.DataFrame({"k": [1, 1, 2], "v": [4.0, 6.0, 1.0]})
        >>> outputs, windows = count_windows(events, pl.DataFrame({"k": [1], "count": [2], "total": [5.0]}))
        >>> outputs.rows(), sorted(windows.rows())
        ([(1, 3.0)], [(1, 1, 6.0), (2, 1, 1.0)])
    """
    placed = events.join(windows, on="k", how="left", maintain_order="left").with_columns(
        pl.col("count").fill_null(0), pl.col("total").fill_null(0)
    )
    window = (pl.int_range(pl.len()).over("k") + pl.col("count")) // WINDOW
    goes_on = pl.col("window") == 0
    pieces = (
        placed.with_columns(window=window)
        .group_by("k", "window")
        .agg(
            n=pl.len().cast(pl.Int64), sum=pl.col("v").sum(), count=pl.first("count"), total=pl.first("total")
        )
        .with_columns(
            count=pl.col("n") + pl.when(goes_on).then("count").otherwise(0),
            total=pl.col("sum") + pl.when(goes_on).then("total").otherwise(0),
        )
    )
    full = pl.col("count") == WINDOW
    outputs = pieces.filter(full).select(
        "k", a=pl.col("total") / pl.col("count")
    )  # by a constant, polars multiplies with its inverse
    touched = pieces.filter(~full).select(*OPEN)
    untouched = windows.join(events, on="k", how="anti")
    return outputs, pl.concat([untouched, touched])
