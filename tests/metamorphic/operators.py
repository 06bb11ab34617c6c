"""Duplicates, joins, features, sequences and silences of two streams, and what a plain program makes of their rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from state_engine import Tumbling, count, step, sum_

Values = dict[str, Any]
AGAIN, NEAR, BEFORE, SILENT = (timedelta(minutes=minutes) for minutes in (30, 5, 20, 6))
HOUR, BEST = timedelta(hours=1), 2
FEW, MANY = step("few", where=lambda row: row.n < 10), step("many", where=lambda row: row.n >= 10)


def streams(orders: Any, paid: Any) -> dict[str, Any]:
    """Streams of results by the names of their tables."""
    once = orders.key_by("k", "n").drop_duplicates(within=AGAIN, emit="final", uid="once")
    by_key, paid = once.key_by("k"), paid.key_by("k")
    return {
        "met": by_key.join(paid, within=NEAR, how="left", take=["at", "n"], uid="met"),
        "of_time": by_key.join_asof(paid, take=["n"], tolerance=BEFORE, uid="of_time"),
        "features": by_key.over(sum=sum_("n", last=BEFORE), rows=count(last_rows=3), uid="features"),
        "funnel": orders.key_by("k").sequence(FEW, MANY, within=BEFORE, incomplete=True, uid="funnel"),
        "silent": orders.key_by("k").silent(after=SILENT, uid="silences"),
    }


def best(met: Any) -> Any:
    """The keys with the greatest sums of each hour: the end of a chain of operators."""
    sums = met.key_by("k").window(Tumbling(HOUR)).aggregate(n=sum_("n"), paid=count("n_right"), uid="hours")
    return sums.key_by("window_start").top_n(BEST, by=["n", "k"], uid="best")


def plainly(rows: Mapping[str, list[Values]]) -> Mapping[str, list[Values]]:
    """The tables of ``streams``, but for the funnel, and that of ``best``."""
    orders = sorted(rows["orders"], key=lambda row: row["at"])
    once, newest = [], dict[tuple[str, int], datetime]()
    for row in orders:
        key = (row["k"], row["n"])
        if key not in newest or row["at"] - newest[key] >= AGAIN:
            newest[key] = row["at"]
            once.append(row)
    met, of_time, features = [], [], []
    for row in once:
        paid = sorted((p for p in rows["payments"] if p["k"] == row["k"]), key=lambda p: p["at"])
        near = [p for p in paid if abs(p["at"] - row["at"]) <= NEAR]
        met += [{**row, "at_right": p["at"], "n_right": p["n"]} for p in near or [{"at": None, "n": None}]]
        valid = [p["n"] for p in paid if timedelta() <= row["at"] - p["at"] <= BEFORE]
        of_time.append({**row, "n_right": valid[-1] if valid else None})
        before = [one for one in once if one["k"] == row["k"] and one["at"] <= row["at"]]
        last = [one["n"] for one in before if row["at"] - one["at"] <= BEFORE]
        features.append({**row, "sum": sum(last), "rows": len(before[-3:])})
    tables = {"met": met, "of_time": of_time, "features": features, "silent": _silences(orders)}
    return {**tables, "best": _best(met)}


def _best(met: list[Values]) -> list[Values]:
    hours: dict[datetime, dict[str, list[Values]]] = {}
    for row in met:
        begin = row["at"].replace(minute=0, second=0, microsecond=0)
        hours.setdefault(begin, {}).setdefault(row["k"], []).append(row)
    listed: list[Values] = []
    for begin, of_keys in hours.items():
        sums = [
            (sum(r["n"] for r in rows), k, sum(r["n_right"] is not None for r in rows))
            for k, rows in of_keys.items()
        ]
        for rank, (n, k, paid) in enumerate(sorted(sums, reverse=True)[:BEST], 1):
            end = begin + HOUR
            listed.append(
                {"window_start": begin, "rank": rank, "k": k, "window_end": end, "n": n, "paid": paid}
            )
    return listed


def _silences(orders: list[Values]) -> list[Values]:
    times: dict[str, list[datetime]] = {}
    for row in orders:
        times.setdefault(row["k"], []).append(row["at"])
    return [
        {"k": k, "silent_since": at}
        for k, of_key in times.items()
        for at, after in zip(of_key, [*of_key[1:], None], strict=True)
        if after is None or after - at > SILENT
    ]
