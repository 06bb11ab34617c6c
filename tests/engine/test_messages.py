"""Messages that name the cause and a way out that is there; an error that nobody foresaw is named as a defect."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import state_engine
from state_engine import (
    DataStream,
    FileSource,
    KeyedProcessFunction,
    KeyedStream,
    RuntimeContext,
    StatefulJob,
    TimePartitions,
    open_state,
)
from state_engine.cli.main import app
from state_engine.core.checkpoints.checkpoint import PinnedCheckpoint
from state_engine.core.checkpoints.retention import shown_kind
from state_engine.core.errors import ConfigurationError, InternalError, SourceError, UserFunctionError
from state_engine.engine.guard import guarded
from state_engine.job.connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
from state_engine.pipes import run_for_dagster
from state_engine.spark.session import local_session
from state_engine.testing import KeyedHarness, MemoryRun, OperatorHarness, run_in_memory
from tests.core.checkpoints.rows import checkpoint
from tests.support.tiny import ROWS, Site


class NotOpened(KeyedProcessFunction):
    """A function whose ``open`` fails."""

    def open(self, runtime_context: RuntimeContext) -> None:
        raise FileNotFoundError("model.bin")

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        return []


@pytest.mark.spark
@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
def test_a_function_that_cannot_be_opened_is_not_sent_to_dead_letters(
    tmp_path: Path, spark: SparkSession, on_error: str
) -> None:
    site = Site(tmp_path, spark).put(ROWS)
    with pytest.raises(UserFunctionError, match=r"FileNotFoundError: model\.bin") as raised:
        site.engine().run(site.job(NotOpened(), on_error=on_error))
    assert "set on_error=" not in str(raised.value)
    assert "not one of a single row" in str(raised.value)
    assert site.nothing_happened()


@pytest.mark.parametrize(
    ("wire", "what"),
    [
        (
            lambda job, source: job.source("s", source, event_time=lambda row: row.at),
            "source 's': event_time",
        ),
        (lambda job, source: job.source("s", source, order_by=[lambda row: row.at]), "source 's': order_by"),
        (
            lambda job, source: job.source("s", source).transform(lambda rows: rows, order_by=[len]),
            "order_by of transform",
        ),
    ],
)
def test_functions_are_no_names_of_columns(wire: Callable[[Any, Any], Any], what: str) -> None:
    source = FileSource("/nowhere")
    with pytest.raises(
        ConfigurationError, match=f"{what} takes names of columns, not the function"
    ) as raised:
        wire(StatefulJob("j"), source)
    assert " at 0x" not in str(raised.value)


def test_one_name_of_a_column_is_no_list_of_letters() -> None:
    job = StatefulJob("j")
    job.source("s", FileSource("/nowhere"), order_by="value")
    assert job.sources["s"].order_by == ("value",)


def test_a_savepoint_is_listed_as_one() -> None:
    assert (
        shown_kind(checkpoint(3, 2, kind="retention", pinned=[PinnedCheckpoint("a", 2, "/a")])) == "savepoint"
    )
    assert shown_kind(checkpoint(3, 2, kind="retention", unpinned=["a"])) == "savepoint gone"
    assert shown_kind(checkpoint(3, 2, kind="retention", retired=[1])) == "retention"
    assert shown_kind(checkpoint(3, 2)) == "checkpoint"


def test_promote_has_the_option_that_sinks_recommend() -> None:
    shown = CliRunner().invoke(app, ["branch", "promote", "--help"], env={"COLUMNS": "200"}).output
    assert "--outputs" in shown


def test_a_partition_that_cannot_be_read_names_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    from state_engine.sources import partitioned_input

    shown: dict[str, Any] = {}

    def stop(*_: Any, **given: Any) -> None:
        shown.update(given)
        raise SourceError("cannot be read")

    monkeypatch.setattr(partitioned_input, "file_times", stop)
    monkeypatch.setattr(FileSource, "read", lambda *_, **__: None)
    days = TimePartitions("at", start="2026-01-01")
    job = StatefulJob("days", partitions=days)
    job.source("s", FileSource("/nowhere"))
    source: Any = job.sources["s"].source
    with pytest.raises(SourceError):
        source._seen(None, SimpleNamespace(labels=["f"]), days.first())
    assert (shown["job"], shown["source"]) == ("days", "s")


ENGINE = Path(state_engine.__file__).parent


def of_engine(source: str, **names: Any) -> Callable[..., Any]:
    """A function ``work`` whose code is the engine's own."""
    exec(compile(source, str(ENGINE / "sources" / "some_code.py"), "exec"), names)
    work: Callable[..., Any] = names["work"]
    return work


def engine_of(work: Callable[..., Any]) -> Any:
    """Something that users call, whose one method ``run`` is the engine's code."""

    @contextmanager
    def call() -> Iterator[None]:
        yield

    cls = guarded(type("Engine", (), {"run": of_engine("def work(self, job): return do(job)", do=work)}))
    engine: Any = cls()
    engine.context = SimpleNamespace(root="file:///root", session=None, call=call)
    return engine


