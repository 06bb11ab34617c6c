"""Misuse of sinks with ``key=``, refused while they are made or while the job is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from state_engine import DeltaSink, FileSink, SqlSink, StatefulJob, StateTtlConfig, Time
from state_engine.core.errors import ConfigurationError

TYPE = "id bigint, city string, spots array<int>, at bigint"
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


def rows(job: StatefulJob, kind: Any = TYPE) -> Any:
    return job.from_collection([], kind, name="rows")


def twice(job: StatefulJob) -> None:
    rows(job).sink("out", FileSink("/nowhere")).sink("out", DeltaSink("/elsewhere", key=["id"]))


def taken(job: StatefulJob) -> None:
    rows(job).map(lambda row: row, TYPE, uid="sink_out").sink("out", DeltaSink("/nowhere", key=["id"]))


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
    "a name that another sink has": (twice, "two sinks named 'out'"),
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
