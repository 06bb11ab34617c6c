"""Running results are events, or changes of one result a key; behind events, what would count each is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from state_engine import (
    AggregateFunction,
    DataStream,
    DeltaSink,
    DeltaSource,
    FileSource,
    RowKind,
    StatefulJob,
    Tumbling,
    count,
    max_,
    sum_,
)
from state_engine.core.errors import ConfigurationError
from state_engine.testing import CollectSink, run_in_memory

SALE = "shop string, town string, cents bigint, at timestamp"
TOTAL = "town string, total bigint"


def sales() -> DataStream:
    source = FileSource("/nowhere", schema=SALE)
    return StatefulJob("sales").source("sales", source, event_time="at")


class Total(AggregateFunction):
    """Sums cents up, as a row; takes none back."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + int(value.cents)

    def get_result(self, accumulator: int) -> tuple[int]:
        return (accumulator,)

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


MAKERS: dict[str, Callable[[Any], DataStream]] = {
    "aggregate": lambda keyed: keyed.aggregate(n=count(), cents=sum_("cents"), uid="made"),
    "function": lambda keyed: keyed.aggregate(Total(), int, "cents bigint", uid="made"),
    "reduce": lambda keyed: keyed.reduce(lambda a, b: a, uid="made"),
    "sum": lambda keyed: keyed.sum("cents", uid="made"),
    "max": lambda keyed: keyed.max("cents", uid="made"),
    "filtered": lambda keyed: keyed.max_by("cents", uid="made").filter(lambda row: True),
    "transformed": lambda keyed: keyed.sum("cents", uid="made").transform(lambda rows: rows),
    "united": lambda keyed: keyed.sum("cents", uid="made").union(keyed.sum("cents", uid="two")),
}


def other(keyed: Any) -> Any:
    """Another stream of the same job with such a key."""
    source = FileSource("/elsewhere", schema=SALE)
    return keyed._job.source("other", source, event_time="at").key_by(lambda row: 1, key_type=int)