RAW = {
    "KeyError": "{}['x']",
    "RecursionError": "work(job)",
    "FileNotFoundError": "open('/nowhere/at/all')",
    "OverflowError": "(2**80).to_bytes(2, 'big')",
    "JSONDecodeError": "json.loads('{')",
    "UnicodeDecodeError": "b'\\xff'.decode()",
    "AttributeError": "job.nothing",
    "AssertionError": "exec('assert False')",
}
"""Statements of an engine with a defect, by the exception that they raise."""


@pytest.mark.internal_errors
@pytest.mark.parametrize("kind", RAW)
def test_what_nobody_foresaw_is_an_error_of_ours(kind: str) -> None:
    engine = engine_of(of_engine(f"import json\ndef work(job): return {RAW[kind]}"))
    with pytest.raises(
        InternalError, match=rf"job 'totals': {kind}: .*report it with this\s+traceback"
    ) as failed:
        engine.run("totals")
    assert type(failed.value.__cause__).__name__ == kind


def test_errors_of_ours_stay_what_they_are() -> None:
    engine = engine_of(of_engine("def work(job): raise error", error=SourceError("the topic is gone")))
    with pytest.raises(SourceError, match="the topic is gone"):
        engine.run("totals")


@pytest.mark.parametrize("text", ["{", "{}"])
def test_a_function_of_the_user_fails_as_it_does(text: str) -> None:
    """Whether his code raises, or a library that it calls."""

    def of_user(job: str) -> Any:
        return json.loads(text)["x"]

    engine = engine_of(of_engine("def work(job): return of_user(job)", of_user=of_user))
    with pytest.raises((KeyError, json.JSONDecodeError)):
        engine.run("totals")


def test_arguments_that_do_not_fit_are_pythons_own_error() -> None:
    engine = engine_of(of_engine("def work(job): return job"))
    with pytest.raises(TypeError, match="unexpected keyword argument 'jbo'"):
        engine.run(jbo="totals")


def test_an_interrupt_stays_one() -> None:
    """Also where cleaning up failed because of it."""
    cleaning = "def work(job):\n    try:\n        raise KeyboardInterrupt\n    finally:\n        {}['x']"
    for source in ("def work(job): raise KeyboardInterrupt", cleaning):
        with pytest.raises(KeyboardInterrupt):
            engine_of(of_engine(source)).run("totals")


@pytest.mark.internal_errors
def test_an_interrupt_that_the_caller_handles_is_not_ours() -> None:
    engine = engine_of(of_engine("def work(job): return {}['x']"))
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(InternalError):
            engine.run("totals")


@pytest.mark.internal_errors
def test_state_without_an_engine_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_state, "read_history", of_engine("def work(root, job): return {}['x']"))
    with pytest.raises(InternalError, match=r"^KeyError: 'x'. This is a defect of Statelake"):
        open_state.read_state("/nowhere", "totals", "sum", "total")


def guard_of(cls: type) -> list[str]:
    """Public methods of a class's own, and how it is made, that are not guarded."""
    own = {n: m for n, m in vars(cls).items() if inspect.isfunction(m) and (n == "__init__" or n[0] != "_")}
    return [name for name, member in own.items() if not hasattr(member, "__wrapped__")]


BUILDERS = (
    StatefulJob, DataStream, KeyedStream, ConnectedStreams, BroadcastStream, BroadcastConnectedStream, OperatorHarness,
    KeyedHarness, MemoryRun,
)  # fmt: skip


@pytest.mark.parametrize("cls", BUILDERS)
def test_all_that_is_called_without_an_engine_is_guarded(cls: type) -> None:
    for one in cls.__mro__[:-1]:
        assert guard_of(one) == []


class Echo(KeyedProcessFunction):
    """Gives what it gets."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value


WITHOUT_ENGINE: dict[str, tuple[str, Callable[[], object]]] = {
    "a job": ("state_engine.job.job.check_name", lambda: StatefulJob("totals")),
    "a stream": (
        "state_engine.job.streams.key_of",
        lambda: StatefulJob("totals").source("rows", FileSource("/rows", schema="k string")).key_by("k"),
    ),
    "a harness": ("state_engine.testing.harness.check_parallelism", lambda: OperatorHarness(Echo())),
    "a job in memory": (
        "state_engine.testing.memory_run.MemoryJob.of",
        lambda: run_in_memory(StatefulJob("totals")),
    ),
    "a run for Dagster": ("state_engine.pipes.reporting.launched_run", run_for_dagster),
    "a session": ("state_engine.spark.session._active_session", local_session),
}
"""What users call without an engine, and a function that it calls in turn."""


@pytest.mark.internal_errors
@pytest.mark.parametrize("what", WITHOUT_ENGINE)
def test_what_nobody_foresaw_without_an_engine_is_an_error_of_ours(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, call = WITHOUT_ENGINE[what]
    monkeypatch.setattr(inside, of_engine("def work(*args, **options): return {}['x']"))
    with pytest.raises(InternalError, match=r"^KeyError: 'x'. This is a defect of Statelake"):
        call()
