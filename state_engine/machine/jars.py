"""Delta's jars: fetched once through Spark's own Ivy, kept in the user's cache, checked at every start.

Guarantees: every jar returned has the SHA-256 pinned here, so a half-written cache, a swapped file or a
tampered download never reaches the JVM. Has no counterpart in Flink.

Only four jars are needed. What else Delta's pom asks for (Hadoop, Parquet, Jackson, …) ships with Spark,
and the Unity Catalog clients are loaded only by tables that live in such a catalog. Decision 0001.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from state_engine.core.errors import JarsError
from state_engine.machine import trust_store
from state_engine.machine.java import JavaHome, find_java_home

DELTA_VERSION = "4.4.0"

# Artifact -> SHA-256 of its jar.
PINNED: Mapping[str, str] = {
    "delta-kernel-api": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "delta-kernel-defaults": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "delta-spark_4.2_2.13": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "delta-storage": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
}

# Everything but io.delta, as Ivy globs. A local Maven repository that holds a pom without its jar makes
# Ivy fail on artifacts that Spark has anyway, so nothing of the kind may be looked up.
EXCLUDES = (
    "com.*:*",
    "commons-*:*",
    "io.airlift*:*",
    "io.unitycatalog*:*",
    "jakarta.*:*",
    "javax.*:*",
    "net.*:*",
    "org.*:*",
    "io.delta:delta-kernel-unitycatalog",
)

DOWNLOAD_TIMEOUT_SECONDS = 600


def jar_name(artifact: str) -> str:
    """File name of an artifact's jar.

    >>> jar_name("delta-storage")
    'delta-storage-4.4.0.jar'
    """
    return f"{artifact}-{DELTA_VERSION}.jar"


def default_jars_dir() -> Path:
    """Where the jars are kept when no directory is configured."""
    return platformdirs.user_cache_path("statelake") / "jars" / DELTA_VERSION


def delta_jars(directory: Path | None = None, *, java: JavaHome | None = None) -> list[Path]:
    """Paths of Delta's jars, each checked; fetches them first when the cache lacks one.

    Args:
        directory: one that already holds the jars (the setting ``spark.jars_dir``); it is only read.
            None: the user's cache.
        java: what runs Ivy when something must be fetched; None: looked up.

    Raises:
        JarsError: ``directory`` lacks a jar or holds a wrong one, or the download failed.
    """
    target = directory.expanduser() if directory else default_jars_dir()
    problems = jar_problems(target)
    if problems and directory is not None:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise JarsError(
            f"spark.jars_dir = {target} does not hold Delta's jars:\n{listed}\n"
            f"Put the jars of Delta {DELTA_VERSION} there, or remove the setting to have them fetched."
        )
    if problems:
        fetch(target, java=java or find_java_home(environ=os.environ))
    return [target / jar_name(artifact) for artifact in PINNED]


def jar_problems(directory: Path) -> list[str]:
    """What is missing or wrong in a directory of jars, one line each; empty when all is well."""
    problems = []
    for artifact, pinned in PINNED.items():
        path = directory / jar_name(artifact)
        if not path.is_file():
            problems.append(f"{path.name} is missing")
        elif _sha256(path) != pinned:
            problems.append(f"{path.name} is not the pinned file (SHA-256 {_sha256(path)})")
    return problems


def fetch(target: Path, *, java: JavaHome) -> None:
    """Resolves Delta's jars into ``target``; a jar appears there only complete and with the pinned hash.

    Raises:
        JarsError: Ivy failed, or fetched something other than what is pinned.
    """
    target.mkdir(parents=True, exist_ok=True)
    # Next to the target, so that moving a jar into place is one rename.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as name:
        workspace = Path(name)
        resolved = _resolve(workspace, java=java)
        for artifact, pinned in PINNED.items():
            draft = _take(resolved, artifact=artifact, workspace=workspace)
            if _sha256(draft) != pinned:
                raise JarsError(
                    f"{jar_name(artifact)} was fetched with SHA-256 {_sha256(draft)}, but {pinned} is pinned: "
                    f"the package mirror in use serves another file. Nothing was installed.\n{_ways_out()}"
                )
        for artifact in PINNED:
            (workspace / jar_name(artifact)).replace(target / jar_name(artifact))


def _resolve(workspace: Path, *, java: JavaHome) -> Path:
    """Has Ivy fetch the jars; returns its directory of jars, where an artifact's group is part of the name."""
    failure = _run_ivy(workspace, java=java, java_options="")
    if "PKIX path building failed" in failure:
        # Java does not know the authority behind this network; the machine, whose pip came this far, may.
        store = workspace / "authorities.jks"
        store.write_bytes(trust_store.jks(trust_store.machine_authorities()))
        failure = _run_ivy(workspace, java=java, java_options=trust_store.java_options(store))
    if failure:
        raise JarsError(f"Delta's jars could not be fetched:\n{_gist(failure)}\n{_ways_out()}")
    return workspace / "ivy" / "jars"


