"""Spark's ``transformWithState`` on the reference workload, by rows and by pandas: one query that runs all the time.

State is in RocksDB with changelog checkpointing. Counted is the trigger's own ``triggerExecution``, without the time
until it notices new files. Outputs go nowhere when time is taken; a sink would only add to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, GroupedData, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from benchmarks.contenders.contender import Contender, Taken
from benchmarks.workload import EVENT_SCHEMA, FILES, PARALLELISM, WINDOW, Results, hand_over

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
OPTIONS = {
    "spark.sql.shuffle.partitions": str(PARALLELISM),
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # The query lists its directory again and again while others have their turn; once a second is no load.
    "spark.sql.streaming.pollingDelay": "1s",
}
_OUTPUT = "k bigint, a double"
_TABLE = "transform_with_state_outputs"


class CountWindowAverage(StatefulProcessor):
    """Emit (key, average) for every ``WINDOW`` values of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.window = handle.getValueState("window", "count bigint, total double")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for average in self.averages(row.v for row in rows):
            yield Row(k=key[0], a=average)

    def averages(self, values: Iterable[float]) -> Iterator[float]:
        """Averages of the windows that these values of the key make full; the open one is stored."""
        # State is asked for once a key and batch and stored once: every use is a round trip to the JVM.
        before = self.window.get()
        count, total = before or (0, 0.0)
        for value in values:
            count += 1
            total += value
            if count == WINDOW:
                yield total / count
                count, total = 0, 0.0
        if count:
            self.window.update((count, total))
        elif before is not None:
            self.window.clear()

    def close(self) -> None:
        pass


class CountWindowAverageInPandas(CountWindowAverage):
    """The same, for rows that come as data frames."""

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        averages = list(self.averages(value for frame in rows for value in frame["v"].tolist()))
        yield pd.DataFrame({"k": key[0], "a": averages})


class LoadedCountWindowAverage(CountWindowAverage):
    """The same, begun with open windows: rows of k, count and total."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.window.update((initialState["count"], initialState["total"]))


class TransformWithState(Contender):
    """The peer; see the module docstring.

    Args:
        spark: a session whose options this contender may set.
        directory: for input and checkpoint.
        keep_outputs: whether outputs are kept in memory, for ``results``.
        initial: state that the query loads in its first trigger, as k, count and total.
        once: whether the query takes what is there when it starts, and ends.
    """

    name = "transformWithState_rows"

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        *,
        keep_outputs: bool = False,
        initial: DataFrame | None = None,
        once: bool = False,
    ) -> None:
        self._spark, self._input, self._checkpoint = spark, directory / "input", directory / "checkpoint"
        self._input.mkdir(parents=True, exist_ok=once)
        for key, value in OPTIONS.items():
            spark.conf.set(key, value)
        events = (
            spark.readStream.schema(EVENT_SCHEMA)
            .option("maxFilesPerTrigger", str(FILES))
            .option("recursiveFileLookup", "true")
            .parquet(str(self._input))
        )
        averages = self._averages(events.groupBy("k"), initial)
        writer = averages.writeStream.outputMode("update").option("checkpointLocation", str(self._checkpoint))
        writer = writer.format("memory").queryName(_TABLE) if keep_outputs else writer.format("noop")
        self._query = (writer.trigger(availableNow=True) if once else writer).start()
        self._last_batch = -1

    @classmethod
    def start(cls, spark: SparkSession, directory: Path, *, keep_outputs: bool) -> Self:
        # A session of its own in the same application: its own options, but the same JVM, cores and memory.
        return cls(spark.newSession(), directory, keep_outputs=keep_outputs)

    def _averages(self, events: GroupedData, initial: DataFrame | None) -> DataFrame:
        return events.transformWithState(
            CountWindowAverage() if initial is None else LoadedCountWindowAverage(),
            _OUTPUT,
            outputMode="Update",
            timeMode="None",
            initialState=None if initial is None else initial.groupBy("k"),
        )

    def run(self, batch: Path) -> Taken:
        hand_over(batch, self._input)
        self._query.processAllAvailable()
        new = [p for p in self._query.recentProgress if p.batchId > self._last_batch and p.numInputRows]
        if len(new) != 1:
            raise RuntimeError(f"{self.name} cut one batch into {len(new)}")
        self._last_batch = new[0].batchId
        took_ms = new[0].durationMs
        detail = {name: ms / 1000 for name, ms in took_ms.items()}
        return Taken(seconds=took_ms["triggerExecution"] / 1000, detail=detail)

    def finish(self) -> None:
        """Wait until a query that takes what is there has done so.

        Raises:
            StreamingQueryException: it failed.
        """
        self._query.awaitTermination()

    def results(self) -> Results:
        outputs = Counter((int(r["k"]), float(r["a"])) for r in self._spark.table(_TABLE).collect())
        state = self.state().to_pylist()
        return Results(outputs, {r["k"]: (r["count"], r["total"]) for r in state})

    def state(self) -> pa.Table:
        """The open windows after the last batch: k, count and total."""
        return state_at(self._spark, self._checkpoint)

    def close(self) -> None:
        self._query.stop()


class TransformWithStateInPandas(TransformWithState):
    """``transformWithStateInPandas``: a data frame in and out for each key."""

    name = "transformWithState_pandas"
    slow = True

    def _averages(self, events: GroupedData, initial: DataFrame | None) -> DataFrame:
        return events.transformWithStateInPandas(
            CountWindowAverageInPandas(), _OUTPUT, outputMode="Update", timeMode="None"
        )


def state_at(spark: SparkSession, checkpoint: Path) -> pa.Table:
    """The open windows that a query left at its checkpoint: k, count and total."""
    source = spark.read.format("statestore").option("stateVarName", "window")
    return source.load(str(checkpoint)).select("key.k", "value.count", "value.total").toArrow()
