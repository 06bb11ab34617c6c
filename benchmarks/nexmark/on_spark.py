"""The queries on Spark Structured Streaming, as far as it can run them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.contenders.transform_with_state import OPTIONS
from benchmarks.nexmark.events import STREAMS
from benchmarks.nexmark.queries import FEW, LOCAL, QUERIES, RANKS, ranked

LATE = "4 seconds"
CANNOT = {
    "q4": "an aggregate of a changing aggregate",
    "q9": "a top list without a window",
    "q12": "windows of the clock end by new rows only, and these are all there when it begins",
    "q15": "exact distinct counts of a stream",
    "q16": "exact distinct counts of a stream",
    "q18": "the last row of a key",
    "q19": "a top list without a window",
}
"""What it lacks."""
Read = Callable[[str], DataFrame]


def _q3(read: Read) -> DataFrame:
    auctions = read("auctions").where(FEW).select("id", "seller")
    persons = read("persons").where(LOCAL).selectExpr("id AS person", "name", "city", "state")
    return auctions.join(persons, F.expr("seller = person")).select("name", "city", "state", "id")


def _q5(read: Read) -> DataFrame:
    window = F.window("at", "10 seconds", "2 seconds").alias("w")
    counts = read("bids").groupBy(window, "auction").count()
    of_window = counts.groupBy("w").agg(
        F.collect_list(F.struct("auction", F.col("count").alias("n"))).alias("all")
    )
    hot = of_window.withColumn("most", F.expr("array_max(transform(all, x -> x.n))"))
    rows = hot.selectExpr("w", "explode(filter(all, x -> x.n = most)) AS one")
    return rows.selectExpr("one.auction", "one.n", "w.start AS starts", "w.end AS ends")


def _q7(read: Read) -> DataFrame:
    columns = ["auction", "price", "bidder", "at", "extra"]
    of_window = (
        read("bids")
        .groupBy(F.window("at", "10 seconds"))
        .agg(F.collect_list(F.struct(*columns)).alias("all"))
    )
    highest = of_window.withColumn("most", F.expr("array_max(transform(all, x -> x.price))"))
    return highest.selectExpr("explode(filter(all, x -> x.price = most)) AS one").select("one.*")


def _q8(read: Read) -> DataFrame:
    window = F.window("at", "10 seconds").alias("w")
    new = read("persons").groupBy(window, "id", "name").count().select("id", "name", "w")
    sellers = read("auctions").groupBy(window, F.col("seller")).count().select("seller", "w")
    both = new.join(sellers.withColumnRenamed("w", "v"), F.expr("id = seller AND w = v"))
    return both.selectExpr("id", "name", "w.start AS window_start")


def _q11(read: Read) -> DataFrame:
    counts = read("bids").groupBy(F.session_window("at", "10 seconds").alias("w"), "bidder").count()
    return counts.selectExpr("bidder", "w.start AS window_start", "w.end AS window_end", "count AS n")


def _q17(read: Read) -> DataFrame:
    prices = {"least": F.min, "most": F.max, "average": F.avg, "total": F.sum}
    days = ranked(read("bids")).groupBy(F.window("at", "1 day").alias("w"), "auction")
    counts = [F.count("*").alias("bids"), *(F.count(rank).alias(rank) for rank in RANKS)]
    made = days.agg(*counts, *(by("price").alias(name) for name, by in prices.items()))
    return made.selectExpr(
        "auction", "w.start AS window_start", "w.end AS window_end", "* EXCEPT (auction, w)"
    )


def _q20(read: Read) -> DataFrame:
    auctions = read("auctions").where(FEW).withColumnsRenamed({"at": "at_auction", "extra": "extra_auction"})
    return read("bids").join(auctions, F.expr("auction = id")).drop("id")


WITH_STATE: dict[str, Callable[[Read], DataFrame]] = {
    "q3": _q3,
    "q5": _q5,
    "q7": _q7,
    "q8": _q8,
    "q11": _q11,
    "q17": _q17,
    "q20": _q20,
}
_AT_ONCE = ("q3", "q20")
"""Those with state whose results do not wait for a watermark."""


def gives_all(name: str) -> bool:
    """Whether all results of a query come out, and not only those of windows that its watermark has closed."""
    return name not in WITH_STATE or name in _AT_ONCE


def run(spark: SparkSession, name: str, directory: Path, into: Path, *, files_per_batch: int) -> float:
    """Seconds of one query that takes what is there, ``availableNow``, and ends; its state is in RocksDB.

    Windows that have not ended by its watermark do not come out.
    """
    session = spark.newSession()
    for option, value in {**OPTIONS, "spark.sql.session.timeZone": "UTC"}.items():
        session.conf.set(option, value)

    def read(stream: str) -> DataFrame:
        rows = session.readStream.schema(STREAMS[stream][0]).option(
            "maxFilesPerTrigger", str(files_per_batch)
        )
        return rows.parquet(str(directory / stream)).withWatermark("at", LATE)

    started = time.perf_counter()
    results = WITH_STATE[name](read) if name in WITH_STATE else _of_rows(name, read("bids"))
    writer = results.writeStream.format("delta").outputMode("append").trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"{into}-checkpoint").start(str(into))
    query.awaitTermination()
    return time.perf_counter() - started


def _of_rows(name: str, bids: DataFrame) -> DataFrame:
    """What a query without state gives: the same code as here."""
    recorded: list[Callable[[DataFrame], DataFrame]] = []

    class Recorded:
        """Stands for the stream of bids, and keeps what is done to its rows."""

        def transform(self, code: Callable[[DataFrame], DataFrame]) -> Recorded:
            recorded.append(code)
            return self

    class Streams:
        bids = Recorded()

    QUERIES[name].results(Streams())  # type: ignore[arg-type]
    for code in recorded:
        bids = code(bids)
    return bids
