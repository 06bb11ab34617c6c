"""What cannot be published, or shown by a table or a keyed sink, is refused before anything is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from state_engine import (
    DataStream,
    DeltaSink,
    DeltaStateTable,
    FileSink,
    KeyedProcessFunction,
    MapStateDescriptor,
    Row,
    RowKind,
    RuntimeContext,
    SqlSink,
    StatefulJob,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
    count,
)
from state_engine.core.errors import ConfigurationError, InvalidNameError, UserFunctionError
from state_engine.testing import CollectSink, run_in_memory

TYPE = "account string, amount bigint"
TABLE = DeltaStateTable("/data/balance")
TAKEN = "job 'accounts' has two sinks named 'balance': rename one"


class Balance(KeyedProcessFunction):
    """Two states."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.balance = runtime_context.get_state(ValueStateDescriptor("balance", int))
        self.shops = runtime_context.get_map_state(MapStateDescriptor("shops", str, int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.balance.update(value.amount)
        yield value


def balances(job: StatefulJob) -> DataStream:
    payments = job.from_collection([("ada", 5)], TYPE, name="payments")
    return payments.key_by("account").process(Balance(), output_type=TYPE, uid="balances")


def twice(job: StatefulJob) -> DataStream:
    stream = balances(job)
    stream.publish_state("balance", TABLE)
    return stream


def with_sink(job: StatefulJob) -> DataStream:
    stream = balances(job)
    stream.sink("balance", DeltaSink("/data/out"))
    return stream


WIRED: dict[str, tuple[Callable[[StatefulJob], Any], type[Exception], str]] = {
    "a path in place of a table": (
        lambda j: balances(j).publish_state("balance", "/data/balance"),  # type: ignore[arg-type]
        ConfigurationError,
        r"published table 'balance': '/data/balance' is not one; use DeltaStateTable\(path\), or SqlStateTable",
    ),
    "a sink in place of a table": (
        lambda j: balances(j).publish_state("balance", DeltaSink("/data/balance")),  # type: ignore[arg-type]
        ConfigurationError,
        r"published table 'balance': DeltaSink\(.* is not one; use DeltaStateTable\(path\)",
    ),
    "the state of a stream without key": (
        lambda j: j.from_collection([], TYPE).map(lambda v: v, TYPE, uid="m").publish_state("s", TABLE),
        ConfigurationError,
        "publish_state: operator 'm' is on a stream without key, so it has no keyed state to show; call key_by",
    ),
    "a stream of a source": (
        lambda j: j.from_collection([], TYPE).publish_state("s", TABLE),
        ConfigurationError,
        "publish_state is about the operator that makes a stream, and no operator makes this DataStream",
    ),
    "one name for two tables": (
        lambda j: twice(j).publish_state("balance", DeltaStateTable("/data/other")),
        ConfigurationError, TAKEN,
    ),
    "one table for two states": (
        lambda j: twice(j).publish_state("shops", DeltaStateTable("file:///data/balance/")),
        ConfigurationError,
        "published table 'shops': file:///data/balance is the published table 'balance' already, and a table shows one",
    ),
    "the table of another sink with a key": (
        lambda j: twice(j).sink("latest", DeltaSink("/data/balance", key=["account"])),
        ConfigurationError,
        "published table 'latest': file:///data/balance is the published table 'balance' already",
    ),
    "the name of a sink": (lambda j: with_sink(j).publish_state("balance", TABLE), ConfigurationError, TAKEN),
    "a sink with the name of a table": (
        lambda j: twice(j).sink("balance", DeltaSink("/data/out")), ConfigurationError, TAKEN),
    "a name that can be none": (
        lambda j: balances(j).publish_state("balance", TABLE, name="my balance"), InvalidNameError,
        "'my balance' cannot name a published table: use lower-case letters"),
}  # fmt: skip


@pytest.mark.parametrize(("wire", "error", "message"), WIRED.values(), ids=WIRED)
def test_what_cannot_be_published_is_refused_while_it_is_built(
    wire: Callable[[StatefulJob], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        wire(StatefulJob("accounts"))
    assert isinstance(refused.value, error)


STARTED: dict[str, tuple[Callable[[StatefulJob], Any], str]] = {
    "a state that the function does not have": (
        lambda j: balances(j).publish_state("balnce", TABLE),
        r"job 'accounts', table 'balnce': operator 'balances' has no state 'balnce'; its function declares "
        r"\['balance', 'shops'\] in open. Correct the name in publish_state, or declare the state in open"),
    "a state that declared aggregates do not have": (
        lambda j: j.from_collection([], TYPE).key_by("account").aggregate(n=count()).uid("totals")
        .publish_state("n", TABLE),
        r"operator 'totals' has no state 'n'; its function declares \['aggregates'\] in open"),
    "two columns of one name": (
        lambda j: balances(j).publish_state("shops", TABLE, map_key="account"),
        r"operator 'balances', state 'shops': a table of it would have two columns \['account'\]. Rename the field; "
        "for the key of a map, name its column with map_key="),
    "fields of keys that have none": (
        lambda j: balances(j).publish_state("shops", TABLE, map_key=None),
        "operator 'balances', state 'shops': map_key=None gives a column to each field of a map's keys, and it has no "
        "keys that are records: leave map_key out"),
    "fields of keys of no map": (
        lambda j: balances(j).publish_state("balance", TABLE, map_key=None), "state 'balance': map_key=None .* leave"),
}  # fmt: skip


@pytest.mark.parametrize(("wire", "message"), STARTED.values(), ids=STARTED)
def test_what_no_table_can_show_is_refused_before_anything_is_committed(
    wire: Callable[[StatefulJob], Any], message: str
) -> None:
    job = StatefulJob("accounts")
    wire(job)
    with run_in_memory(job) as run:
        with pytest.raises(ConfigurationError, match=message):
            run.run()
        assert run.checkpoints() == []


class Kinds(KeyedProcessFunction):
    """Puts out a delete, and does not say that it does."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield Row.of_kind(RowKind.DELETE, account=value.account, amount=value.amount)


def test_a_delete_of_a_function_that_does_not_say_that_it_emits_changes_is_refused() -> None:
    job = StatefulJob("accounts")
    payments = job.from_collection([("ada", 5)], TYPE, name="payments").key_by("account")
    payments.process(Kinds(), output_type=TYPE, uid="kinds").sink("out", CollectSink())
    with run_in_memory(job) as run:
        with pytest.raises(
            UserFunctionError,
            match=r"operator 'kinds'.*: its row kind is -D, .* A process function that puts them out says emits",
        ):
            run.run()
        assert run.checkpoints() == []


PLACES = "id bigint, city string, spots array<int>, at bigint"
TTL = StateTtlConfig.new_builder(Time.minutes(1)).build()

OPTIONS = {
    "a key that is text": ({"key": "id"}, r"key='id' must be a list of columns: \['id'\]"),
    "a key that is no name": ({"key": [7]}, r"key= takes names of columns, not 7"),
    "a key that names a column twice": ({"key": ["id", "id"]}, "names the column 'id' twice"),
    "a sequence that is text": ({"key": ["id"], "sequence": "at"}, r"must be a list of columns: \['at'\]"),
    "a sequence of the key": ({"key": ["id"], "sequence": ["id"]}, "'id', which is part of the key"),
    "a time that is no TTL": ({"key": ["id"], "ttl": 5}, "ttl= takes a StateTtlConfig, not 5"),
    "lineage with a key": ({"key": ["id"], "lineage": True}, "lineage=True does not go with key=.*Leave it out"),
    "sharing with a key": ({"key": ["id"], "shared": True}, "shared=True does not go with key=.*adopt=True"),
    "a sequence without a key": ({"sequence": ["at"]}, r"sequence= is about the last row of each key: add key="),
    "a TTL without a key": ({"ttl": TTL}, r"ttl= is about the last row of each key: add key="),
    "adopting without a key": ({"adopt": True}, r"adopt= is about the last row of each key: add key="),
}  # fmt: skip


@pytest.mark.parametrize(("options", "message"), OPTIONS.values(), ids=OPTIONS)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"DeltaSink: .*{message}"):
        DeltaSink("/nowhere", **options)
    with pytest.raises(ConfigurationError, match=f"SqlSink: .*{message}"):
        SqlSink("sqlite:////nowhere.db", "t", **options)


def rows(job: StatefulJob, kind: Any = PLACES) -> Any:
    return job.from_collection([], kind, name="rows")


def two_sinks(job: StatefulJob) -> None:
    rows(job).sink("out", FileSink("/nowhere")).sink("out", DeltaSink("/elsewhere", key=["id"]))


def taken(job: StatefulJob) -> None:
    rows(job).map(lambda row: row, PLACES, uid="sink_out").sink("out", DeltaSink("/nowhere", key=["id"]))


WIRING: dict[str, tuple[Callable[[StatefulJob], Any], str]] = {
    "a key that rows do not have": (
        lambda job: rows(job).sink("out", DeltaSink("/nowhere", key=["no"])),
        r"sink 'out': LastRow: there is no column \['no'\]; a row has \['id', 'city', 'spots', 'at'\]"),
    "a sequence that rows do not have": (
        lambda job: rows(job).sink("out", DeltaSink("/nowhere", key=["id"], sequence=["no"])),
        r"sink 'out': LastRow: there is no column \['no'\]"),
    "a sequence without an order": (
        lambda job: rows(job).sink("out", DeltaSink("/nowhere", key=["id"], sequence=["spots"])),
        "sink 'out': LastRow: the sequence column 'spots' has the type .*which has no order"),
    "rows of a key alone": (
        lambda job: rows(job, "id bigint").sink("out", DeltaSink("/nowhere", key=["id"])),
        r"sink 'out': LastRow: a row has no column besides \['id'\]"),
    "bare values": (
        lambda job: rows(job, int).sink("out", SqlSink("sqlite:////nowhere.db", "t", key=["value"])),
        "sink 'out': its stream has bare values, and a SqlSink with key= needs rows with named columns"),
    "a name that another sink has": (two_sinks, "two sinks named 'out'"),
    "a name whose operator another one has": (taken, "'sink_out' is taken"),
}  # fmt: skip


@pytest.mark.parametrize(("wire", "message"), WIRING.values(), ids=WIRING)
def test_what_a_keyed_sink_cannot_take_is_refused_while_the_job_is_built(
    wire: Callable[[StatefulJob], Any], message: str
) -> None:
    job = StatefulJob("refused")
    with pytest.raises(ConfigurationError, match=message):
        wire(job)
    assert not job.published
