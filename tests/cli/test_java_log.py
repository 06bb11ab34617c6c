"""What Java writes goes into a file, and an error names it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from state_engine.cli import main
from state_engine.spark.java_log import has_errors, java_is_starting, java_log, new_log_file
from tests.engine.test_guard import engine_of, of_engine


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
