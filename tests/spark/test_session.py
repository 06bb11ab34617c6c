"""The local session, the check of any session, and the archive of its classes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from state_engine.core.errors import SessionError, SetupError
from state_engine.machine.jars import delta_jars, jars_of
from state_engine.machine.java import JavaHome, find_java_home
from state_engine.machine.spark_versions import installed_spark
from state_engine.spark.class_archive import archive_options, class_archive, make_class_archive
from state_engine.spark.log_store import LOG_STORE_JAR
from state_engine.spark.session import check_session
from state_engine.storage.java_gateway import java_class
from tests.support.spark_submit import spark_submit, submit_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

LOOKED_AT = (
    "io.delta.kernel.defaults.engine.DefaultEngine",
    "io.delta.kernel.Meta",
    "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "org.apache.hadoop.util.VersionInfo",
)
"""Java classes that a session is checked by."""


def test_the_active_session_is_returned_in_any_thread(spark: SparkSession) -> None:
    from state_engine.spark.session import local_session

    sessions: list[Any] = []
    thread = Thread(target=lambda: sessions.append(local_session()))
    thread.start()
    thread.join()
    assert sessions[0].sparkContext is spark.sparkContext


def test_workers_run_this_python_and_times_are_utc(spark: SparkSession) -> None:
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


def test_java_takes_the_options_that_have_it_compile_later() -> None:
    """Whoever gives options of the same name has the last word: theirs come behind."""
    from state_engine.machine.java import find_java_home
    from state_engine.machine.settings import SparkSettings
    from state_engine.spark.session import COMPILED_LATER, session_options

    theirs = "-XX:Tier4CompileThreshold=15000"
    settings = SparkSettings(options={"spark.driver.extraJavaOptions": theirs})
    options = session_options(settings, jars=[], cores=2)["spark.driver.extraJavaOptions"]
    assert options.index(COMPILED_LATER) < options.index(theirs)

    java = find_java_home(environ=os.environ, explicit=None).path / "bin" / "java"
    command = [str(java), *COMPILED_LATER.split(), theirs, "-XX:+PrintFlagsFinal", "-version"]
    flags = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    values = dict(line.split()[1:4:2] for line in flags.splitlines() if " Tier4" in line)
    assert values["Tier4InvocationThreshold"] == "50000"
    assert values["Tier4CompileThreshold"] == "15000"


def test_tasks_run_in_the_python_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark goes by a variable of the process that starts Spark, and does not look at the option."""
    import os

    from state_engine.machine.settings import SparkSettings
    from state_engine.spark import session

    started: list[str] = []

    class Stop(Exception):
        pass

    def start(_: Any) -> Any:
        started.append(os.environ["PYSPARK_PYTHON"])
        raise Stop

    monkeypatch.setattr(session.SparkSession.Builder, "getOrCreate", start)
    monkeypatch.setenv("PYSPARK_PYTHON", "/of/the/environment")
    named = {"spark.pyspark.python": "/of/the/settings"}
    for master, options in (("local[1]", {}), ("local[1]", named), ("yarn", {}), ("yarn", named)):
        with pytest.raises(session.SessionError):
            session._start(SparkSettings(master=master, options=options), "test")
    assert started == [sys.executable, "/of/the/settings", "/of/the/environment", "/of/the/settings"]
    assert os.environ["PYSPARK_PYTHON"] == "/of/the/environment"


def test_another_python_is_not_forked_from_a_program_of_the_engine() -> None:
    from state_engine.machine.settings import SparkSettings
    from state_engine.spark.session import session_options

    ours = session_options(SparkSettings(), jars=[], cores=2)
    other = session_options(SparkSettings(options={"spark.pyspark.python": "/other"}), jars=[], cores=2)
    assert ("spark.python.daemon.module" in ours) == (sys.platform == "linux")
    assert "spark.python.daemon.module" not in other


def test_spark_connect_is_refused() -> None:
    # The client needs packages that nothing else here does, so its class is known by its module only.
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(SessionError, match="Spark Classic"):
        check_session(remote)


