"""The queries as jobs: each takes the streams that it needs, and gives a stream of results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.nexmark.events import LONGEST_MS, SIDE_KEYS, STREAMS
from state_engine import (
    DeltaSink,
    FileSource,
    Session,
    Sliding,
    StatefulJob,
    Tumbling,
    avg,
    count,
    count_distinct,
    max_,
    min_,
    sum_,
)
from state_engine.job.streams import DataStream

OUT_OF_ORDER = "4 s"
TEN_SECONDS = Tumbling("10 s")
DAY = Tumbling("1 day")


@dataclass(frozen=True)
class Streams:
    """The input of one job."""

    job: StatefulJob
    directory: Path
    files_per_batch: int | None = None
    in_order: bool = False

    def _stream(self, name: str) -> DataStream:
        source = FileSource(
            str(self.directory / name), schema=STREAMS[name][0], max_files_per_batch=self.files_per_batch
        )
        order = ["at"] if self.in_order else ()
        return self.job.source(
            name, source, event_time="at", max_out_of_orderness=OUT_OF_ORDER, order_by=order
        )

    @property
    def persons(self) -> DataStream:
        return self._stream("persons")

    @property
    def auctions(self) -> DataStream:
        return self._stream("auctions")

    @property
    def bids(self) -> DataStream:
        return self._stream("bids")


@dataclass(frozen=True)
class Query:
    """One of the queries.

    Attributes:
        title: what is asked.
        results: made from the streams.
        key: of the table of results, where they change.
        of_clock: whether its windows end by the clock.
        in_order: whether it joins results of timers, which need a place in an order by event time.
    """

    title: str
    results: Callable[[Streams], DataStream]
    key: tuple[str, ...] = ()
    of_clock: bool = False
    in_order: bool = False

    def job(
        self, directory: Path, into: Path, *, parallelism: int = 2, files_per_batch: int | None = None
    ) -> StatefulJob:
        """The job that reads the streams below one directory and writes its results into another."""
        job = StatefulJob("nexmark", parallelism=parallelism)
        results = self.results(Streams(job, directory, files_per_batch, self.in_order))
        results.sink(
            "results", DeltaSink(str(into), key=list(self.key)) if self.key else DeltaSink(str(into))
        )
        return job


def _q0(s: Streams) -> DataStream:
    return s.bids


def _q1(s: Streams) -> DataStream:
    return s.bids.transform(
        lambda bids: bids.select(
            "auction",
            "bidder",
            (F.col("price").cast("decimal(23,3)") * F.expr("0.908")).alias("price"),
            "at",
            "extra",
        )
    )


def _q2(s: Streams) -> DataStream:
    return s.bids.transform(lambda bids: bids.where("auction % 123 = 0").select("auction", "price"))


LOCAL = "state IN ('OR', 'ID', 'CA')"
FEW = "category = 10"
"""Which persons and auctions queries 3 and 20 ask for."""


def _q3(s: Streams) -> DataStream:
    auctions = s.auctions.transform(lambda rows: rows.where(FEW).select("id", "seller", "at"))
    persons = s.persons.transform(lambda rows: rows.where(LOCAL).select("id", "name", "city", "state", "at"))
    local = auctions.key_by("seller").join(
        persons.key_by("id"), take=["name", "city", "state"], uid="local items"
    )
    return local.transform(lambda rows: rows.select("name", "city", "state", "id"))


def _bids_in_time(s: Streams) -> DataStream:
    """Each auction with each bid that came while it lasted."""
    pairs = s.auctions.key_by("id").join(
        s.bids.key_by("auction"),
        within=(0, LONGEST_MS),
        take=["auction", "bidder", "price", "at"],
        uid="bids in time",
    )
    return pairs.transform(
        lambda rows: rows.where("at_right <= expires").withColumnRenamed("at_right", "bid_at")
    )


def _q4(s: Streams) -> DataStream:
    final = (
        _bids_in_time(s)
        .key_by("id", "category")
        .aggregate(final=max_("price"), emit="changes", uid="final prices")
    )
    return final.key_by("category").aggregate(average=avg("final"), emit="changes", uid="averages")


def _q5(s: Streams) -> DataStream:
    counts = s.bids.key_by("auction").window(Sliding("10 s", every="2 s")).aggregate(n=count(), uid="counts")
    renamed = counts.transform(
        lambda rows: rows.withColumnsRenamed({"window_start": "starts", "window_end": "ends"})
    )
    hot = renamed.window_all(Tumbling("1 ms")).top_n(1, by="n", ties=True, uid="hot")
    return hot.transform(lambda rows: rows.select("auction", "n", "starts", "ends"))


def _q7(s: Streams) -> DataStream:
    highest = s.bids.window_all(TEN_SECONDS).top_n(1, by="price", ties=True, uid="highest")
    return highest.transform(lambda rows: rows.select("auction", "price", "bidder", "at", "extra"))


def _q8(s: Streams) -> DataStream:
    new = s.persons.key_by("id", "name").window(TEN_SECONDS).aggregate(n=count(), uid="new persons")
    sellers = s.auctions.key_by("seller").window(TEN_SECONDS).aggregate(n=count(), uid="sellers")
    both = new.key_by("id", "window_start").join(
        sellers.key_by("seller", "window_start"), within=0, how="semi", uid="both"
    )
    return both.transform(lambda rows: rows.select("id", "name", "window_start"))


def _q9(s: Streams) -> DataStream:
    best = _bids_in_time(s).key_by("id").top_n(1, by="price", uid="winning")
    return best.transform(lambda rows: rows.select("id", "rank", "auction", "bidder", "price", "bid_at"))


def _q11(s: Streams) -> DataStream:
    return s.bids.key_by("bidder").window(Session("10 s")).aggregate(n=count(), uid="sessions")


def _q12(s: Streams) -> DataStream:
    return s.bids.key_by("bidder").window(TEN_SECONDS, time="clock").aggregate(n=count(), uid="counts")


def side(rows: DataFrame) -> DataFrame:
    """The table that query 13 looks up in."""
    return rows.sparkSession.range(SIDE_KEYS).selectExpr("id AS key", "concat('value ', id) AS value")


def _q13(s: Streams) -> DataStream:
    def looked_up(bids: DataFrame) -> DataFrame:
        table = side(bids)
        return bids.join(F.broadcast(table), F.expr(f"auction % {SIDE_KEYS} = key")).select(
            "auction", "bidder", "price", "at", "value"
        )

    return s.bids.transform(looked_up)


def _q14(s: Streams) -> DataStream:
    def calculated(bids: DataFrame) -> DataFrame:
        hour = "hour(at)"
        night = f"{hour} <= 6 OR {hour} >= 20"
        time = f"CASE WHEN {hour} BETWEEN 8 AND 18 THEN 'day' WHEN {night} THEN 'night' ELSE 'other' END"
        rows = bids.withColumn("price", F.expr("0.908 * price")).where("price > 1000000 AND price < 50000000")
        return rows.selectExpr(
            "auction",
            "bidder",
            "price",
            f"{time} AS time",
            "at",
            "length(extra) - length(replace(extra, 'c')) AS cs",
        )

    return s.bids.transform(calculated)


RANKS = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}
"""The three classes of prices of queries 15 to 17."""


def ranked(bids: DataFrame) -> DataFrame:
    """Bids with a column for each class of prices, which is null in other classes."""
    return bids.withColumns({rank: F.expr(f"IF({where}, 1, NULL)") for rank, where in RANKS.items()})


def flagged(bids: DataFrame) -> DataFrame:
    """The same, with bidders and auctions of each class, and the minute."""
    columns = {"minute": F.date_format("at", "HH:mm")}
    for whose in ("bidder", "auction"):
        columns |= {f"{rank}_{whose}": F.expr(f"IF({where}, {whose}, NULL)") for rank, where in RANKS.items()}
    return ranked(bids).withColumns(columns)


_COUNTS = {
    "bids": count(),
    **{rank: count(rank) for rank in RANKS},
    **{whose + "s": count_distinct(whose) for whose in ("bidder", "auction")},
    **{
        f"{rank}_{whose}s": count_distinct(f"{rank}_{whose}")
        for whose in ("bidder", "auction")
        for rank in RANKS
    },
}


def _q15(s: Streams) -> DataStream:
    days = s.bids.transform(flagged).window_all(DAY, emit="running")
    return days.aggregate(uid="days", **_COUNTS)


def _q16(s: Streams) -> DataStream:
    days = s.bids.transform(flagged).key_by("channel").window(DAY, emit="running")
    return days.aggregate(uid="days", last_minute=max_("minute"), **_COUNTS)


def _q17(s: Streams) -> DataStream:
    days = s.bids.transform(ranked).key_by("auction").window(DAY, emit="running")
    return days.aggregate(
        uid="days",
        bids=count(),
        **{rank: count(rank) for rank in RANKS},
        least=min_("price"),
        most=max_("price"),
        average=avg("price"),
        total=sum_("price"),
    )


def _q18(s: Streams) -> DataStream:
    return s.bids.key_by("bidder", "auction").drop_duplicates(keep="last", uid="last bids")


def _q19(s: Streams) -> DataStream:
    best = s.bids.key_by("auction").top_n(10, by="price", uid="best")
    return best.transform(lambda rows: rows.select("auction", "rank", "bidder", "price", "at"))


def _q20(s: Streams) -> DataStream:
    auctions = s.auctions.transform(lambda rows: rows.where(FEW)).key_by("id")
    expanded = s.bids.key_by("auction").join(auctions, right="_auction", uid="bids of auctions")
    return expanded.transform(lambda rows: rows.drop("id"))


def _q21(s: Streams) -> DataStream:
    known = " ".join(
        f"WHEN lower(channel) = '{name}' THEN '{place}'"
        for place, name in enumerate(("apple", "google", "facebook", "baidu"))
    )
    channel = f"CASE {known} ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') END"
    return s.bids.transform(
        lambda bids: (
            bids.withColumn("channel_id", F.expr(channel))
            .where("channel_id IS NOT NULL")
            .select("auction", "bidder", "price", "channel", "channel_id")
        )
    )


def _q22(s: Streams) -> DataStream:
    parts = [f"element_at(split(url, '/'), {place}) AS dir{place - 3}" for place in (4, 5, 6)]
    return s.bids.transform(lambda bids: bids.selectExpr("auction", "bidder", "price", "channel", *parts))


QUERIES = {
    "q0": Query("pass through", _q0),
    "q1": Query("another currency", _q1),
    "q2": Query("some auctions", _q2),
    "q3": Query("local items", _q3),
    "q4": Query("average price of a category", _q4, ("category",)),
    "q5": Query("hot items", _q5),
    "q7": Query("highest bid", _q7),
    "q8": Query("new sellers", _q8, in_order=True),
    "q9": Query("winning bids", _q9, ("id", "rank")),
    "q11": Query("sessions of a person", _q11),
    "q12": Query("windows of the clock", _q12, of_clock=True),
    "q13": Query("a look-up", _q13),
    "q14": Query("calculations", _q14),
    "q15": Query("statistics of a day", _q15, ("window_start",)),
    "q16": Query("statistics of a channel", _q16, ("channel", "window_start")),
    "q17": Query("statistics of an auction", _q17, ("auction", "window_start")),
    "q18": Query("last bids", _q18, ("bidder", "auction")),
    "q19": Query("ten best bids", _q19, ("auction", "rank")),
    "q20": Query("bids with their auction", _q20),
    "q21": Query("ids of channels", _q21),
    "q22": Query("parts of addresses", _q22),
}
