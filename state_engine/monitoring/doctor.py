"""What the machine has and lacks for running jobs: one check a line, each failure with what to do.

Guarantees: a check never raises, never writes outside of temporary directories, and says what it found.
Has no counterpart in Flink.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil

from state_engine.core.errors import MissingPackageError, RootError, SetupError, StatelakeError
from state_engine.machine.jars import DELTA_VERSION, delta_jars, jar_problems
from state_engine.machine.java import find_java_home
from state_engine.machine.settings import Settings, SparkSettings
from state_engine.machine.spark_versions import installed_spark
from state_engine.monitoring.repairs import damages
from state_engine.storage.java_gateway import java_class, java_context, jvm_of
from state_engine.storage.layout import FORMAT_VERSION
from state_engine.storage.root import MARKER, read_marker
from state_engine.storage.state.copy_directory import LocalCopies
from state_engine.storage.stores.file_systems import mount_of, mounts, refuse_network_root
from state_engine.storage.stores.files import is_local, local_path, normal_uri

MINIMUM_PYTHON = (3, 11)
LOW_DISK_BYTES = 2 * 1024**3
PROBE_TIMEOUT_SECONDS = 180

OTHERS = "statelake.doctor"
"""Group of entry points: functions that return checks of what the engine knows nothing of."""

Status = Literal["ok", "warning", "missing", "failed"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the report."""

    name: str
    status: Status
    detail: str
    fix: str = ""


def examine(settings: Settings, *, environ: Mapping[str, str]) -> list[Check]:
    """All checks that take no time; Spark's own is :func:`check_spark`."""
    try:
        root = normal_uri(settings.root)
    except StatelakeError as error:
        fix = f"{error}; or set root in statelake.toml"
        return [Check(name="State root", status="missing", detail=settings.root, fix=fix)]
    checks: list[Callable[[], Check]] = [
        check_python,
        check_packages,
        lambda: check_java(settings.spark, environ=environ),
        lambda: check_jars(settings.spark),
        lambda: check_file_system(root),
        lambda: check_disk(root),
        lambda: check_root(root),
        lambda: check_local_copies(settings.local_copies.described()),
    ]
    return [*(check() for check in checks), *other_checks()]


def other_checks() -> list[Check]:
    """What the functions of the entry points found; one that fails is a finding itself."""
    checks: list[Check] = []
    for entry in metadata.entry_points(group=OTHERS):
        try:
            checks += entry.load()()
        except MissingPackageError:
            continue  # without the package there is nothing to check
        except Exception as error:
            fix = f"repair or uninstall the package with the entry point {entry.value}"
            checks.append(Check(name=entry.name, status="failed", detail=str(error), fix=fix))
    return checks


def check_python() -> Check:
    detail = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] >= MINIMUM_PYTHON:
        return Check(name="Python", status="ok", detail=detail)
    fix = "create the environment with Python 3.11 or later: make clean setup PYTHON=python3.11"
    return Check(name="Python", status="missing", detail=detail, fix=fix)


def check_packages() -> Check:
    """PySpark and delta-spark must be of the versions that the jars belong to."""
    versions = {name: _installed(name) for name in ("pyspark", "delta-spark")}
    text = ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())
    try:
        spark = installed_spark()
    except SetupError as error:
        return Check(name="Packages", status="missing", detail=text, fix=str(error))
    if versions["delta-spark"] == DELTA_VERSION:
        return Check(name="Packages", status="ok", detail=text)
    fix = f"pip install pyspark=={spark.pyspark} delta-spark=={DELTA_VERSION}"
    return Check(name="Packages", status="missing", detail=text, fix=fix)


def check_java(settings: SparkSettings, *, environ: Mapping[str, str]) -> Check:
    try:
        java = find_java_home(environ=environ, explicit=settings.java_home)
    except StatelakeError as error:
        return Check(name="Java", status="missing", detail="none that fits", fix=str(error))
    return Check(name="Java", status="ok", detail=f"{java.version}, {java.origin}: {java.path}")


def check_jars(settings: SparkSettings) -> Check:
    """Whether Delta's jars are there, with the hashes that they should have."""
    try:
        jars = delta_jars(installed_spark())
    except SetupError as error:
        return Check(name="Delta's jars", status="missing", detail="none that fit", fix=str(error))
    directory = settings.jars_dir or jars.cache
    problems = jar_problems(jars, directory)
    if not problems:
        return Check(
            name="Delta's jars", status="ok", detail=f"{DELTA_VERSION}, hashes as pinned: {directory}"
        )
    fix = (
        f"put the jars of Delta {DELTA_VERSION} there, or remove spark.jars_dir"
        if settings.jars_dir
        else "statelake setup (fetches them)"
    )
    detail = f"{directory}: {'; '.join(problems)}"
    return Check(name="Delta's jars", status="missing", detail=detail, fix=fix)


def check_file_system(root: str) -> Check:
    """Whether the file system of the root has the locks that commits rest on."""
    name = "File system"
    if not is_local(root):
        return Check(
            name=name, status="ok", detail=f"{root}: not a local directory; commits rest on its log store"
        )
    mount = mount_of(local_path(root).resolve(), mounts())
    detail = f"{mount.type} at {mount.path}" if mount else "unknown"
    try:
        refuse_network_root(root)
    except RootError as error:
        return Check(name=name, status="missing", detail=detail, fix=str(error))
    above = _existing(local_path(root))
    if not os.access(above, os.W_OK):
        fix = f"make {above} writable for this user, or set root in statelake.toml"
        return Check(name=name, status="missing", detail=f"{detail}; {above} is not writable", fix=fix)
    return Check(name=name, status="ok", detail=detail)


