"""Messages that name the cause and a way out that is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from state_engine import FileSource, KeyedProcessFunction, RuntimeContext, StatefulJob, TimePartitions
from state_engine.cli.main import app
from state_engine.core.checkpoints.checkpoint import PinnedCheckpoint
from state_engine.core.checkpoints.retention import shown_kind
from state_engine.core.errors import ConfigurationError, SourceError, UserFunctionError
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