READERS: dict[str, Callable[[Any], Any]] = {
    "top_n": lambda keyed: keyed.top_n(3, by="cents"),
    "aggregates": lambda keyed: keyed.aggregate(n=count()),
    "aggregate": lambda keyed: keyed.aggregate(Total(), int, "cents bigint"),
    "reduce": lambda keyed: keyed.reduce(lambda a, b: a),
    "sum": lambda keyed: keyed.sum("cents"),
    "join": lambda keyed: keyed.join(other(keyed), within=(0, "1 h")),
    "join_right": lambda keyed: other(keyed).join(keyed, within=(0, "1 h")),
    "regular_join": lambda keyed: keyed.join(other(keyed)),
    "join_asof": lambda keyed: keyed.join_asof(other(keyed)),
    "max": lambda keyed: keyed.max("cents"),
    "max_by": lambda keyed: keyed.max_by("cents"),
    "over": lambda keyed: keyed.over(rows=count(last="1 h")),
    "sequence": lambda keyed: keyed.sequence(5, 7, by="cents", within="1 h"),
    "window": lambda keyed: keyed.window(Tumbling("1 h")).aggregate(n=count()),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("maker", MAKERS)
def test_what_would_count_each_result_is_refused_behind_running_ones(maker: str, reader: str) -> None:
    results = MAKERS[maker](sales().key_by("shop"))
    keyed = results.key_by(lambda row: 1, key_type=int)
    with pytest.raises(
        ConfigurationError, match=r"running results of operator 'made'.*emit='changes'.*put a map in"
    ):
        READERS[reader](keyed)


def test_a_running_result_is_a_version_of_its_key() -> None:
    stream = sales()
    totals = MAKERS["aggregate"](stream.key_by("shop"))
    stream.key_by("shop").join_asof(totals.key_by("shop"), take=["n"])
    totals.key_by("shop").scd2(valid_from="n")
    totals.key_by("shop").drop_duplicates(keep="last")


CHANGING: dict[str, Callable[[Any], DataStream]] = {
    "aggregate": lambda keyed: keyed.aggregate(cents=sum_("cents"), emit="changes", uid="made"),
    "filtered": lambda keyed: keyed.drop_duplicates(keep="last", uid="made").filter(lambda row: True),
    "regular_join": lambda keyed: keyed.join(other(keyed).key_by("shop"), how="left", uid="made"),
    "top_n": lambda keyed: keyed.top_n(3, by="cents", uid="made"),
}


@pytest.mark.parametrize("maker", CHANGING)
def test_windows_are_refused_where_a_row_that_is_taken_back_has_another_time(maker: str) -> None:
    keyed = CHANGING[maker](sales().key_by("shop")).key_by("shop")
    with pytest.raises(
        ConfigurationError, match=r"operator 'made' takes rows back.*window in front.*name it in key_by"
    ):
        keyed.window(Tumbling("1 h")).aggregate(n=count())


def test_windows_are_refused_where_a_row_that_is_taken_back_has_the_time_of_a_commit() -> None:
    source = DeltaSource("/nowhere", changes=True, with_metadata=True)
    changes = StatefulJob("sales").source("sales", source, event_time="_commit_timestamp").key_by("shop")
    with pytest.raises(ConfigurationError, match=r"source 'sales'.*time of the commit.*row's own time"):
        changes.window(Tumbling("1 h")).aggregate(n=count())


def test_windows_of_windows_take_back_from_their_own() -> None:
    hours = sales().key_by("shop").window(Tumbling("1 h"), emit="running").aggregate(n=count(), uid="hours")
    hours.key_by("shop").window(Tumbling("1 day")).aggregate(most=max_("n"), uid="days").sink(
        "days", CollectSink()
    )
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [("a", "rome", 5, at + timedelta(minutes=minutes)) for minutes in (0, 10, 70)]
    with run_in_memory(hours._job) as run:
        for row in rows:
            run.process({"sales": [row]})
        run.process(drain=True)
        assert [row.most for row in run.sink("days")] == [2]


def test_instead_of_a_window_the_hour_is_part_of_the_key() -> None:
    hours = sales().map(lambda row: (row.shop, row.at.hour), output_type="shop string, hour int")
    last = hours.key_by("shop").drop_duplicates(keep="last", uid="last")
    counts = last.key_by("hour").aggregate(n=count(), uid="counts")
    counts.sink("hours", DeltaSink("/out", key=["hour"]))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [(shop, "rome", 5, at + timedelta(hours=hour)) for shop, hour in (("a", 0), ("b", 0), ("a", 1))]
    with run_in_memory(last._job) as run:
        run.process({"sales": rows})
        assert sorted(map(tuple, run.table("hours"))) == [(0, 1), (1, 1)]


@pytest.mark.parametrize("between", ["map", "process"])
def test_with_a_function_in_between_each_result_is_an_event(between: str) -> None:
    totals = MAKERS["aggregate"](sales().key_by("shop"))
    events = totals.map(lambda row: (row.shop, row.total), output_type=TOTAL)
    events.key_by("town").aggregate(most=max_("total"))


def test_the_newest_results_are_ranked_and_summed_up() -> None:
    stream = sales()
    totals = stream.key_by("shop", "town").aggregate(total=sum_("cents"), emit="changes", uid="totals")
    totals.key_by("town").aggregate(total=sum_("total"), uid="towns").sink(
        "towns", DeltaSink("/out", key=["town"])
    )
    totals.key_by("town").top_n(1, by="total", uid="best")
    job = totals._job
    with run_in_memory(job) as run:
        run.process({"sales": [("a", "rome", 5, None), ("b", "rome", 7, None), ("a", "rome", 4, None)]})
        assert [tuple(row) for row in run.table("towns")] == [("rome", 16)]
        assert [row.total for row in run.state("best", "top")["rome"].values()] == [9]


@pytest.mark.parametrize("made", ["aggregate", "function"])
def test_each_result_takes_the_one_before_back(made: str) -> None:
    keyed = sales().key_by("shop")
    if made == "aggregate":
        results = keyed.aggregate(total=sum_("cents"), emit="changes", uid="made")
    else:
        results = keyed.aggregate(Total(), int, "cents bigint", emit="changes", uid="made")
    results.sink("out", CollectSink())
    with run_in_memory(results._job) as run:
        run.process({"sales": [("a", "rome", 5, None), ("a", "rome", 4, None), ("b", "rome", 1, None)]})
        outputs = [
            (change.kind if hasattr(change, "kind") else change.get_row_kind()) for change in run.sink("out")
        ]
    assert outputs == [RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.INSERT]


def test_another_word_for_emit_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="emit of aggregate must be 'rows' or 'changes', not 'final'"
    ):
        sales().key_by("shop").aggregate(n=count(), emit="final")  # type: ignore[call-overload]
