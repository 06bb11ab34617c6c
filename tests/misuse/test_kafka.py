"""Sources and sinks of Kafka that are declared wrongly are refused when they are made, without Java or a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from state_engine import DeltaSource, KafkaSink, KafkaSource, StatefulJob
from state_engine.core.errors import ConfigurationError, SetupError
from state_engine.spark.kafka.cluster import KafkaCluster

SERVERS = "broker:9092"


def source(**options: Any) -> KafkaSource:
    given: dict[str, Any] = {"topic": "clicks", "schema": "user string"} | options
    return KafkaSource(SERVERS, **given)


def sink(**options: Any) -> KafkaSink:
    return KafkaSink(SERVERS, **({"topic": "totals"} | options))


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "a list of servers": (lambda: KafkaSource([SERVERS], "t", schema="a int"), "servers must be host:port"),  # type: ignore[arg-type]
    "a server without a port": (lambda: KafkaSink("broker", "t"), "KafkaSink: servers must be host:port"),
    "a password in the servers": (lambda: KafkaSink("me:secret@broker:9092", "t"), "servers must be host:port"),
    "neither topic nor pattern": (lambda: source(topic=None), "name a topic, or a pattern of topics"),
    "topic and pattern": (lambda: source(pattern="c.*"), "name a topic, or a pattern of topics; one of the two"),
    "no topics": (lambda: source(topic=[]), "topic must be a name, or a list of names"),
    "a pattern that is none": (lambda: source(topic=None, pattern="("), "is not a regular expression"),
    "JSON without a schema": (lambda: source(schema=""), "format 'json' needs a schema"),
    "Avro by DDL": (lambda: source(format="avro"), "needs the schema of a record, as JSON"),
    "raw rows with a schema": (lambda: source(format="raw"), "leave out schema, key and with_metadata"),
    "changes without a key": (lambda: source(changes=True), r"changes=True and key=\[…\] go together"),
    "a key without changes": (lambda: source(key=["user"]), r"changes=True and key=\[…\] go together"),
    "a key as text": (lambda: source(key="user", changes=True), r"must be a list of columns: \['user'\]"),
    "a raw key of two columns": (
        lambda: source(key=["a", "b"], changes=True, key_format="raw"), "key_format='raw' is the text of one column",
    ),
    "no offsets a batch": (lambda: source(max_offsets_per_batch=0), "max_offsets_per_batch must be at least 1, not 0"),
    "a secret among the options": (
        lambda: source(options={"sasl.jaas.config": "…"}), r"options_env=\{'sasl.jaas.config': 'MY_VARIABLE'\}",
    ),
    "a key store's password": (lambda: sink(options={"ssl.key.password": "…"}), "holds a secret"),
    "an option that is ours": (
        lambda: source(options={"isolation.level": "read_uncommitted"}), r"\['isolation.level'\] are set by Statelake",
    ),
    "a topic that is none": (lambda: sink(topic="my topic"), "'my topic' cannot name a topic"),
    "markers among the rows": (lambda: sink(marker_topic="totals"), "markers need a topic of their own"),
    "a sink's key as text": (lambda: sink(key="user"), r"must be a list of columns: \['user'\]"),
    "a sink of Avro without a schema": (
        lambda: sink(format="avro"), "KafkaSink of format 'avro' needs the schema of a record, as JSON",
    ),
    "a sink of Avro by a type that is no record": (
        lambda: sink(format="avro", schema='"string"'), "KafkaSink of format 'avro' needs the schema of a record",
    ),
    "a sink of JSON with a schema": (lambda: sink(schema="{}"), "schema= is that of Avro: set format='avro'"),
    "a key of raw rows": (lambda: sink(format="raw", key=["k"]), "have their key in the column key"),
    "transactions without rows": (
        lambda: sink(max_rows_per_transaction=0), "max_rows_per_transaction must be at least 1, not 0",
    ),
    "no time": (lambda: sink(transaction_timeout=0), "transaction_timeout must be longer than nothing"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_with_what_to_do(mistake: str) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises(ConfigurationError, match=message):
        make()


LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
WHOLE = f'{LOGIN} username="me" password="a \\" secret;";'


def test_a_secret_is_asked_for_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = KafkaCluster(SERVERS, {"security.protocol": "SASL_SSL"}, {"sasl.jaas.config": "LAKE_JAAS"})
    with pytest.raises(SetupError, match=r"the environment variable LAKE_JAAS, which holds sasl.jaas.config"):
        cluster.properties()
    monkeypatch.setenv("LAKE_JAAS", WHOLE)
    assert cluster.properties()["sasl.jaas.config"] == WHOLE
    assert "secret" not in repr(cluster) + str(cluster.to_json())
    assert KafkaCluster.from_json(cluster.to_json()) == cluster


@pytest.mark.parametrize(
    "wrong",
    [
        "a-secret",
        "a-secret ;",
        "me a-secret;",
        WHOLE[:-1],
        f"{LOGIN} a-secret;",
        f'{LOGIN} password="a-secret;',
    ],
)
def test_what_is_no_login_is_refused_without_showing_it(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka would quote parts of it: of a password, where that alone stands in the variable."""
    monkeypatch.setenv("LAKE_JAAS", wrong)
    with pytest.raises(SetupError, match=r"LAKE_JAAS must hold sasl.jaas.config as a whole") as caught:
        KafkaCluster(SERVERS, {}, {"sasl.jaas.config": "LAKE_JAAS"}).properties()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("login", "missing"),
    [
        (f'{LOGIN} username="a-secret";', "with a password,"),
        (f'{LOGIN} username="a-secret" password="";', "with a password,"),
        (f'{LOGIN} username="me" note="password=a-secret";', "with a password,"),
        (f"{LOGIN} password=a-secret;", "with a username,"),
        (f"{LOGIN} ;", "with a username and a password,"),
        (f'{SCRAM} username="a-secret";', "with a password,"),
    ],
)
def test_a_login_without_a_name_or_a_password_is_refused(
    login: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's clients would try until their patience ends, and then tell of that."""
    monkeypatch.setenv("LAKE_JAAS", login)
    with pytest.raises(
        SetupError, match=f"LAKE_JAAS must hold sasl.jaas.config as a whole, {missing}"
    ) as caught:
        KafkaCluster(SERVERS, {}, {"sasl.jaas.config": "LAKE_JAAS"}).properties()
    assert "secret" not in str(caught.value)


def test_only_a_sink_with_keys_takes_changes() -> None:
    changes = StatefulJob("feed").source("rows", DeltaSource("rows", changes=True))
    with pytest.raises(
        ConfigurationError, match="a KafkaSink takes inserts only, and its stream holds updates"
    ):
        changes.sink("out", sink())
    changes.sink("out", sink(key=["user"]))
