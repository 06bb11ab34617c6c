"""Options of sources and sinks are checked when they are given: names, and what they take; with the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource

from state_engine import (
    DeltaSink,
    DeltaSource,
    FileSink,
    FileSource,
    KafkaSink,
    KafkaSource,
    PythonDataSource,
    SqlSink,
)
from state_engine.core.errors import ConfigurationError


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
