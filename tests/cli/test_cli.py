"""The command line, as a user sees it: texts, exit codes, no tracebacks."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from state_engine.cli import session as cli_session
from state_engine.cli.main import app, main
from state_engine.core.errors import ConfigurationError, RootError
from state_engine.machine.settings import Settings, SparkSettings
from state_engine.monitoring import doctor
from state_engine.publishing.publication import Publication
from state_engine.storage.layout import FORMAT_VERSION
from state_engine.storage.root import MARKER, write_marker
from state_engine.storage.state.copy_directory import SUFFIX, LocalCopies
from state_engine.storage.stores.file_systems import Mount, mount_of, refuse_network_root
from tests.support.commands import in_a_new_process
from tests.support.tiny import ROWS, Site

PROJECT = Path(__file__).parents[2]
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def statelake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """What ``in_a_new_process`` does, in this process: tests of what a command prints need no Python of their own."""

    def run(*arguments: str, cwd: Path, **environ: str) -> Done:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("STATELAKE")]:
                patch.delenv(name)
            for name, value in environ.items():
                patch.setenv(name, value)
            patch.chdir(cwd)
            patch.setattr(cli_session.console, "width", 200)
            for name, known in (("argv", ["statelake", *arguments]), ("path", [*sys.path])):
                patch.setattr(sys, name, known)
            patch.setattr(sys, "excepthook", sys.excepthook)  # Typer sets its own
            with pytest.raises(SystemExit) as ended:
                main()
        shown = capsys.readouterr()
        return Done(arguments, int(ended.value.code or 0), shown.out, shown.err)

    return run


def test_config_show_prints_values_origins_and_masks(tmp_path: Path, statelake: Callable[..., Done]) -> None:
    (tmp_path / "statelake.toml").write_text(
        '[spark]\nmaster = "local[3]"\n[spark.options]\n"spark.hadoop.fs.s3a.secret.key" = "hunter2"\n'
    )
    done = statelake("config", "show", cwd=tmp_path, STATELAKE__ROOT="s3a://bucket/[prod]")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "local[3]" in lines["spark.master"]
    assert "statelake.toml" in lines["spark.master"]
    assert "s3a://bucket/[prod]" in lines["root"]
    assert "$STATELAKE__ROOT" in lines["root"]
    assert "default" in lines["jobs.modules"]
    assert "hunter2" not in done.stdout


def test_a_wrong_setting_ends_in_one_message(tmp_path: Path) -> None:
    done = in_a_new_process("config", "show", cwd=tmp_path, STATELAKE__SPARK__MASTR="x")
    assert done.returncode == 1
    assert "did you mean 'spark.master'?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "line",
    ["status", "status sums", "jobs", "run sums", "checkpoints sums", "sql sums --views", "partitions sums",
     "backfill sums --from 1 --to 2", "dead-letters list sums", "savepoint list sums", "branch list sums"],
)  # fmt: skip
def test_outside_of_a_project_a_command_says_that_there_are_no_settings(
    tmp_path: Path, statelake: Callable[..., Done], line: str
) -> None:
    looked = f"No statelake.toml was found in {tmp_path}, and STATELAKE_CONFIG names no other file: start statelake in"
    assert looked in statelake(*line.split(), cwd=tmp_path).stderr
    assert looked not in statelake(*line.split(), cwd=tmp_path, STATELAKE__ROOT="state").stderr
    (tmp_path / "statelake.toml").write_text("")
    assert looked not in statelake(*line.split(), cwd=tmp_path).stderr


def test_doctor_fails_on_missing_jars_and_says_how_to_get_them(
    tmp_path: Path, statelake: Callable[..., Done]
) -> None:
    done = statelake("doctor", "--no-spark", cwd=tmp_path, STATELAKE__SPARK__JARS_DIR=str(tmp_path))
    assert done.returncode == 1
    assert "remove spark.jars_dir" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_doctor_shows_a_java_that_cannot_be_used(tmp_path: Path, statelake: Callable[..., Done]) -> None:
    done = statelake("doctor", "--no-spark", cwd=tmp_path, STATELAKE__SPARK__JAVA_HOME="/nowhere")
    assert done.returncode == 1
    assert "spark.java_home cannot be used" in done.stdout


def test_the_command_loads_no_orchestrator_and_starts_no_java(tmp_path: Path) -> None:
    code = (
        "import sys, psutil, state_engine.cli.main\n"
        "print(sorted({'dagster', 'great_expectations'} & set(sys.modules)), psutil.Process().children())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[] []"


def test_checks_of_others_are_shown_and_their_failure_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = [EntryPoint("gone", "no_such_module:checks", doctor.OTHERS), *entry_points(group=doctor.OTHERS)]
    monkeypatch.setattr(doctor, "metadata", SimpleNamespace(entry_points=lambda group: offered))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    [check] = doctor.other_checks()  # Dagster has nothing to say where there is no instance
    assert (check.name, check.status) == ("gone", "failed")
    assert "no_such_module" in check.detail
    assert "no_such_module:checks" in check.fix


def root_check(root: Path) -> doctor.Check:
    return doctor.check_root(f"file://{root}")


def test_the_root_is_new_known_newer_foreign_or_broken(tmp_path: Path) -> None:
    assert root_check(tmp_path / "none").status == "ok"
    assert "new" in root_check(tmp_path).detail
    (tmp_path / "notes.txt").write_text("mine")
    assert root_check(tmp_path).status == "missing"
    uri = f"file://{tmp_path}"
    write_marker(uri, {"root_id": "x", "format": str(FORMAT_VERSION)})
    assert root_check(tmp_path).status == "ok"
    write_marker(uri, {"root_id": "x", "format": str(FORMAT_VERSION + 1)})
    assert "upgrade" in root_check(tmp_path).fix
    (tmp_path / MARKER).write_text("{")
    broken = root_check(tmp_path)
    assert "is damaged" in broken.detail
    assert "statelake doctor --repair" in broken.fix


def test_where_local_copies_are_and_how_much_room_they_take(
    tmp_path: Path, statelake: Callable[..., Done]
) -> None:
    place = tmp_path / "copies"
    of_operator = place / "job" / "operator"
    check = doctor.check_local_copies(LocalCopies(str(place), 2 << 30))
    assert (check.status, check.detail) == ("ok", f"{place}: 0.0 of at most 2.0 GiB")
    assert not place.exists()  # a check writes nothing
    of_operator.mkdir(mode=0o700, parents=True)
    place.chmod(0o700)
    with (of_operator / f"one{SUFFIX}").open("wb") as copy:
        copy.truncate(1 << 30)
    (of_operator / "other").write_bytes(b"no copy")
    assert (
        doctor.check_local_copies(LocalCopies(str(place), 2 << 30)).detail
        == f"{place}: 1.0 of at most 2.0 GiB"
    )
    place.chmod(0o777)
    check = doctor.check_local_copies(LocalCopies(str(place), 2 << 30))
    assert (check.status, "local_copies.directory" in check.fix) == ("warning", True)
    assert "max_size is 0" in doctor.check_local_copies(LocalCopies(str(place), 0)).detail
    done = statelake("doctor", "--no-spark", cwd=tmp_path, STATELAKE__LOCAL_COPIES__MAX_SIZE="3g")
    assert "of at most 3.0 GiB" in " ".join(done.stdout.split())


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "fuse", "lustre", "9p"])
def test_a_root_on_a_network_file_system_is_refused(tmp_path: Path, kind: str) -> None:
    mounts = [Mount(path=Path("/"), type="ext4"), Mount(path=tmp_path / "net", type=kind)]
    with pytest.raises(RootError, match=kind):
        refuse_network_root(str(tmp_path / "net" / "state"), among=mounts)
    refuse_network_root(str(tmp_path / "network"), among=mounts)
    refuse_network_root("s3a://bucket/state", among=mounts)


def test_a_link_to_a_network_file_system_is_followed(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "net")
    mounts = [Mount(path=Path("/"), type="ext4"), Mount(path=tmp_path / "net", type="nfs")]
    with pytest.raises(RootError):
        refuse_network_root(str(tmp_path / "link" / "state"), among=mounts)


def test_of_two_mounts_at_one_place_the_later_one_counts() -> None:
    mounts = [Mount(path=Path("/a"), type="autofs"), Mount(path=Path("/a"), type="nfs")]
    mount = mount_of(Path("/a/b"), mounts)
    assert mount is not None
    assert mount.is_network


def test_examine_reports_instead_of_raising(tmp_path: Path) -> None:
    checks = doctor.examine(Settings(root=str(tmp_path / "a*b")), environ={})
    assert [check.status for check in checks] == ["missing"]


@pytest.mark.long
@pytest.mark.spark
def test_spark_is_started_or_its_failure_is_readable() -> None:
    good = doctor.check_spark(SparkSettings(master="local[1]", driver_memory="1g"))
    assert good.status == "ok", good.fix
    assert "Delta Kernel" in good.detail
    bad = doctor.check_spark(SparkSettings(master="local[1]", driver_memory="1k"))
    assert bad.status == "missing"
    assert "memory" in bad.fix or "heap" in bad.fix
    assert "Traceback" not in bad.fix


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_alone_lists_the_targets() -> None:
    done = subprocess.run(["make"], cwd=PROJECT, capture_output=True, text=True, check=True)
    for target in ("setup", "demo", "test", "test-core", "check", "ui", "bench", "bench-all", "clean"):
        assert f"make {target} " in done.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_says_when_python_does_not_fit(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.lock", "requirements-uv.lock", "pyproject.toml"):
        shutil.copy(PROJECT / name, tmp_path)
    done = subprocess.run(
        ["make", "setup", "PYTHON=/no/python3"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "PYTHON=/no/python3 does not start, or is older than 3.11" in done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.spark
def test_checkpoints_are_listed_newest_last(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, spark).put(ROWS)
    site.engine().run(site.job(batch_rows=2), requested_by="the night shift")
    monkeypatch.setenv("STATELAKE__ROOT", str(tmp_path / "root"))
    listed = CliRunner().invoke(app, ["checkpoints", "tiny"])
    assert listed.exit_code == 0, listed.output
    lines = [line.split() for line in listed.output.splitlines() if "night shift" in line]
    # id, parent (none for the first), rows in, rows out, changes
    assert [line[: 4 if index == 0 else 5] for index, line in enumerate(lines)] == [
        ["1", "2", "2", "2"], ["2", "1", "2", "2", "2"]
    ]  # fmt: skip
    assert CliRunner().invoke(app, ["checkpoints", "nothing"]).exit_code == 1


@pytest.mark.spark
def test_a_job_is_operated_from_the_command_line(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, spark).put(ROWS)
    site.engine().run(site.job(batch_rows=2))
    monkeypatch.setenv("STATELAKE__ROOT", str(tmp_path / "root"))

    before = site.outputs()
    assert "the head would go from checkpoint 2 to 1" in shown("restore", "tiny", "1", "--dry-run")
    assert site.outputs() == before
    assert "sink out: 2 rows out, 0 rows back checkpoint 3 records this" in shown("restore", "tiny", "1")
    assert len(site.outputs()) == len(before) - 2
    assert "sums: would write" in shown("compact", "tiny", "--dry-run", "--full")
    assert "sums: 2 entries" in shown("compact", "tiny")
    assert "nothing changed since the last compaction" in shown("compact", "tiny")

    assert "savepoint safe of checkpoint 4" in shown("savepoint", "create", "tiny", "safe")
    assert "safe 4" in shown("savepoint", "list", "tiny").replace("│", "").replace("  ", " ")
    directory = tmp_path / "root" / "tiny" / "savepoints" / "safe"
    assert "as written" in shown("savepoint", "verify", str(directory))
    # the rows of operations that follow checkpoint 1 stay with it
    assert "would expire 2" in shown("expire-checkpoints", "tiny", "--keep-last", "1", "--dry-run")
    listed = shown("checkpoints", "tiny")
    assert "left by 3" in listed
    assert "savepoint safe" in listed
    assert "go from checkpoint" in shown("restore", "tiny", "--savepoint", "safe", "--dry-run")
    assert "would delete savepoint safe" in shown("savepoint", "delete", "tiny", "safe", "--dry-run")
    assert "is deleted" in shown("savepoint", "delete", "tiny", "safe")
    assert not directory.exists()
    assert CliRunner().invoke(app, ["branch", "promote", "tiny", "nothing"]).exit_code == 1


@pytest.fixture
def sums_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module with one job, ``sums``, of a user who has a directory of his own."""
    (tmp_path / "sums_job.py").write_text(
        f"""
from types import SimpleNamespace
from state_engine import DeltaSink, StatefulJob
FACTOR = 1
def jobs(settings):
    job = StatefulJob("sums", parallelism=2)
    rows = job.from_collection([("a", 1), ("b", 2), ("a", 3)], "k string, v bigint", name="rows", max_rows_per_batch=2)
    sums = rows.key_by("k").map_with_state(
        lambda row, total: ((row.k, FACTOR * ((total or 0) + row.v)), (total or 0) + row.v), int, "k string, v bigint"
    )
    sums.uid("totals").sink("out", DeltaSink("{tmp_path}/out"))
    return [SimpleNamespace(job=job, prepare=lambda: print("the input is prepared"))]
"""
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATELAKE__ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("STATELAKE__JOBS__MODULES", "sums_job")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "sums_job", raising=False)
    return tmp_path / "sums_job.py"


