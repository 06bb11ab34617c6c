"""The engine's log, one record a commit; and what Java writes, which goes into a file that an error names."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from state_engine.cli import main
from state_engine.cli.session import LOGGER, set_up_logs
from state_engine.core.errors import SettingsError
from state_engine.machine.settings import LoggingSettings, load
from state_engine.spark.java_log import has_errors, java_is_starting, java_log, new_log_file
from tests.engine.test_messages import engine_of, of_engine
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


def test_what_is_started_inside_writes_into_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "logs" / "spark.log"
    say = [sys.executable, "-c", "import sys; sys.stderr.write('remark')"]
    with java_log(file):
        assert not file.exists()
        with java_is_starting():
            subprocess.run(say, check=True)
        subprocess.run(say, check=True, stderr=subprocess.DEVNULL)
    assert file.read_text() == "remark"


def test_without_a_file_nothing_is_moved(capfd: pytest.CaptureFixture[str]) -> None:
    with java_is_starting():
        subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('remark')"], check=True)
    assert capfd.readouterr().err == "remark"


def test_the_newest_logs_stay(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"spark-{number:02}.log").touch()
    (tmp_path / "other.log").touch()
    assert new_log_file(tmp_path).parent == tmp_path
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["other.log", *(f"spark-{number}.log" for number in range(10, 30))]


def test_warnings_of_java_alone_are_no_errors(tmp_path: Path) -> None:
    file = tmp_path / "spark.log"
    assert not has_errors(file)
    file.write_text("WARNING: Using incubator modules: jdk.incubator.vector\n")
    assert not has_errors(file)
    with file.open("a") as log:
        log.write('Setting default log level to "WARN".\n26/11/23 12:00:00 WARN NativeCodeLoader: none\n')
    assert not has_errors(file)
    with file.open("a") as log:
        log.write("12:00:00 ERROR Executor: Exception in task 0.0\n")
    assert has_errors(file)


def test_an_error_of_spark_is_one_message_and_its_stack_trace_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise PySparkException("the executor is lost;\nmany lines of a plan")

    monkeypatch.setattr(main, "app", fails)
    monkeypatch.setattr(main, "new_log_file", lambda: tmp_path / "logs" / "spark.log")
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: Spark failed: the executor is lost",
        f"Its traceback is in {tmp_path / 'logs' / 'spark.log'}",
    ]
    assert "in fails" in (tmp_path / "logs" / "spark.log").read_text()


DEFECT = "KeyError: 'x'. This is a defect of Statelake"


@pytest.mark.internal_errors
@pytest.mark.parametrize("raised", ["{}['x']", "defect()"])
def test_a_defect_is_one_message_and_its_traceback_is_in_the_file(
    raised: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a command, or of the engine that it calls."""
    engine = engine_of(of_engine("def work(job): return {}['x']"))
    fails = of_engine(f"def work(): return {raised}", defect=lambda: engine.run("totals"))
    monkeypatch.setattr(main, "app", fails)
    monkeypatch.setattr(main, "new_log_file", lambda: tmp_path / "logs" / "spark.log")
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    printed = capsys.readouterr().err
    assert DEFECT in printed
    assert f"Its traceback is in {tmp_path / 'logs' / 'spark.log'}" in printed
    assert "some_code.py" in (tmp_path / "logs" / "spark.log").read_text()


def test_an_error_of_the_code_of_jobs_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def of_user() -> None:
        raise KeyError("x")

    monkeypatch.setattr(main, "app", of_user)
    monkeypatch.setattr(main, "new_log_file", lambda: tmp_path / "spark.log")
    with pytest.raises(KeyError):
        main.main()
