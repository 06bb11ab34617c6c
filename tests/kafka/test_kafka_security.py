"""A broker that speaks TLS and lets in users and holders of a certificate only; and where their passwords are not."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import KafkaSink, KafkaSource, StateEngine, StatefulJob
from state_engine.core.errors import SinkError, SourceError
from state_engine.sources.file import FileSource
from state_engine.spark.kafka.cluster import KafkaCluster
from tests.kafka.kafka_sites import Site
from tests.kafka.topics import Topics
from tests.sources.runs import write_ids
from tests.support.kafka import Broker, Security, kafka_broker
from tests.support.postgres import PASSWORD_ENV, Server

LOGIN = "STATELAKE_TEST_KAFKA_LOGIN"
KEY_STORE = "STATELAKE_TEST_KAFKA_KEY_STORE"
"""Environment variables that jobs name."""
PASSWORD = "correct-horse-battery"
QUICK = {"default.api.timeout.ms": "3000", "request.timeout.ms": "2000"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with TLS and a user ``lake``."""
    directory = tmp_path_factory.mktemp("secured")
    with kafka_broker(directory, Security.made(directory, lake=PASSWORD)) as broker:
        yield broker


@pytest.fixture
def topics(spark: SparkSession, secured: Broker, monkeypatch: pytest.MonkeyPatch) -> Topics:
    """Its topics, for its user."""
    assert secured.security is not None
    monkeypatch.setenv(LOGIN, secured.security.login("lake"))
    return Topics(
        spark, secured, {"options": secured.security.options, "options_env": {"sasl.jaas.config": LOGIN}}
    )


@pytest.fixture
def site(topics: Topics, tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv(PASSWORD_ENV, postgres.password)
    return Site(topics, tmp_path, postgres.new_database())


def test_a_job_between_topics_of_a_secured_broker_keeps_its_secrets(site: Site, spark: SparkSession) -> None:
    """Source, function and sink in a process of its own, which logs what Java has to say."""
    site.send(60)
    process = site.process(log_level="INFO")
    assert process.wait(timeout=240) == 0, site.log()
    site.send(30)
    site.run_here(spark)
    site.check()
    log = (site.directory / "driver.log").read_text(errors="replace")
    assert "security.protocol = SASL_SSL" in log, "Kafka's clients show their settings"
    with StateEngine(site.directory / "root", spark) as engine:
        engine.savepoints("counts").create("kept")
        views = [
            engine.sql("counts", f"SELECT * FROM {view}") for view in ("checkpoints", "sources", "sinks")
        ]
        shown = repr(engine.checkpoints("counts")) + repr([view.collect() for view in views])
    plan = KafkaSource(site.topics.servers, site.given, schema="id bigint", **site.topics.access)
    shown += repr(plan) + log
    assert PASSWORD not in shown
    assert LOGIN in shown, "the name of the variable is no secret"
    files = [file for at in ("root", "table") for file in (site.directory / at).rglob("*") if file.is_file()]
    assert len(files) > 20
    assert [file for file in files if PASSWORD.encode() in file.read_bytes()] == []
    assert any(LOGIN.encode() in file.read_bytes() for file in files)


def reads(servers: str, topic: str, **access: Any) -> StatefulJob:
    job = StatefulJob("reads")
    source = KafkaSource(servers, topic, schema="id bigint", **access)
    job.source("ids", source).sink("out", KafkaSink(servers, f"{topic}-copies", **access))
    return job


def writes(servers: str, topic: str, directory: Path, **access: Any) -> StatefulJob:
    write_ids(directory / "feed" / "a.parquet", 0, 1)
    job = StatefulJob("writes")
    job.source("ids", FileSource(str(directory / "feed"))).sink("out", KafkaSink(servers, topic, **access))
    return job


WRONG = {
    "another password": '{module} required username="lake" password="wrong-horse-battery";',
    "another user": '{module} required username="wrong-horse-battery" password="x";',
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_login_is_an_error_that_does_not_show_it(
    wrong: str, topics: Topics, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, module = topics.new(), os.environ[LOGIN].split()[0]
    monkeypatch.setenv(LOGIN, WRONG[wrong].replace("{module}", module))
    access = {**topics.access, "options": {**topics.access["options"], **QUICK}}
    servers = topics.servers
    jobs = {
        SourceError: reads(servers, topic, **access),
        SinkError: writes(servers, topic, tmp_path, **access),
    }
    for kind, job in jobs.items():
        with StateEngine(tmp_path / "root", spark) as engine, pytest.raises(kind) as caught:
            engine.run(job)
        assert "SaslAuthenticationException" in str(caught.value)
        assert "horse" not in "".join(traceback.format_exception(caught.value))


def test_a_broker_whose_authority_is_unknown_is_refused(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    other = Security.made(tmp_path)
    access = {
        **topics.access,
        "options": {**topics.access["options"], **QUICK, "ssl.truststore.location": str(other.authority)},
    }
    with (
        StateEngine(tmp_path / "root", spark) as engine,
        pytest.raises(SourceError, match="SslAuthenticationException"),
    ):
        engine.run(reads(topics.servers, topics.new(), **access))


@pytest.mark.parametrize("kind", ["PEM", "PKCS12"])
def test_a_certificate_lets_in_source_and_sink(
    kind: str, topics: Topics, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    security, topic = topics.broker.security, topics.new()
    assert security is not None
    access: dict[str, Any] = {"options": security.certified(kind)}
    if kind == "PKCS12":
        monkeypatch.setenv(KEY_STORE, security.password)
        access["options_env"] = {"ssl.keystore.password": KEY_STORE}
    topics.send_rows(topic, [{"id": n} for n in range(5)])
    with StateEngine(tmp_path / "root", spark) as engine:
        engine.run(reads(security.servers, topic, **access))
    assert topics.values(f"{topic}-copies") == [{"id": n} for n in range(5)]


def test_nobody_comes_in_without_a_certificate(topics: Topics, spark: SparkSession, tmp_path: Path) -> None:
    security, topic = topics.broker.security, topics.new()
    assert security is not None
    options = {name: text for name, text in security.certified().items() if "keystore" not in name} | QUICK
    servers, access = security.servers, {"options": options}
    jobs = {
        SourceError: reads(servers, topic, **access),
        SinkError: writes(servers, topic, tmp_path, **access),
    }
    for kind, job in jobs.items():
        with (
            StateEngine(tmp_path / "root", spark) as engine,
            pytest.raises(kind, match="SslAuthenticationException"),
        ):
            engine.run(job)


@pytest.mark.parametrize(
    "login",
    [
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="a" tokenauth="true";',
        "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;",
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required ;",
    ],
)
def test_a_login_of_another_kind_needs_no_password(login: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOGIN, login)
    cluster = KafkaCluster("broker:9092", {}, {"sasl.jaas.config": LOGIN})
    assert cluster.properties()["sasl.jaas.config"] == login
