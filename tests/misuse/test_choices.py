"""A declaration refuses a word that it does not know when it is made, and names those that it knows."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from dagster._utils.schedules import is_valid_cron_schedule

import state_engine
from state_engine import (
    DeltaSink,
    DeltaSource,
    FileSink,
    FileSource,
    KafkaSink,
    KafkaSource,
    StateEngine,
    StatefulJob,
    TimePartitions,
)
from state_engine import expectations as expected
from state_engine.core.cron import check_cron
from state_engine.dagster import JobOptions, output_check
from state_engine.errors import ConfigurationError
from state_engine.expectations import Expectation, OfSink, OfState, Suite
from state_engine.registry import RegisteredJob

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