def test_a_session_without_kernel_is_refused(spark: SparkSession) -> None:

    check_session(spark)
    # What py4j answers for a class that is not on the class path: a package.
    package = java_class(spark._jvm, "io.delta.kernel.nothing_here")
    with pytest.raises(SessionError, match="class path") as caught:
        check_session(other_session(spark, {"io.delta.kernel.defaults.engine.DefaultEngine": package}))
    assert "local_session" in str(caught.value)


def other_session(spark: SparkSession, classes: dict[str, Any], version: str | None = None) -> Any:
    """The session, with other Java classes of these names, or of another version."""
    jvm = SimpleNamespace(**{name: java_class(spark._jvm, name) for name in LOOKED_AT} | classes)
    return SimpleNamespace(_jvm=jvm, conf=spark.conf, version=version or spark.version)


def test_versions_that_were_not_tried_are_refused_by_name(spark: SparkSession) -> None:
    check_session(other_session(spark, {}))
    with pytest.raises(SetupError, match=r"Spark 4\.0\.2 does not work .*pyspark==4\.1\.\d or pyspark==4\.2"):
        check_session(other_session(spark, {}, "4.0.2"))
    kernel = {"io.delta.kernel.Meta": SimpleNamespace(KERNEL_VERSION="4.1.0")}
    with pytest.raises(SessionError, match=r"has Delta Kernel 4\.1\.0, and the engine needs 4\.4\.0"):
        check_session(other_session(spark, kernel))
    hadoop = {"org.apache.hadoop.util.VersionInfo": SimpleNamespace(getVersion=lambda: "3.4.1")}
    with pytest.raises(SessionError, match=r"has Hadoop 3\.4\.1, .*use a Spark with Hadoop 3\.4\.2 or later"):
        check_session(other_session(spark, hadoop))


def in_jar(location: str | None) -> Any:
    """A Java class that is in a jar; None for one whose place is not known."""
    place = None if location is None else SimpleNamespace(getLocation=lambda: location)
    domain = SimpleNamespace(getCodeSource=lambda: place)
    return SimpleNamespace(_java_lang_class=SimpleNamespace(getProtectionDomain=lambda: domain))


def test_a_module_for_s3_of_another_hadoop_is_refused(spark: SparkSession) -> None:
    hadoop = java_class(spark._jvm, "org.apache.hadoop.util.VersionInfo").getVersion()
    s3a = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    for there in (
        f"file:/jars/hadoop-aws-{hadoop}.jar",
        f"file:/hadoop-aws-{hadoop}-amzn-1.jar",
        "file:/own.jar",
        None,
    ):
        check_session(other_session(spark, {s3a: in_jar(there)}))
    check_session(other_session(spark, {s3a: java_class(spark._jvm, "org.apache.hadoop.fs.nothing_here")}))
    other = in_jar("file:/jars/hadoop-aws-3.3.4.jar")
    with pytest.raises(
        SessionError, match=rf"has hadoop-aws 3\.3\.4 and Hadoop {hadoop}.*hadoop-aws:{hadoop}"
    ):
        check_session(other_session(spark, {s3a: other}))


@pytest.mark.parametrize("missing", ["spark.sql.extensions", "spark.sql.catalog.spark_catalog"])
def test_a_session_without_deltas_settings_is_refused(spark: SparkSession, missing: str) -> None:
    def get(key: str, default: str) -> str:
        return default if key == missing else str(spark.conf.get(key, default))

    with pytest.raises(SessionError, match="lacks Delta's"):
        check_session(SimpleNamespace(_jvm=spark._jvm, conf=SimpleNamespace(get=get), version=spark.version))


RUN = """
import sys
from state_engine import FileSink, StatefulJob, StateEngine

def run(spark):
    job = StatefulJob("numbers", parallelism=1)
    job.from_collection([1, 2], int).sink("out", FileSink(sys.argv[1] + "/out"))
    print(StateEngine(sys.argv[1] + "/root", spark).run(job).rows_in)
"""
PLAIN = """
import os
from pyspark.sql import SparkSession
from state_engine.errors import SessionError
from state_engine.machine.java import find_java_home

os.environ["JAVA_HOME"] = str(find_java_home(environ=os.environ).path)
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
if sys.argv[2:]:
    builder = builder.config("spark.jars", ",".join(sys.argv[2:]))
spark = builder.getOrCreate()
try:
    run(spark)
except SessionError as refused:
    print("SessionError:", str(refused).replace("\\n", " "))
    line = str(refused).splitlines()[1]
spark.stop()
try:
    exec(line)
    run(spark)
except SessionError as refused:
    print("refused again")
"""


