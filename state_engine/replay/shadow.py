"""Shadow runs: a job beside the one that it is to replace, on the same input and into sinks of its own, compared.

Begin the new job with the old one's state (``bootstrap``, ``bootstrap_from_spark``), run both, compare what they put
out, and switch when nothing differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from state_engine.core.errors import ConfigurationError
from state_engine.replay.comparison import COUNT
from state_engine.sources.frames import quoted


@dataclass(frozen=True)
class OutputComparison:
    """What two outputs have not in common, as multisets of rows.

    Attributes:
        only_old, only_new: rows that are there more often on the one side, and in COUNT how much more often.
        rows_only_old, rows_only_new: sums of those.
        keys_differing: number of keys with any such row.
    """

    only_old: DataFrame
    only_new: DataFrame
    rows_only_old: int
    rows_only_new: int
    keys_differing: int

    @property
    def is_equal(self) -> bool:
        """Whether both sides have the same rows, each as often."""
        return not (self.rows_only_old or self.rows_only_new)


def compare_outputs(old: DataFrame, new: DataFrame, keys: Sequence[str]) -> OutputComparison:
    """Compare two outputs row by row; the order of rows is no matter.

    Args:
        old, new: with the same columns.
        keys: columns that tell what a row is about, for the count of keys that differ.

    Raises:
        ConfigurationError: the columns are not the same, or a key is none of them.
    """
    columns = old.columns
    if sorted(columns) != sorted(new.columns):
        raise ConfigurationError(f"the outputs have other columns: {columns} (old) and {new.columns} (new)")
    missing = [k for k in keys if k not in columns]
    if missing or not keys:
        raise ConfigurationError(f"keys must be some of the columns {columns}, not {list(keys)}")
    names = [F.col(quoted(c)) for c in columns]
    sides = [frame.select(*names, F.lit(n).cast("bigint").alias(COUNT)) for frame, n in ((old, 1), (new, -1))]
    counted = (
        sides[0].unionByName(sides[1]).groupBy(*names).agg(F.sum(COUNT).alias(COUNT)).where(F.col(COUNT) != 0)
    )
    more, less = F.greatest(F.col(COUNT), F.lit(0)), F.greatest(-F.col(COUNT), F.lit(0))
    found = counted.agg(
        F.sum(more).alias("old"),
        F.sum(less).alias("new"),
        F.count_distinct(F.struct(*[F.col(quoted(k)) for k in keys])).alias("keys"),
    ).collect()[0]
    return OutputComparison(
        counted.where(F.col(COUNT) > 0),
        counted.where(F.col(COUNT) < 0).withColumn(COUNT, -F.col(COUNT)),
        found["old"] or 0,
        found["new"] or 0,
        found["keys"],
    )
