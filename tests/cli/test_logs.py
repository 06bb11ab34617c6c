"""The engine's log: one record a commit, with its facts as fields, shown by commands as text or as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from state_engine.cli.session import LOGGER, set_up_logs
from state_engine.core.errors import SettingsError
from state_engine.machine.settings import LoggingSettings, load
from tests.support.tiny import Site


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    engine_logger = logging.getLogger(LOGGER)
    before, level = engine_logger.handlers, engine_logger.level
    yield engine_logger
    engine_logger.handlers = before
    engine_logger.setLevel(level)
    logging.getLogger().filters.clear()


@pytest.mark.spark
def test_every_commit_is_a_record_with_fields(
    tmp_path: Path, spark: SparkSession, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logs(LoggingSettings(level="info", format="json"))
    site = Site(tmp_path, spark).put({"k": ["a", "b"], "v": [1, 2]})
    site.engine().run(site.job(), requested_by="me")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    commits = [line for line in lines if "was committed" in line["event"]]
    assert len(commits) == 1
    facts = {"job": "tiny", "checkpoint_id": 1, "kind": "checkpoint", "branch": "main", "rows_in": 2}
    assert facts.items() <= commits[0].items()
    assert commits[0]["event"] == "job 'tiny': checkpoint 1 was committed (checkpoint)"
    assert (commits[0]["level"], commits[0]["requested_by"]) == ("info", "me")
    assert commits[0]["timestamp"].endswith("Z")
    assert "parent_id" not in commits[0], "the first has none"


def test_errors_are_reported_with_their_traceback_in_the_same_line(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logs(LoggingSettings(format="json"))
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger(f"{LOGGER}.core").warning("it failed", exc_info=True, extra={"job": "j"})
    logging.getLogger(f"{LOGGER}.core").info("not worth a line")
    (line,) = capsys.readouterr().err.splitlines()
    shown = json.loads(line)
    assert (shown["event"], shown["job"], shown["logger"]) == ("it failed", "j", f"{LOGGER}.core")
    assert "ValueError: two\nlines" in shown["exception"]


def test_people_get_text_and_each_line_once(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        set_up_logs(LoggingSettings(level="info"))
    logging.getLogger(f"{LOGGER}.core").info("hello")
    shown = capsys.readouterr()
    assert shown.err.count("hello") == 1
    assert shown.out == "", "what commands print stays as it is"


def test_what_py4j_logs_and_raises_is_shown_once(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    set_up_logs(LoggingSettings())
    logging.error("Exception while sending command.")
    logging.error("another")
    assert caplog.messages == ["another"]


def test_a_format_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    (tmp_path / "statelake.toml").write_text('[logging]\nformat = "xml"\n')
    with pytest.raises(SettingsError, match=r"logging\.format"):
        load(environ={}, directory=tmp_path)
    loaded = load(environ={"STATELAKE__LOGGING__LEVEL": "info"}, directory=tmp_path / "none")
    assert loaded.settings.logging.level == "info"