@pytest.mark.long
def test_a_session_without_delta_is_replaced_as_the_message_says(tmp_path: Path) -> None:
    """Without its settings it is stopped, and another one begins; without its jars the process begins again."""

    def said(text: str, *jars: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", text, str(tmp_path), *jars], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    jars = map(str, [*jars_of(delta_jars(installed_spark())), LOG_STORE_JAR.path()])
    refused, after = said(RUN + PLAIN, *jars)
    assert refused.startswith("SessionError: this session lacks Delta's extension: stop it and start another")
    assert after == "2"

    refused, after = said(RUN + PLAIN)
    assert "start the process again" in refused
    assert after == "refused again", "so it does not say to stop the session"
    [line] = re.findall(r"from state_engine import .*local_session\(\)", refused)
    assert said(f"{RUN}\n{line}\nrun(spark)") == ["0"], "the rows of the run before"


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


_START = """
import sys
from state_engine.machine.settings import SparkSettings
from state_engine.spark.session import local_session

options = {"spark.driver.extraJavaOptions": f"{sys.argv[1]} -Xlog:class+load:file={sys.argv[2]}"}
print(local_session(SparkSettings(master="local[1]", options=options)).range(7).count())
"""


@pytest.fixture
def java() -> JavaHome:
    return find_java_home(environ=os.environ)


def test_an_archive_belongs_to_one_java_and_is_taken_only_where_it_is(java: JavaHome, tmp_path: Path) -> None:
    archive = class_archive(java, cache_dir=tmp_path)
    assert archive != class_archive(replace(java, path=tmp_path), cache_dir=tmp_path)
    assert java.version in archive.name
    assert archive_options(java, cache_dir=tmp_path) == ""
    archive.parent.mkdir()
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in archive_options(java, cache_dir=tmp_path).split()
    assert make_class_archive(java, cache_dir=tmp_path) == archive


def test_java_leaves_a_bad_archive_aside_without_a_word(java: JavaHome, tmp_path: Path) -> None:
    archive = class_archive(java, cache_dir=tmp_path)
    archive.parent.mkdir()
    archive.write_bytes(b"no archive")
    options = archive_options(java, cache_dir=tmp_path).split()
    done = subprocess.run(
        [java.executable, *options, "--version"], capture_output=True, text=True, check=True
    )
    assert java.version in done.stdout
    assert "archive" not in done.stdout + done.stderr


def test_where_java_does_not_start_there_is_no_archive(java: JavaHome, tmp_path: Path) -> None:
    missing = replace(java, path=tmp_path / "no-java")
    base = missing.path / "lib" / "server" / "classes.jsa"
    base.parent.mkdir(parents=True)
    base.touch()
    assert make_class_archive(missing, cache_dir=tmp_path / "cache") is None
    assert list((tmp_path / "cache" / "classes").iterdir()) == []


def test_a_java_without_an_archive_of_its_own_is_not_even_started(java: JavaHome, tmp_path: Path) -> None:
    stripped = replace(java, path=tmp_path / "stripped")
    assert make_class_archive(stripped, cache_dir=tmp_path / "cache") is None
    assert not (tmp_path / "cache").exists()


@pytest.mark.long
def test_spark_takes_its_classes_from_the_archive(java: JavaHome, tmp_path: Path) -> None:
    assert make_class_archive(java, cache_dir=tmp_path) is not None
    log = tmp_path / "classes.log"
    options = archive_options(java, cache_dir=tmp_path)
    command = [sys.executable, "-c", _START, options, str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "7"
    loaded = log.read_text().splitlines()
    assert sum("shared objects file (top)" in line for line in loaded) > len(loaded) / 3
