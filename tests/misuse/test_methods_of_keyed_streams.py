"""Methods of keyed streams: without a key, on a feed, with a side output of another type, with a name for a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from state_engine import (
    ChangeFormat,
    DataStream,
    FileSource,
    KeyedStream,
    OutputTag,
    StatefulJob,
    Tumbling,
    Types,
    count,
    sum_,
)
from state_engine.core.errors import ConfigurationError
from state_engine.job.graph import declared_columns, type_in_code

ROW = "k string, n int, at timestamp"
OTHER = "k string, v double, at timestamp"
FEED = ChangeFormat.columns(op="op", insert=["I"], update=["U"], delete=["D"])


def rows(job: StatefulJob, name: str = "rows", schema: str = ROW, **options: Any) -> DataStream:
    return job.source(name, FileSource("/nowhere", schema=schema), event_time="at", **options)


def keyed(name: str = "rows", schema: str = ROW) -> KeyedStream:
    return rows(StatefulJob("misused"), name, schema).key_by("k")


def feed() -> KeyedStream:
    return rows(StatefulJob("misused"), schema=f"{ROW}, op string", format=FEED).key_by("k")


def pair(**options: Any) -> DataStream:
    job = StatefulJob("misused")
    left, right = rows(job, "left").key_by("k"), rows(job, "right", OTHER).key_by("k")
    return left.join(right, **{"within": 0, **options})


@pytest.mark.parametrize("name", ["join", "over", "silent", "sequence", "drop_duplicates", "window"])
def test_without_a_key_the_message_names_key_by(name: str) -> None:
    stream = rows(StatefulJob("misused"))
    with pytest.raises(
        AttributeError, match=rf"call key_by first, as in stream\.key_by\('id'\)\.{name}\(…\)"
    ):
        getattr(stream, name)
    assert callable(getattr(stream.key_by("k"), name))
    assert not hasattr(stream, name)


def test_a_name_that_no_stream_has_is_no_method_of_keyed_ones() -> None:
    with pytest.raises(AttributeError, match=r"^'DataStream' object has no attribute 'joined'$"):
        rows(StatefulJob("misused")).joined()  # type: ignore[attr-defined]


OF_FEEDS: dict[str, tuple[Callable[[KeyedStream], Any], str]] = {
    "drop_duplicates": (lambda s: s.drop_duplicates(), "With keep='last' it takes them"),
    "drop_duplicates in time": (lambda s: s.drop_duplicates(within="1 h"), "With keep='last' it takes them"),
    "over": (lambda s: s.over(c=count()), r"aggregate\(n=count\(\), …\) takes them"),
    "sequence": (
        lambda s: s.sequence("a", "b", by="k", within="1 h"),
        r"drop_duplicates\(keep='last'\) takes them",
    ),
    "silent": (lambda s: s.silent("1 h"), r"drop_duplicates\(keep='last'\) takes them"),
}


@pytest.mark.parametrize(("build", "message"), OF_FEEDS.values(), ids=OF_FEEDS)
def test_on_a_feed_the_message_names_what_takes_one(
    build: Callable[[KeyedStream], Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"takes inserts only, .*{message}"):
        build(feed())
    feed().drop_duplicates(keep="last")
    feed().aggregate(n=count())


RIGHT, WRONG = OutputTag("late", ROW), OutputTag("late", "x int")
FITTING = [
    RIGHT,
    OutputTag("late", "k string, n bigint, at timestamp"),
    OutputTag("late", Types.PICKLED_BYTE_ARRAY(allow_pickle=True)),
]
"""The type itself, a wider one, and that of any value."""
LATE: dict[str, Callable[[], Any]] = {
    "other columns": lambda: pair(late_to=WRONG),
    "other names": lambda: pair(late_to=OutputTag("late", OTHER)),
    "of the right rows": lambda: pair(late_to=RIGHT, late_right_to=RIGHT),
    "a bare value": lambda: pair(late_to=OutputTag("late", str)),
    "a narrower type": lambda: pair(late_to=OutputTag("late", "k string, n smallint, at timestamp")),
    "another type": lambda: pair(late_to=OutputTag("late", "k string, n int, at date")),
    "over": lambda: keyed().over(c=count(), late_to=WRONG),
    "sequence": lambda: keyed().sequence("a", "b", by="k", within=5, late_to=WRONG),
    "drop_duplicates": lambda: keyed().drop_duplicates(within=5, late_to=WRONG),
    "join_asof": lambda: _asof(WRONG),
    "window": lambda: keyed().window(Tumbling(5), late_to=WRONG).aggregate(n=count()),
}


def _asof(late_to: OutputTag) -> DataStream:
    job = StatefulJob("misused")
    return rows(job, "left").key_by("k").join_asof(rows(job, "right", OTHER).key_by("k"), late_to=late_to)


@pytest.mark.parametrize("build", LATE.values(), ids=LATE)
def test_late_rows_of_another_type_than_their_side_output_are_refused_while_the_job_is_built(
    build: Callable[[], Any],
) -> None:
    with pytest.raises(
        ConfigurationError, match=r"sends late rows to the side output 'late'.*declare OutputTag\('late', 'k"
    ):
        build()
    for tag in FITTING:
        pair(late_to=tag, late_right_to=OutputTag("other", OTHER))
        keyed().over(s=sum_("n"), late_to=tag)


def columns_of(stream: DataStream) -> list[str]:
    columns = declared_columns(stream._node, type_in_code)
    assert columns is not None
    return list(columns.names)


def test_the_name_of_one_column_is_a_list_of_it() -> None:
    assert columns_of(pair(take="v")) == ["k", "n", "at", "v"]
    assert columns_of(keyed().silent("1 h", take="n")) == ["k", "silent_since", "n"]
    with pytest.raises(
        ConfigurationError, match=r"silent: the column 'at' .* silent_since .*: leave it out of take"
    ):
        keyed().silent("1 h", take="at")
    with pytest.raises(ConfigurationError, match="take of join takes names of columns, not 5"):
        pair(take=5)
    with pytest.raises(ConfigurationError, match="take of silent takes names of columns, not 5"):
        keyed().silent("1 h", take=5)  # type: ignore[arg-type]