def shown(*arguments: str, exit_code: int = 0) -> str:
    """What a command prints, on one line."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == exit_code, done.output
    return " ".join(done.output.split())


@pytest.mark.spark
def test_a_job_is_run_corrected_by_a_replay_and_rescaled_from_the_command_line(
    sums_module: Path, spark: SparkSession
) -> None:
    ran = shown("run", "sums")
    assert "the input is prepared" in ran
    assert "checkpoint 1: 2 rows in, 2 to out" in ran
    assert "sums: 3 rows in, caught up, head 2" in ran
    assert shown("run", "sums").endswith("sums: nothing new")

    assert "branch replay_1: 2 micro-batches, head 4" in shown("branch", "create", "sums")
    assert "0 only in old, 0 only in new" in shown("branch", "compare", "sums", "replay_1")
    sums_module.write_text(sums_module.read_text().replace("FACTOR = 1", "FACTOR = 10"))
    del sys.modules["sums_job"]
    assert "branch promote sums fixed --expected-head 2" in shown(
        "branch", "create", "sums", "--from", "1", "--branch", "fixed"
    )
    compared = shown("branch", "compare", "sums", "fixed", "--rows", "5", exit_code=1)
    assert "1 only in old, 1 only in new" in compared
    assert "is dropped; expired: 4" in shown("branch", "drop", "sums", "replay_1")
    refused = CliRunner().invoke(app, ["branch", "promote", "sums", "fixed", "--expected-head", "1"])
    assert "head" in str(refused.exception)
    assert "sink out: 1 row out, 1 row back" in shown(
        "branch", "promote", "sums", "fixed", "--expected-head", "2"
    )
    assert "no files to delete" in shown("vacuum", "sums", "--dry-run")  # nothing is old enough

    only = ("rescale", "sums", "--parallelism", "3", "--operator", "totals")
    assert "would put in force totals: 3 of 128" in shown(*only, "--dry-run")
    assert "puts in force totals: 3 of 128" in shown(*only)
    assert "nothing changes; in force are totals: 3 of 128" in shown(*only)
    assert "declare max_parallelism=16" in shown("rescale", "sums", "--max-parallelism", "16")


@pytest.mark.spark
def test_sinks_that_wait_that_were_put_back_and_that_were_given_up(
    sums_module: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``publish-pending``; and ``restore`` and ``promote``, which skip sinks that the code does not have any more."""
    database, gone = tmp_path / "out.db", tmp_path / "gone"
    both = sums_module.read_text().replace("StatefulJob\n", "StatefulJob, SqlSink\n")
    both = both.replace(
        f'sink("out", DeltaSink("{tmp_path}/out"))',
        f'sink("gone", DeltaSink("{gone}")).sink("out", SqlSink("sqlite:///{database}", "out", lineage=True))',
    )
    assert "SqlSink(" in both
    sums_module.write_text(both)

    def rows() -> int:
        with closing(sqlite3.connect(database)) as connection:
            return int(connection.execute("SELECT count(*) FROM out").fetchone()[0])

    with monkeypatch.context() as patched:
        patched.setattr(Publication, "publish", crash)
        with pytest.raises(RuntimeError, match="crashed"):
            CliRunner().invoke(app, ["run", "sums", "--max-batches", "1"], catch_exceptions=False)
    before = database.read_bytes()
    assert shown("publish-pending", "sums").endswith("sums: published 1")
    assert shown("publish-pending", "sums").endswith("sums: everything is published")
    assert rows() == 2

    shown("run", "sums")
    database.write_bytes(before)  # put back from a backup
    behind = CliRunner().invoke(app, ["run", "sums"])
    assert "statelake publish-pending sums --from-checkpoint 1" in str(behind.exception)
    assert "no checkpoint 9" in str(
        CliRunner().invoke(app, ["publish-pending", "sums", "--from-checkpoint", "9"]).exception
    )
    assert shown("publish-pending", "sums", "--from-checkpoint", "1").endswith("sums: published 1, 2")
    assert rows() == 3

    shutil.rmtree(gone)
    sums_module.write_text(both.replace(f'.sink("gone", DeltaSink("{gone}"))', ""))
    del sys.modules["sums_job"]
    with monkeypatch.context() as patched:
        patched.setattr(
            cli_session, "registered", lambda settings: {}
        )  # as where the settings name no module of the job
        refused = str(CliRunner().invoke(app, ["restore", "sums", "1"]).exception)
        assert "gone" in refused
        assert "(--leave-alone)" in refused
        unknown = str(CliRunner().invoke(app, ["restore", "sums", "1", "--leave-alone", "oot"]).exception)
        assert "has no sinks ['oot'] to leave alone; it has ['gone', 'out']" in unknown
        planned = shown("restore", "sums", "1", "--leave-alone", "gone", "--dry-run")
        assert "sink out: 1 row out, 0 rows back" in planned
        assert "sink gone at" in planned
    assert rows() == 3
    restored = shown("restore", "sums", "1")  # the code does not have it any more
    assert f"sink gone at {gone} is left alone" in restored.replace("file://", "")
    assert "sink out: 1 row out, 0 rows back" in restored
    assert rows() == 2
    assert not gone.exists()


def crash(*_: object, **__: object) -> None:
    raise RuntimeError("crashed")


def test_a_job_that_there_is_not_is_refused_with_those_that_there_are(sums_module: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no job 'summs' in the modules \['sums_job'\]; there are"):
        cli_session.declared("summs")
