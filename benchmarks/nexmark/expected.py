"""What the queries give, by polars over all events at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl

from benchmarks.nexmark.events import SIDE_KEYS
from benchmarks.nexmark.queries import RANKS

Frames = dict[str, pl.DataFrame]


def frames(directory: Path) -> Frames:
    """All events, as they are read."""
    return {
        name: pl.read_parquet(sorted((directory / name).glob("*.parquet"))).with_row_index("place")
        for name in ("persons", "auctions", "bids")
    }


def _q1(f: Frames) -> pl.DataFrame:
    price = (pl.col("price").cast(pl.Decimal(23, 3)) * pl.lit("0.908").str.to_decimal(scale=3)).cast(
        pl.Float64
    )
    return f["bids"].select("auction", "bidder", price, "at", "extra")


def _q3(f: Frames) -> pl.DataFrame:
    persons = f["persons"].filter(pl.col("state").is_in(["OR", "ID", "CA"]))
    few = f["auctions"].filter(pl.col("category") == 10).select("id", "seller")
    local = few.join(persons.drop("place"), left_on="seller", right_on="id")
    return local.select("name", "city", "state", "id")


def _in_time(f: Frames) -> pl.DataFrame:
    pairs = f["auctions"].join(f["bids"], left_on="id", right_on="auction", suffix="_bid")
    pairs = pairs.with_columns(auction=pl.col("id"), bid_at=pl.col("at_bid"))
    return pairs.filter(pl.col("bid_at") >= pl.col("at"), pl.col("bid_at") <= pl.col("expires"))


def _q4(f: Frames) -> pl.DataFrame:
    final = _in_time(f).group_by("id", "category").agg(final=pl.col("price").max())
    return final.group_by("category").agg(average=pl.col("final").mean())


def _q5(f: Frames) -> pl.DataFrame:
    first = pl.col("at").dt.truncate("2s") - pl.duration(seconds=8)
    starts = pl.concat_list([first + pl.duration(seconds=2 * slide) for slide in range(5)])
    counts = (
        f["bids"].with_columns(starts=starts).explode("starts").group_by("auction", "starts").agg(n=pl.len())
    )
    hot = counts.filter(pl.col("n") == pl.col("n").max().over("starts"))
    return hot.with_columns(ends=pl.col("starts") + pl.duration(seconds=10), n=pl.col("n").cast(pl.Int64))


def _q7(f: Frames) -> pl.DataFrame:
    window = pl.col("at").dt.truncate("10s")
    highest = f["bids"].filter(pl.col("price") == pl.col("price").max().over(window))
    return highest.select("auction", "price", "bidder", "at", "extra")


def _q8(f: Frames) -> pl.DataFrame:
    window = pl.col("at").dt.truncate("10s").alias("window_start")
    sellers = f["auctions"].select(pl.col("seller").alias("id"), window).unique()
    return (
        f["persons"]
        .select("id", "name", window)
        .unique()
        .join(sellers, on=["id", "window_start"], how="semi")
    )


def _q9(f: Frames) -> pl.DataFrame:
    ordered = _in_time(f).sort(["id", "price", "place_bid"], descending=[False, True, False])
    best = ordered.unique("id", keep="first", maintain_order=True)
    return best.select("id", "auction", "bidder", "price", "bid_at", rank=pl.lit(1, pl.Int64))


def _q11(f: Frames) -> pl.DataFrame:
    ordered = f["bids"].sort("bidder", "at")
    away = (pl.col("at") - pl.col("at").shift(1).over("bidder")) > pl.duration(seconds=10)
    sessions = ordered.with_columns(session=away.fill_null(True).cum_sum().over("bidder"))
    by = sessions.group_by("bidder", "session").agg(
        n=pl.len().cast(pl.Int64),
        window_start=pl.col("at").min(),
        window_end=pl.col("at").max() + pl.duration(seconds=10),
    )
    return by.select("bidder", "window_start", "window_end", "n")


def _q12(f: Frames) -> pl.DataFrame:
    """Of each person, whatever the windows are."""
    return f["bids"].group_by("bidder").agg(n=pl.len().cast(pl.Int64))


def _q13(f: Frames) -> pl.DataFrame:
    value = pl.format("value {}", pl.col("auction") % SIDE_KEYS)
    return f["bids"].select("auction", "bidder", "price", "at", value=value)


def _q14(f: Frames) -> pl.DataFrame:
    hour, price = pl.col("at").dt.hour(), pl.col("price") * 0.908
    night = (hour <= 6) | (hour >= 20)
    day = pl.when(hour.is_between(8, 18)).then(pl.lit("day"))
    time = day.when(night).then(pl.lit("night")).otherwise(pl.lit("other"))
    rows = f["bids"].filter((price > 1_000_000) & (price < 50_000_000))
    letters = pl.col("extra").str.count_matches("c", literal=True).cast(pl.Int32)
    return rows.select(
        "auction", "bidder", price.alias("price"), time.alias("time"), "at", letters.alias("cs")
    )


def _statistics(f: Frames, *by: str) -> pl.DataFrame:
    where = {rank: pl.sql_expr(f"CASE WHEN {text} THEN true ELSE false END") for rank, text in RANKS.items()}
    columns = [pl.len().alias("bids")]
    columns += [where[rank].sum().alias(rank) for rank in RANKS]
    for whose in ("bidder", "auction"):
        columns.append(pl.col(whose).n_unique().alias(f"{whose}s"))
        columns += [pl.col(whose).filter(where[rank]).n_unique().alias(f"{rank}_{whose}s") for rank in RANKS]
    columns.append(pl.col("at").dt.to_string("%H:%M").max().alias("last_minute"))
    columns += [pl.col("price").min().alias("least"), pl.col("price").max().alias("most")]
    columns += [pl.col("price").mean().alias("average"), pl.col("price").sum().alias("total")]
    day = pl.col("at").dt.truncate("1d").alias("window_start")
    made = f["bids"].with_columns(day).group_by("window_start", *(by or ())).agg(*columns)
    counted = [name for name, kind in made.schema.items() if kind == pl.UInt32]
    return made.with_columns(
        pl.col(counted).cast(pl.Int64), window_end=pl.col("window_start") + pl.duration(days=1)
    )


def _q18(f: Frames) -> pl.DataFrame:
    ordered = f["bids"].sort("at", "place")
    return ordered.unique(["bidder", "auction"], keep="last", maintain_order=True).drop("place")


def _q19(f: Frames) -> pl.DataFrame:
    ordered = f["bids"].sort(["auction", "price", "place"], descending=[False, True, False])
    ranked = ordered.with_columns(rank=pl.int_range(1, pl.len() + 1).over("auction"))
    return ranked.filter(pl.col("rank") <= 10).select("auction", "rank", "bidder", "price", "at")


def _q20(f: Frames) -> pl.DataFrame:
    few = f["auctions"].filter(pl.col("category") == 10).drop("place")
    return f["bids"].drop("place").join(few, left_on="auction", right_on="id", suffix="_auction")


def _q21(f: Frames) -> pl.DataFrame:
    channel, known = pl.col("channel").str.to_lowercase(), ["apple", "google", "facebook", "baidu"]
    places = [str(place) for place in range(len(known))]
    by_url = pl.col("url").str.extract(r"(&|^)channel_id=([^&]*)", 2)
    channel_id = channel.replace_strict(known, places, default=by_url)
    rows = f["bids"].with_columns(channel_id=channel_id).filter(pl.col("channel_id").is_not_null())
    return rows.select("auction", "bidder", "price", "channel", "channel_id")


def _q22(f: Frames) -> pl.DataFrame:
    parts = pl.col("url").str.split("/")
    named = {f"dir{place}": parts.list.get(place + 2) for place in (1, 2, 3)}
    return f["bids"].select("auction", "bidder", "price", "channel", **named)


EXPECTED: dict[str, Callable[[Frames], pl.DataFrame]] = {
    "q0": lambda f: f["bids"].drop("place"),
    "q1": _q1,
    "q2": lambda f: f["bids"].filter(pl.col("auction") % 123 == 0).select("auction", "price"),
    "q3": _q3,
    "q4": _q4,
    "q5": _q5,
    "q7": _q7,
    "q8": _q8,
    "q9": _q9,
    "q11": _q11,
    "q12": _q12,
    "q13": _q13,
    "q14": _q14,
    "q15": lambda f: _statistics(f).drop("least", "most", "average", "total", "last_minute"),
    "q16": lambda f: _statistics(f, "channel").drop("least", "most", "average", "total"),
    "q17": lambda f: _statistics(f, "auction").select(
        "auction", "window_start", "window_end", "bids", *RANKS, "least", "most", "average", "total"
    ),
    "q18": _q18,
    "q19": _q19,
    "q20": _q20,
    "q21": _q21,
    "q22": _q22,
}
