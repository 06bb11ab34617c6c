"""A declaration refuses a word or an option that it does not know when it is made, and names those that it knows."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from dagster._utils.schedules import is_valid_cron_schedule
from pyspark.sql.datasource import DataSource

import state_engine
from state_engine import (
    DeltaSink,
    DeltaSource,
    FileSink,
    FileSource,
    KafkaSink,
    KafkaSource,
    PythonDataSource,
    SqlSink,
    StateEngine,
    StatefulJob,
    TimePartitions,
)
from state_engine import expectations as expected
from state_engine.core.cron import check_cron
from state_engine.core.errors import ConfigurationError, SetupError
from state_engine.dagster import JobOptions, output_check
from state_engine.expectations import Expectation, OfSink, OfState, Suite
from state_engine.registry import RegisteredJob
from state_engine.spark.kafka.cluster import KafkaCluster

ROWS = "k string, at timestamp"


def job(**options: Any) -> StatefulJob:
    made = StatefulJob("visits", **options)
    made.source("rows", FileSource("rows", schema=ROWS)).sink("out", DeltaSink("out"))
    return made


def source_of(**options: Any) -> object:
    return StatefulJob("visits").source(
        "rows", FileSource("rows", schema=ROWS), event_time="at", clock_delay="1 h", **options
    )


WRONG: Any = "wrong"
NONE: Any = None
ONE = Expectation(name="has_key", type="expect_column_values_to_not_be_null", arguments={"column": "k"})
SUITE = Suite(name="outputs", of=OfSink("out"), expectations=(ONE,))
PLACES: dict[str, tuple[Callable[..., object], str]] = {
    "FileSource.format": (lambda **o: FileSource("rows", schema=ROWS, **o), "parquet, csv or json"),
    "FileSource.on_change": (lambda **o: FileSource("rows", schema=ROWS, **o), "'fail' or 'ignore'"),
    "FileSource.on_bad_file": (lambda **o: FileSource("rows", schema=ROWS, **o), "'fail' or 'dead_letter'"),
    "FileSource.missing": (lambda **o: FileSource("rows", schema=ROWS, **o), "'null' or 'refuse'"),
    "FileSource.further": (lambda **o: FileSource("rows", schema=ROWS, **o), "'ignore' or 'refuse'"),
    "FileSink.format": (lambda **o: FileSink("out", **o), "parquet or csv"),
    "DeltaSource.on_change": (lambda **o: DeltaSource("rows", **o), "'fail', 'skip' or 'restart'"),
    "DeltaSource.starting_version": (lambda **o: DeltaSource("rows", **o), "'snapshot', 'latest'"),
    "KafkaSource.format": (lambda **o: KafkaSource("h:1", topic="t", schema=ROWS, **o), "'json', 'avro', 'raw'"),
    "KafkaSource.key_format": (lambda **o: KafkaSource("h:1", topic="t", schema=ROWS, **o), "'json', 'raw'"),
    "KafkaSource.on_data_loss": (lambda **o: KafkaSource("h:1", topic="t", schema=ROWS, **o), "'fail', 'reset'"),
    "KafkaSource.starting": (lambda **o: KafkaSource("h:1", topic="t", schema=ROWS, **o), "'earliest', 'latest'"),
    "KafkaSink.format": (lambda **o: KafkaSink("h:1", "t", **o), "'json', 'avro', 'raw'"),
    "KafkaSink.key_format": (lambda **o: KafkaSink("h:1", "t", **o), "'json', 'raw'"),
    "TimePartitions.every": (lambda **o: TimePartitions("at", start="2026-01-01", **o), "day, hour"),
    "TimePartitions.late": (lambda **o: TimePartitions("at", start="2026-01-01", **o), "warn, ignore, next"),
    "TimePartitions.nulls": (lambda **o: TimePartitions("at", start="2026-01-01", **o), "fail, ignore"),
    "StatefulJob.on_error": (job, "'fail' or 'dead_letter'"),
    "StatefulJob.source.watermark": (source_of, "'rows' or 'clock'"),
    "StateEngine.durability": (lambda **o: StateEngine("root", None, **o), "'sync' or 'os'"),
    "Suite.gate": (lambda **o: replace(SUITE, **o), "'stop' or 'hold'"),
    "Expectation.severity": (lambda **o: replace(ONE, **o), "'error' or 'warn'"),
}  # fmt: skip
RESULTS = {"Disposal", "PartitionStatus", "RegisteredName", "BackfillReport", "PartPlan"}
"""What the engine makes, and users read."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("word", ["wrong", "", None, "FAIL"])
def test_an_unknown_word_is_refused_when_the_declaration_is_made(place: str, word: object) -> None:
    make, known = PLACES[place]
    with pytest.raises(ConfigurationError) as refused:
        make(**{place.rpartition(".")[2]: word})
    assert known in str(refused.value)
    assert repr(word) in str(refused.value) or word in ("", None)


