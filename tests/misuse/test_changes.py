"""Who takes inserts only is refused on a stream that changes, and aggregates that cannot be, while the job is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from state_engine import (
    AggregateFunction,
    BroadcastProcessFunction,
    CoMapFunction,
    CoProcessFunction,
    DataStream,
    DeltaSink,
    FileSink,
    FileSource,
    FilterFunction,
    ForeachBatchSink,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyedStream,
    ListCheckpointed,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    SinkFunction,
    SqlSink,
    StatefulJob,
    Tumbling,
    avg,
    count,
    max_,
    sum_,
)
from state_engine.core.errors import ConfigurationError
from state_engine.job.changing_streams import is_changing

RULES = MapStateDescriptor("rules", int, str)
TYPE = "id bigint, amount bigint"


class Seen(FilterFunction):
    def open(self, runtime_context: Any) -> None: ...

    def filter(self, value: Any) -> bool:
        return True


class Numbers(MapFunction, ListCheckpointed):
    pass


class Plain(ProcessFunction):
    pass


class Keyed(KeyedProcessFunction):
    pass


class Both(CoProcessFunction):
    pass


class KeyedBoth(KeyedCoProcessFunction):
    pass


class Mapped(CoMapFunction):
    def open(self, runtime_context: Any) -> None: ...


class Rules(BroadcastProcessFunction):
    pass


class Sent(SinkFunction):
    pass


def changes(job: StatefulJob, name: str = "accounts") -> DataStream:
    return job.from_collection([], TYPE, name=name, changing=True)


def inserts(job: StatefulJob) -> DataStream:
    return job.from_collection([], TYPE, name="inserts")


def keyed(job: StatefulJob) -> KeyedStream:
    return changes(job).key_by("id")


STATEFUL = r"may keep state, which a delete does not take back.* accepts_changes = True .*ctx.row_kind\(\)"
OWN = r"Handle each ctx.row_kind\(\) in it and say accepts_changes = True"
SHORTCUT = r"cannot take back what they withdraw: use a KeyedProcessFunction .*accepts_changes = True"

OPERATORS: dict[str, tuple[Callable[[StatefulJob], Any], str]] = {
    "a filter with keyed state": (lambda j: keyed(j).filter(Seen(), uid="op"), f"Seen .*{STATEFUL}"),
    "a map with operator state": (lambda j: changes(j).map(Numbers(), int, uid="op"), f"Numbers .*{STATEFUL}"),
    "a process function": (lambda j: changes(j).process(Plain(), int, uid="op"), f"Plain .*{OWN}"),
    "a keyed process function": (lambda j: keyed(j).process(Keyed(), int, uid="op"), f"Keyed .*{OWN}"),
    "map_with_state": (
        lambda j: keyed(j).map_with_state(lambda v, s: (v, s), int, int, uid="op"), f"map_with_state .*{SHORTCUT}"),
    "the first of two streams": (
        lambda j: changes(j).connect(inserts(j)).process(Both(), int, uid="op"), f"Both .*{OWN}"),
    "the second of two streams": (
        lambda j: inserts(j).connect(changes(j)).process(Both(), int, uid="op"), f"Both .*{OWN}"),
    "keyed connected streams": (
        lambda j: inserts(j).connect(changes(j)).key_by("id", "id").process(KeyedBoth(), int, uid="op"),
        f"KeyedBoth .*{OWN}"),
    "a map of two keyed streams": (
        lambda j: inserts(j).connect(changes(j)).key_by("id", "id").map(Mapped(), int, uid="op"),
        f"Mapped .*{STATEFUL}"),
    "rules that change": (
        lambda j: inserts(j).connect(changes(j).broadcast(RULES)).process(Rules(), int, uid="op"), f"Rules .*{OWN}"),
    "a stream that changes beside rules": (
        lambda j: changes(j).connect(inserts(j).broadcast(RULES)).process(Rules(), int, uid="op"), f"Rules .*{OWN}"),
    "a sink function": (lambda j: changes(j).add_sink(Sent(), uid="op"), f"Sent .*{OWN}"),
    "behind a map, a union and a transform": (
        lambda j: changes(j).map(lambda v: v, TYPE).union(inserts(j)).transform(lambda rows: rows)
        .process(Plain(), int, uid="op"),
        f"Plain .*{OWN}"),
}  # fmt: skip


@pytest.mark.parametrize(("wire", "message"), OPERATORS.values(), ids=OPERATORS)
def test_an_operator_that_takes_inserts_only_is_refused(
    wire: Callable[[StatefulJob], Any], message: str
) -> None:
    job = StatefulJob("refused")
    with pytest.raises(ConfigurationError, match=message) as refused:
        wire(job)
    assert "operator 'op': " in str(refused.value)
    assert (
        "takes inserts only, and its stream holds updates and deletes, too (from source 'accounts')"
        in str(refused.value)
    )
    assert "op" not in job.operators


SINKS = [
    DeltaSink("/nowhere"),
    FileSink("/nowhere"),
    SqlSink("sqlite:////nowhere", "t"),
    ForeachBatchSink(print, name="misuse_of_changes"),
]


@pytest.mark.parametrize("sink", SINKS, ids=lambda sink: type(sink).__name__)
def test_a_sink_that_takes_inserts_only_is_refused(sink: Any) -> None:
    job = StatefulJob("refused")
    ways_out = (
        r"DeltaSink or SqlSink with key=\[…\] .*process function .*accepts_changes = True.*"
        r"ForeachBatchSink\(…, accepts_changes=True\)"
    )
    for stream in (changes(job), changes(job, "others").filter(lambda v: True).key_by("id")):
        with pytest.raises(
            ConfigurationError, match=f"sink 'out': a {type(sink).__name__} takes inserts only, .*{ways_out}"
        ):
            stream.sink("out", sink)
    assert job.sinks == {}


@pytest.mark.parametrize("step", [lambda s: s, lambda s: s.filter(lambda row: True), lambda s: s.union(s)])
def test_a_sink_that_takes_inserts_only_names_the_way_out_of_windows(step: Callable[[Any], Any]) -> None:
    rows = FileSource("/nowhere", schema="k string, at timestamp")
    keyed = StatefulJob("refused").source("rows", rows, event_time="at").key_by("k")
    running = keyed.window(Tumbling(5), emit="running").aggregate(n=count(), uid="u")
    with pytest.raises(
        ConfigurationError, match=r"operator 'u'\)\. Give the window emit='final'.* Or a DeltaSink"
    ):
        step(running).sink("out", FileSink("/nowhere"))
    keyed.window(Tumbling(5), emit="final").aggregate(n=count(), uid="once").sink("out", FileSink("/nowhere"))


def test_the_message_names_the_operator_that_makes_a_stream_change() -> None:
    class Emits(KeyedProcessFunction):
        emits_changes = True

    job = StatefulJob("refused")
    latest = inserts(job).key_by("id").process(Emits(), TYPE, uid="latest")
    with pytest.raises(ConfigurationError, match=r"\(from operator 'latest'\)"):
        latest.map(lambda v: v, TYPE).sink("out", FileSink("/nowhere"))
    with pytest.raises(ConfigurationError, match=r"\(from source 'accounts', operator 'latest'\)"):
        changes(job).union(latest).key_by("id").sum("amount")


def test_late_rows_of_a_source_that_changes_are_not_diverted() -> None:
    job = StatefulJob("late")
    with pytest.raises(
        ConfigurationError, match=r"source 'accounts': late_to would separate updates.*ctx.is_late\(\)"
    ):
        job.from_collection([], TYPE, name="accounts", changing=True, late_to=OutputTag("late", TYPE))


def test_who_takes_changes_is_not_refused_and_inserts_stay_inserts() -> None:
    class Takes(KeyedProcessFunction):
        accepts_changes = True

    class Emits(Takes):
        emits_changes = True

    class Opened(Seen):
        accepts_changes = True

    def nothing(rows: Any, checkpoint_id: int) -> None: ...

    job = StatefulJob("taken")
    accounts = changes(job)
    tag = OutputTag("tag", int)
    totals = accounts.key_by("id").process(Takes(), TYPE, uid="totals")
    latest = (
        accounts.filter(Opened())
        .key_by("id")
        .filter(Opened())
        .key_by("id")
        .process(Emits(), TYPE, uid="latest")
    )
    for stream, changing in (
        (accounts, True), (accounts.map(lambda v: v, TYPE), True), (accounts.project(0), True),
        (accounts.transform(lambda rows: rows), True), (accounts.rebalance(), True), (accounts.broadcast(), True),
        (accounts.union(inserts(job)), True), (latest, True), (latest.get_side_output(tag), True),
        (totals, False), (totals.get_side_output(tag), False), (totals.map(lambda v: v, TYPE), False),
        (totals.union(latest), True),
    ):  # fmt: skip
        assert is_changing(stream._node) is changing
    totals.sink("totals", FileSink("/nowhere"))
    latest.sink("latest", ForeachBatchSink(nothing, name="latest_changes", accepts_changes=True))
    totals.key_by("id").sum("amount", uid="sums").sink("sums", FileSink("/nowhere"))


OWNERS = "owner string, amount bigint, tags array<string>"
SUM = AggregateFunction()
DECLARED = r"eclare aggregates in its place, as in aggregate\(n=count\(\), total=sum_\('amount'\)"


def by_owner(*, changing: bool) -> KeyedStream:
    return StatefulJob("refused").from_collection([], OWNERS, name="rows", changing=changing).key_by("owner")


CHANGING: dict[str, tuple[Callable[[KeyedStream], Any], str]] = {
    "a function without retract": (
        lambda s: s.aggregate(SUM, int, int, uid="u"),
        rf"operator 'u': aggregate takes inserts only.* Define retract\(self, value, accumulator\).* or d{DECLARED}"),
    "a reduction without inverse": (
        lambda s: s.reduce(lambda a, b: a, uid="u"),
        r"operator 'u': reduce takes inserts only.* Give it an inverse.*: reduce\(…, inverse=…\)"),
    "sum": (lambda s: s.sum("amount", uid="u"), rf"operator 'u': sum takes inserts only.* D{DECLARED}"),
    "min": (lambda s: s.min("amount", uid="u"), rf"operator 'u': min takes inserts only.* D{DECLARED}"),
    "max": (lambda s: s.max("amount", uid="u"), rf"operator 'u': max takes inserts only.* D{DECLARED}"),
    "min_by": (lambda s: s.min_by("amount", uid="u"), rf"operator 'u': min_by takes inserts only.* D{DECLARED}"),
    "max_by": (lambda s: s.max_by("amount", uid="u"), rf"operator 'u': max_by takes inserts only.* D{DECLARED}"),
}  # fmt: skip


@pytest.mark.parametrize(("wire", "message"), CHANGING.values(), ids=CHANGING)
def test_what_cannot_take_rows_back_is_refused_on_a_stream_that_changes(
    wire: Callable[[KeyedStream], Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        wire(by_owner(changing=True))
    assert wire(by_owner(changing=False)) is not None


NAMES = "No such column can be called function, accumulator_type, output_type, emit, ttl or uid"
WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (lambda s: s.aggregate(uid="u"), "takes an AggregateFunction with accumulator_type and output_type"),
    "both": (lambda s: s.aggregate(SUM, n=count()), r"by the name of the column that each becomes.* and not both"),
    "a column named function": (lambda s: s.aggregate(function=count()), NAMES),
    "a column named uid": (lambda s: s.aggregate(n=count(), uid=count()), NAMES),
    "a name of a field": (
        lambda s: s.aggregate(n="amount"), r"aggregate\(n='amount'\): .* an aggregate is count\(\), count\(field\),"),
    "a column of the key": (
        lambda s: s.aggregate(owner=count()), r"aggregate owner=count\(\): the key has a column of this name"),
    "a field that is not there": (
        lambda s: s.aggregate(n=sum_("amuont")),
        r"aggregate n=sum_\('amuont'\): the stream has no such field; it has \['owner', 'amount', 'tags'\]"),
    "the average of text": (
        lambda s: s.aggregate(n=avg("owner")), r"aggregate n=avg\('owner'\): the field is of type string, and this is"),
    "the greatest list": (
        lambda s: s.aggregate(n=max_("tags")), r"aggregate n=max_\('tags'\): values of type list.* have no order"),
    "an inverse that is none": (
        lambda s: s.reduce(lambda a, b: a, inverse=3), "inverse of reduce takes a ReduceFunction or a callable"),
}  # fmt: skip


@pytest.mark.parametrize(("wire", "message"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("changing", [True, False], ids=["changing", "inserts"])
def test_aggregates_that_do_not_fit_are_refused_while_they_are_built(
    wire: Callable[[Any], Any], message: str, changing: bool
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        wire(by_owner(changing=changing))
