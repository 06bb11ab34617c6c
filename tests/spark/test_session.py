"""The local session and the check of any session."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.spark_submit import spark_submit, submit_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_the_active_session_is_returned_in_any_thread(spark: SparkSession) -> None:
    from state_engine.spark.session import local_session

    sessions: list[Any] = []
    thread = Thread(target=lambda: sessions.append(local_session()))
    thread.start()
    thread.join()
    assert sessions[0].sparkContext is spark.sparkContext


def test_workers_run_this_python_and_times_are_utc(spark: SparkSession) -> None:
    import sys

    executables = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert executables == [sys.executable]
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_options_of_the_user_win() -> None:
    from state_engine.machine.settings import SparkSettings
    from state_engine.spark.session import session_options

    settings = SparkSettings(
        options={"spark.sql.shuffle.partitions": "9", "spark.driver.extraJavaOptions": "-Da=b"}
    )
    options = session_options(settings, jars=[Path("/a.jar"), Path("/b.jar")], cores=4)
    assert options["spark.sql.shuffle.partitions"] == "9"
    assert options["spark.driver.extraJavaOptions"].startswith("-Dlog4j2.configurationFile=file://")
    assert options["spark.driver.extraJavaOptions"].endswith(" -Da=b")
    assert options["spark.jars"] == "/a.jar,/b.jar"
    remote = session_options(SparkSettings(master="yarn"), jars=[], cores=4)
    assert "spark.driver.bindAddress" not in remote


def test_spark_connect_is_refused() -> None:
    from state_engine.core.errors import SessionError
    from state_engine.spark.session import check_session

    # The client needs packages that nothing else here does, so its class is known by its module only.
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(SessionError, match="Spark Classic"):
        check_session(remote)


def test_a_session_without_kernel_is_refused(spark: SparkSession) -> None:
    from state_engine.core.errors import SessionError
    from state_engine.spark.session import check_session
    from state_engine.storage.delta.java_calls import java_class

    check_session(spark)
    # What py4j answers for a class that is not on the class path: a package.
    package = java_class(spark._jvm, "io.delta.kernel.nothing_here")
    jvm = SimpleNamespace(**{"io.delta.kernel.defaults.engine.DefaultEngine": package})
    with pytest.raises(SessionError, match="class path") as caught:
        check_session(SimpleNamespace(_jvm=jvm, conf=spark.conf))
    assert "local_session" in str(caught.value)


@pytest.mark.parametrize("missing", ["spark.sql.extensions", "spark.sql.catalog.spark_catalog"])
def test_a_session_without_deltas_settings_is_refused(spark: SparkSession, missing: str) -> None:
    from state_engine.core.errors import SessionError
    from state_engine.spark.session import check_session

    def get(key: str, default: str) -> str:
        return default if key == missing else str(spark.conf.get(key, default))

    with pytest.raises(SessionError, match="lacks Delta's"):
        check_session(SimpleNamespace(_jvm=spark._jvm, conf=SimpleNamespace(get=get)))


def test_a_process_of_spark_submit_has_the_session_that_was_configured_there(tmp_path: Path) -> None:
    script = tmp_path / "submitted.py"
    script.write_text(
        "from state_engine import Settings, SparkSettings, local_session\n"
        "spark = local_session(Settings(spark=SparkSettings(master='local[7]', options={'spark.app.name': 'ours'})))\n"
        "print(spark.sparkContext.master, spark.conf.get('spark.app.name'))\n"
    )
    done = subprocess.run(
        spark_submit(tmp_path, "--name", "theirs", script=script),
        env={**os.environ, **submit_environment()},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout.split() == ["local[2]", "theirs"], done.stderr[-3000:]