def annotation(kind: type, field: str) -> str:
    """The type of a field, with what its module calls otherwise; of what is imported for types only, nothing."""
    base = next(b for b in kind.__mro__ if field in vars(b).get("__annotations__", {}))
    try:
        return str(eval(vars(base)["__annotations__"][field], vars(sys.modules[base.__module__])))
    except NameError:
        return ""


def test_no_declaration_is_forgotten() -> None:
    """Whatever a class of the public names takes as a field of a few words is in the table."""
    kinds = [getattr(module, name) for module in (state_engine, expected) for name in module.__all__]
    declared = {
        f"{kind.__name__}.{field.name}"
        for kind in kinds
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__name__ not in RESULTS
        for field in dataclasses.fields(kind)
        if "Literal[" in annotation(kind, field.name)
    }
    assert declared - {*PLACES} == set()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(ONE, type="no_expectation"), "expectation 'has_key': type must name an expectation"),
        (lambda: replace(ONE, arguments=WRONG), "expectation 'has_key': arguments must be a mapping"),
        (lambda: replace(SUITE, of=WRONG), r"suite 'outputs': of must be OfSink\(...\) or OfState\(...\), not 'wrong'"),
        (lambda: replace(SUITE, expectations=()), "suite 'outputs': .* at least one"),
        (lambda: replace(SUITE, expectations=(WRONG,)), "suite 'outputs': expectations must be a tuple of Expectation"),
        (lambda: replace(SUITE, expectations=(ONE, ONE)), "suite 'outputs': two expectations are named 'has_key'"),
        (lambda: RegisteredJob(job=job(), cron="every day"), "job 'visits': cron='every day' is not a schedule"),
        (lambda: RegisteredJob(job=job(), cron="0 24 * * *"), "job 'visits': cron='0 24 .*': '24' is not a valid hour"),
        (lambda: RegisteredJob(job=job(), cron=NONE), "cron=None is not a schedule"),
        (lambda: RegisteredJob(job=job(), owners=("me",)), "job 'visits': 'me' is not an owner: give a mail address"),
        (
            lambda: RegisteredJob(job=job(), expectations=(replace(SUITE, of=OfSink("gone")),)),
            r"job 'visits', suite 'outputs': there is no sink 'gone'; there are \['out'\]",
        ),
        (
            lambda: RegisteredJob(job=job(), expectations=(replace(SUITE, of=OfState("gone", "seen")),)),
            r"job 'visits', suite 'outputs': there is no operator 'gone'; there are \[\]",
        ),
        (lambda: output_check(job(), "out", severity=WRONG), "severity must be one of .*, not 'wrong'"),
        (lambda: JobOptions(checks=(WRONG,)), "JobOptions, checks: there is no 'wrong'"),
    ],
)  # fmt: skip
def test_what_an_orchestrator_is_given_is_checked_when_it_is_declared(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize(
    "schedule",
    ["*/10 * * * *", "@daily", "@never", "0 24 * * *", "* * * *", "* * * * * *", "0 0 L * *", "0 0 * * 7", "0 0 * * 8",
     "0 0 * JAN MON-FRI", "*/0 * * * *", "1/5 * * * *", "0 0 * * mon#1", "60 * * * *", "07 * * * *", "", "@reboot"],
)  # fmt: skip
def test_a_schedule_is_one_for_dagster_too(schedule: str) -> None:
    try:
        check_cron(schedule, what="job 'visits'")
        taken = True
    except ConfigurationError:
        taken = False
    assert taken is is_valid_cron_schedule(schedule)


def test_what_is_declared_rightly_is_taken() -> None:
    registered = RegisteredJob(
        job=job(), cron="0 6 * * mon", owners=("team:lake", "a@b.org"), expectations=(SUITE,)
    )
    assert registered.expectations == (SUITE,)
    output_check(job(), "out", severity=dg.AssetCheckSeverity.WARN)


# -- options of sources and sinks -------------------------------------------------------------------------------------


class Readings(DataSource):
    pass


def text(form: str, **options: Any) -> Callable[[], Any]:
    return lambda: FileSource("in", schema="a int", format=form, options=options)  # type: ignore[arg-type]


def parquet(**options: Any) -> Callable[[], Any]:
    return lambda: FileSource("in", options=options)


def records(options: Any, **others: Any) -> Callable[[], Any]:
    return lambda: KafkaSource("b:1", "t", schema="a int", options=options, **others)


def sent(options: Any) -> Callable[[], Any]:
    return lambda: KafkaSink("b:1", "t", options=options)


NO_DICT: Any = ["header"]
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    **{
        f"{form}: {name}": (text(form, **{name: value}), message)
        for form in ("csv", "json")
        for name, value, message in [
            ("encodin", "UTF-8", "has no option 'encodin'; did you mean 'encoding'"),
            ("encoding", "UTF-99", "there is no such encoding"),
            ("multiLine", "yes", "it must be true or false"),
            ("compression", "brotli", "there is no such compression"),
            ("compression", "zstd", "leave it out"),
            ("lineSep", "||", "convert such files before"),
            ("timeZone", "Mars", "there is no time zone"),
            ("dateFormat", "QQQ", "'QQQ' is not known"),
            ("mode", "DROPMALFORMED", "which has permissive or failfast"),
            ("pathGlobFilter", "*.x", "use pattern= of FileSource"),
        ]
    },
    "csv: two names": (text("csv", sep=";", delimiter="|"), "'delimiter' and 'sep' are one option: leave one"),
    "json: two names": (text("json", charset="UTF-8", Encoding="UTF-8"), "'Encoding' and 'charset' are one option"),
    "csv: two cases": (text("csv", header="true", HEADER="false"), "'header' and 'HEADER' are one option"),
    "parquet: two cases": (parquet(mergeSchema="true", mergeschema="false"), "are one option: leave one of them out"),
    "data source: two cases": (lambda: PythonDataSource(Readings, {"a": "1", "A": "2"}), "'a' and 'A' are one option"),
    "csv: sep": (text("csv", sep=""), "separates nothing"),
    "csv: an option of json": (text("csv", allowUnquotedControlChars="true"), "has no option"),
    "json: an option of csv": (text("json", sep=";"), "has no option 'sep'"),
    "json: allowComments": (text("json", allowComments="true"), "which has false: leave it out"),
    "parquet: unknown": (parquet(mergeShema="true"), "parquet has no option 'mergeShema'; did you mean 'mergeSchema'"),
    "parquet: of csv": (parquet(header="true"), "parquet has no option 'header'"),
    "parquet: compression": (parquet(compression="zstd"), "parquet has no option 'compression'"),
    "parquet: mergeSchema": (parquet(mergeSchema="maybe"), "must be 'true' or 'false', not 'maybe'"),
    "parquet: rebase": (parquet(datetimeRebaseMode="OLD"), "must be 'EXCEPTION', 'CORRECTED' or 'LEGACY', not 'OLD'"),
    "parquet: corrupt": (parquet(ignoreCorruptFiles="true"), "must be 'false', not 'true'"),
    "parquet: modifiedAfter": (parquet(modifiedAfter="2024-01-01"), "consumes each file once"),
    "parquet: schema": (lambda: FileSource("in", schema="a itn"), "itn"),
    "no dict": (lambda: FileSource("in", options=NO_DICT), "options must be a dict"),
    "data source: no dict": (lambda: PythonDataSource(Readings, NO_DICT), "options must be a dict"),
    "kafka: no dict": (records(NO_DICT), "KafkaSource: options must be a dict"),
    "kafka: a slip": (records({"securty.protocol": "SSL"}), "did you mean 'security.protocol'"),
    "kafka: a secret's slip": (
        records({}, options_env={"sasl.jas.config": "X"}), "did you mean 'sasl.jaas.config'",
    ),
    "kafka: a choice": (records({"security.protocol": "TLS"}), "must be 'SASL_SSL', .* or 'SASL_PLAINTEXT', not 'TLS'"),
    "kafka: a number": (records({"fetch.max.bytes": "many"}), "'fetch.max.bytes' must be a whole number, not 'many'"),
    "kafka: too small": (records({"max.poll.records": "0"}), "'max.poll.records' must be at least 1, not '0'"),
    "kafka: too large": (
        records({"sasl.login.refresh.window.factor": 2}), "refresh.window.factor' must be 0.5 to 1.0, not 2",
    ),
    "kafka: a flag": (records({"check.crcs": "yes"}), "'check.crcs' must be 'true' or 'false', not 'yes'"),
    "kafka: of producers": (records({"linger.ms": "5"}), "'linger.ms' is one of producers, .* it to the KafkaSink"),
    "kafka: a secret of producers": (
        records({}, options_env={"partitioner.class": "X"}), "'partitioner.class' is one of producers",
    ),
    "kafka sink: of consumers": (
        sent({"max.poll.records": "5"}), "'max.poll.records' is one of consumers, .* it to the KafkaSource",
    ),
    "kafka sink: a slip": (sent({"compresion.type": "zstd"}), "KafkaSink: .* did you mean 'compression.type'"),
    "kafka sink: compression": (sent({"compression.type": "brotli"}), "must be 'none', .* or 'zstd', not 'brotli'"),
    "kafka sink: a number": (sent({"max.request.size": "1MB"}), "must be a whole number, not '1MB'"),
    "file sink: format": (lambda: FileSink("out", "json"), "use parquet or csv"),  # type: ignore[arg-type]
}  # fmt: skip
TAKEN: dict[str, Callable[[], Any]] = {
    "csv": text("csv", SEP="\t", header=True, nullValue="NA", encoding="UTF-16"),
    "csv: other names": text("csv", Delimiter=";", charset="latin-1"),
    "json": text("json", multiLine="true", timeZone="Europe/Rome"),
    "parquet": parquet(mergeschema="true", datetimeRebaseMode="legacy"),
    "parquet: of Hadoop": parquet(**{"parquet.encryption.kms.client.class": "x.Kms"}),
    "kafka": records({"security.protocol": "SSL", "fetch.max.bytes": 1000, "my.plugin.setting": "x"}),
    "kafka: two names alike": records({"sasl.oauthbearer.jwks.endpoint.url": "https://here"}),
    "kafka: in any case": records({"security.protocol": "ssl", "check.crcs": True, "client.rack": "r1"}),
    "kafka: of admins, too": records({"retries": "3"}),
    "kafka sink": sent({"compression.type": "zstd", "linger.ms": "5"}),
    "data source": lambda: PythonDataSource(Readings, {"host": "here"}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_option_that_cannot_be_is_refused_when_it_is_given(case: str) -> None:
    for takes in TAKEN.values():
        takes()
    make, message = REFUSED[case]
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: DeltaSource("in", header="true"),  # type: ignore[call-arg]
        lambda: DeltaSink("out", compression="zstd"),  # type: ignore[call-arg]
        lambda: FileSink("out", compression="zstd"),  # type: ignore[call-arg]
        lambda: SqlSink("sqlite:///x", "t", batch=1),  # type: ignore[call-arg]
    ],
    ids=["DeltaSource", "DeltaSink", "FileSink", "SqlSink"],
)
def test_those_without_options_take_no_other_word(make: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        make()


# -- Kafka, without Java or a broker ----------------------------------------------------------------------------------

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