def check_disk(root: str) -> Check:
    """Free space where state goes, or, for remote roots, where Spark shuffles."""
    place = _existing(local_path(root) if is_local(root) else Path.cwd())
    free = psutil.disk_usage(str(place)).free
    detail = f"{free / 1024**3:.1f} GiB free at {place}"
    if free >= LOW_DISK_BYTES:
        return Check(name="Disk", status="ok", detail=detail)
    fix = "free some space: state, shuffles and spills need it"
    return Check(name="Disk", status="warning", detail=detail, fix=fix)


def check_local_copies(copies: LocalCopies) -> Check:
    """Where this machine keeps copies of large files of state, how much room they take, and how much they may."""
    name, place = "Local copies", copies.place
    if not copies.max_bytes:
        return Check(name=name, status="ok", detail="none are kept: local_copies.max_size is 0")
    if place.exists() and not copies.is_usable():
        fix = "make it a directory that only you can write to (chmod 700), or set local_copies.directory"
        return Check(name=name, status="warning", detail=f"{place}: none are kept there", fix=fix)
    used, most = copies.used_bytes() / 1024**3, copies.max_bytes / 1024**3
    return Check(name=name, status="ok", detail=f"{place}: {used:.1f} of at most {most:.1f} GiB")


def check_root(root: str) -> Check:
    """The format of the state root, where it can be read without Spark."""
    name = "State root"
    if not is_local(root):
        return Check(name=name, status="ok", detail=f"{root}: its format is checked when a job runs")
    directory = local_path(root)
    if not directory.exists() or not any(directory.iterdir()):
        return Check(name=name, status="ok", detail=f"{directory}: new, created by the first run")
    try:
        damaged, marker = damages(root), None
        if not damaged:
            marker = read_marker(root)
    except (StatelakeError, OSError) as error:
        return Check(name=name, status="missing", detail=f"{directory} cannot be read", fix=str(error))
    if damaged:
        detail = "; ".join(f"{one.name}: {one.problem}" for one in damaged)
        fix = "; ".join(one.repair for one in damaged)
        if any(one.apply for one in damaged):
            fix = f"stop its jobs, then run: statelake doctor --repair, which will: {fix}"
        return Check(name=name, status="failed", detail=detail, fix=fix)
    if marker is None:
        fix = "set root in statelake.toml to an empty directory, or to one that Statelake made"
        return Check(
            name=name, status="missing", detail=f"{directory}: holds files, but no {MARKER}", fix=fix
        )
    version = int(marker["format"])
    if version > FORMAT_VERSION:
        fix = "upgrade Statelake: this version does not know that format"
        return Check(name=name, status="missing", detail=f"{directory}: format {version}", fix=fix)
    if version < FORMAT_VERSION:
        fix = "stop its jobs, then run: statelake upgrade"
        return Check(name=name, status="missing", detail=f"{directory}: older format {version}", fix=fix)
    return Check(name=name, status="ok", detail=f"{directory}: format {version}")


def check_spark(settings: SparkSettings) -> Check:
    """Starts Spark in a process of its own, so that whatever the JVM writes can be read and shown."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-c", "from state_engine.monitoring.doctor import probe; probe()"],
            input=settings.model_dump_json(),
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        fix = "is the machine overloaded, or spark.master unreachable? Try STATELAKE__SPARK__MASTER=local[1]"
        detail = f"no session after {PROBE_TIMEOUT_SECONDS} s"
        return Check(name="Spark", status="missing", detail=detail, fix=fix)
    if done.returncode == 0:
        seconds = time.monotonic() - started
        detail = f"{done.stdout.strip()}; started and stopped in {seconds:.1f} s"
        return Check(name="Spark", status="ok", detail=detail)
    return Check(
        name="Spark", status="missing", detail="does not start", fix=_last_words(done.stdout + done.stderr)
    )


def probe() -> None:
    """What the process of :func:`check_spark` runs: settings come in, one line goes out."""
    from state_engine.spark.session import local_session

    settings = SparkSettings.model_validate_json(sys.stdin.read())
    try:
        spark = local_session(settings, app_name="statelake-doctor")
    except StatelakeError as error:
        # Spark's own message where there is one: our wrapping would advise to run the doctor.
        sys.exit(str(error.__cause__ or error))
    # Classes that load are not yet classes that work: make Kernel's engine.
    jvm = jvm_of(spark)
    engine = java_class(jvm, "io.delta.kernel.defaults.engine.DefaultEngine")
    engine.create(java_context(spark).hadoopConfiguration())
    java = java_class(jvm, "java.lang.System").getProperty("java.version")
    print(
        f"{spark.version} on Java {java}, Delta Kernel {DELTA_VERSION} loaded, master {spark.sparkContext.master}"
    )
    spark.stop()


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next(above for above in (path, *path.parents) if above.exists())


def _last_words(output: str) -> str:
    """The relevant end of what a failed JVM and Python wrote: no stack frames."""
    noise = ("at ", "File ", "WARNING: Using incubator", "Traceback", "^", "~")
    lines = [line.strip() for line in output.splitlines()]
    relevant = [line for line in lines if line and not line.startswith(noise)]
    return (
        "\n".join(relevant[-10:]) or "it printed nothing; run the job with STATELAKE__SPARK__MASTER=local[1]"
    )
