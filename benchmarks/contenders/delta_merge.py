"""A job as it is written by hand for Spark and Delta: aggregate the new files, append outputs, MERGE the open windows.

A value depends on its key alone, so outputs follow from the number of a key's values by arithmetic, and no order is
needed: in favour of this job, which works for no other values. What each commit of its own would need to make the two
tables change together, or to run a batch again after a crash, is left out, too.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.contenders.contender import Contender, Taken
from benchmarks.workload import EVENT_SCHEMA, PARALLELISM, WINDOW, Results

_SEEN = """
SELECT k, n + coalesce(count, 0) AS seen, v
FROM (SELECT k, count(*) AS n, max(v) AS v FROM {events} GROUP BY k) LEFT JOIN {windows} USING (k)
"""
"""Of each key of the batch: how many values its open window would have, and what they are."""
_OUTPUTS = f"SELECT k, explode(array_repeat(v, CAST(seen DIV {WINDOW} AS INT))) AS a FROM {{seen}}"
_MERGE = f"""
MERGE INTO {{windows}} AS w
USING (SELECT k, seen % {WINDOW} AS count, seen % {WINDOW} * v AS total FROM {{seen}}) AS s ON w.k = s.k
WHEN MATCHED AND s.count = 0 THEN DELETE
WHEN MATCHED THEN UPDATE SET *
WHEN NOT MATCHED AND s.count > 0 THEN INSERT *
"""


class DeltaMerge(Contender):
    """The hand-written job; see the module docstring.

    Args:
        spark: a session whose options this contender may set.
        directory: for its two tables.
    """

    name = "delta_merge"

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark, self._windows, self._outputs = spark, directory / "windows", directory / "outputs"
        for option in ("spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions"):
            spark.conf.set(option, str(PARALLELISM))  # by default 200, and 50: many tasks for few rows
        vectors = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        columns = "(k BIGINT, count BIGINT, total DOUBLE)"
        spark.sql(f"CREATE TABLE delta.`{self._windows}` {columns} USING delta {vectors}")
        spark.sql(f"CREATE TABLE delta.`{self._outputs}` (k BIGINT, a DOUBLE) USING delta")

    @classmethod
    def start(cls, spark: SparkSession, directory: Path, *, keep_outputs: bool) -> DeltaMerge:
        return cls(spark.newSession(), directory)

    def run(self, batch: Path) -> Taken:
        started = time.perf_counter()
        events = self._spark.read.schema(EVENT_SCHEMA).parquet(str(batch))
        seen = self._spark.sql(_SEEN, events=events, windows=self._read(self._windows)).persist()
        outputs = self._spark.sql(_OUTPUTS, seen=seen)
        outputs.write.format("delta").mode("append").save(str(self._outputs))
        written = time.perf_counter()
        seen.createOrReplaceTempView("seen")
        self._spark.sql(_MERGE.format(windows=f"delta.`{self._windows}`", seen="seen"))
        seen.unpersist()
        ended = time.perf_counter()
        return Taken(ended - started, detail={"outputs": written - started, "merge": ended - written})

    def results(self) -> Results:
        outputs = Counter((int(r["k"]), float(r["a"])) for r in self._read(self._outputs).collect())
        windows = self._read(self._windows).collect()
        return Results(outputs, {int(r["k"]): (int(r["count"]), float(r["total"])) for r in windows})

    def _read(self, table: Path) -> DataFrame:
        return self._spark.read.format("delta").load(str(table))