def _run_ivy(workspace: Path, *, java: JavaHome, java_options: str) -> str:
    """Submits an empty program to Spark with Delta as its packages; returns what went wrong, or nothing."""
    import pyspark  # Only here: a start that finds its jars does not need it.

    spark_home = Path(pyspark.__file__).parent
    program = workspace / "nothing.py"
    program.write_text("", encoding="utf-8")
    command = [str(spark_home / "bin" / "spark-submit"), "--master", "local[1]"]
    command += ["--packages", ",".join(f"io.delta:{artifact}:{DELTA_VERSION}" for artifact in PINNED)]
    command += ["--conf", f"spark.jars.excludes={','.join(EXCLUDES)}"]
    command += ["--conf", f"spark.jars.ivy={workspace / 'ivy'}"]
    if java_options:
        command += ["--driver-java-options", java_options]
    # A Spark of the machine's own, or a remote one, must not take over this run.
    unwanted = {"SPARK_REMOTE", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "SPARK_CONNECT_MODE"}
    environ = {key: value for key, value in os.environ.items() if key not in unwanted}
    environ |= {"JAVA_HOME": str(java.path), "SPARK_HOME": str(spark_home), "PYSPARK_PYTHON": sys.executable}
    try:
        done = subprocess.run(
            [*command, str(program)],
            env=environ,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"timed out after {DOWNLOAD_TIMEOUT_SECONDS} s"
    return "" if done.returncode == 0 else done.stdout + done.stderr or f"exit code {done.returncode}"


def _take(resolved: Path, *, artifact: str, workspace: Path) -> Path:
    """Copies an artifact's jar out of Ivy's directory, where its group is part of the name."""
    source = resolved / f"io.delta_{jar_name(artifact)}"
    if not source.is_file():
        raise JarsError(f"Ivy reported success, but {source.name} is not there.\n{_ways_out()}")
    return Path(shutil.copyfile(source, workspace / jar_name(artifact)))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _gist(output: str) -> str:
    """The lines of Ivy's long output that say what went wrong; its end when there are none."""
    marks = ("unresolved dependency", "not found", "failed", "exception", "timed out")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    relevant = [line for line in lines if any(mark in line.lower() for mark in marks)]
    chosen = list(dict.fromkeys(relevant or lines))
    return "\n".join(f"  {line[:300]}" for line in chosen[:3] + chosen[3:][-3:])


def _ways_out() -> str:
    names = "\n".join(f"    {jar_name(artifact)}" for artifact in PINNED)
    return (
        f"Either make Maven Central (or a mirror of it, through ~/.m2 or Ivy's settings) reachable, or bring "
        f"these files of the group io.delta from another machine:\n{names}\n"
        f"and name their directory: STATELAKE__SPARK__JARS_DIR=/path, or jars_dir in section [spark] of "
        f"statelake.toml."
    )
