"""Jars that the wheels do not bring: fetched once through Spark's own Ivy, kept in the user's cache, always checked.

Guarantees: every jar returned has the SHA-256 pinned here, so a half-written cache, a swapped file or a tampered
download never reaches the JVM. Has no counterpart in Flink.

Only four jars of Delta are needed. What else its pom asks for (Hadoop, Parquet, Jackson, …) ships with Spark, and the
Unity Catalog clients are loaded only by tables that live in such a catalog. Decision 0001. Those of S3A are fetched
where they are asked for (``statelake setup --s3``): Hadoop's module and the modules of Amazon's SDK that it uses, 13 MB
instead of the bundle of 700. So are those of Kafka (``statelake setup --kafka``): Spark's reader, Kafka's clients and
Spark's Avro.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from state_engine.core.errors import JarsError
from state_engine.machine import trust_store
from state_engine.machine.java import JavaHome, find_java_home
from state_engine.machine.spark_versions import SPARK_VERSIONS, SparkVersion

DELTA_VERSION = "4.4.0"


@dataclass(frozen=True)
class JarSet:
    """Jars that are fetched together.

    Attributes:
        excludes: what their poms ask for besides, as Ivy's patterns, which is not to be fetched.
    """

    name: str
    directory: str
    pinned: Mapping[str, str]
    excludes: tuple[str, ...]
    setup: str

    @property
    def cache(self) -> Path:
        return platformdirs.user_cache_path("statelake") / "jars" / self.directory

    def paths(self, directory: Path) -> list[Path]:
        return [directory / jar_name(coordinate) for coordinate in self.pinned]


def jar_name(coordinate: str) -> str:
    """File name of the jar of ``group:artifact:version``.

    >>> jar_name("io.delta:delta-storage:4.4.0")
    'delta-storage-4.4.0.jar'
    """
    _, artifact, version = coordinate.split(":")
    return f"{artifact}-{version}.jar"


def _pins(file: str) -> dict[str, str]:
    """The lines of a file of this package, ``group:artifact:version SHA-256`` each."""
    lines = (Path(__file__).parent / file).read_text(encoding="utf-8").splitlines()
    return dict(line.split() for line in lines if not line.startswith("#"))


def delta_package(spark: SparkVersion) -> str:
    """``group:artifact:version`` of Delta for a version of Spark.

    >>> delta_package(SPARK_VERSIONS["4.2"])
    'io.delta:delta-spark_4.2_2.13:4.4.0'
    """
    return f"io.delta:delta-spark_{spark.name}_2.13:{DELTA_VERSION}"


def delta_jars(spark: SparkVersion) -> JarSet:
    """Delta and its Kernel, which is the same for every version of Spark."""
    others = {delta_package(one) for one in SPARK_VERSIONS.values() if one != spark}
    return JarSet(
        name="Delta's jars",
        directory=DELTA_VERSION,
        pinned={jar: digest for jar, digest in _pins("delta_jars.txt").items() if jar not in others},
        # Everything but io.delta. A local Maven repository that holds a pom without its jar makes Ivy fail on
        # artifacts that Spark has anyway, so nothing of the kind may be looked up.
        excludes=(
            "com.*:*",
            "commons-*:*",
            "io.airlift*:*",
            "io.unitycatalog*:*",
            "jakarta.*:*",
            "javax.*:*",
            "net.*:*",
            "org.*:*",
            "io.delta:delta-kernel-unitycatalog",
        ),
        setup="statelake setup",
    )


def s3_jars(spark: SparkVersion) -> JarSet:
    return JarSet(
        name="the jars of S3A",
        directory=f"s3a-{spark.hadoop}",
        pinned=_pins(f"s3_jars_hadoop_{spark.hadoop}.txt"),
        # What Spark has, and the bundle in whose place the modules come.
        excludes=(
            "com.*:*",
            "commons-*:*",
            "io.netty*:*",
            "org.apache.httpcomponents*:*",
            "org.slf4j:*",
            "org.wildfly*:*",
            "software.amazon.awssdk:bundle",
        ),
        setup="statelake setup --s3",
    )


def kafka_jars(spark: SparkVersion) -> JarSet:
    """Spark's reader of Kafka with Kafka's clients, and Spark's Avro."""
    return JarSet(
        name="the jars of Kafka",
        directory=f"kafka-{spark.pyspark}",
        pinned=_pins(f"kafka_jars_spark_{spark.name}.txt"),
        # What Spark has.
        excludes=(
            "at.yawk*:*",
            "com.*:*",
            "commons-*:*",
            "org.apache.avro:*",
            "org.apache.hadoop:*",
            "org.lz4:*",
            "org.scala-lang*:*",
            "org.slf4j:*",
            "org.tukaani:*",
            "org.xerial*:*",
        ),
        setup="statelake setup --kafka",
    )


DOWNLOAD_TIMEOUT_SECONDS = 600


def jars_of(which: JarSet, directory: Path | None = None, *, java: JavaHome | None = None) -> list[Path]:
    """Paths of a set of jars, each checked; fetches them first when the cache lacks one.

    Args:
        directory: one that already holds the jars (the setting ``spark.jars_dir``); it is only read.
            None: the user's cache.
        java: what runs Ivy when something must be fetched; None: looked up.
    """
    target = directory.expanduser() if directory else which.cache
    problems = jar_problems(which, target)
    if problems and directory is not None:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise JarsError(
            f"spark.jars_dir = {target} does not hold {which.name}:\n{listed}\n"
            f"Put them there ({which.directory}), or remove the setting to have them fetched."
        )
    if problems:
        fetch(which, target, java=java or find_java_home(environ=os.environ))
    return which.paths(target)


def jars_that_are_there(which: JarSet, directory: Path | None = None) -> list[Path]:
    """Paths of a set of jars, each checked; none where the set was never fetched."""
    target = directory.expanduser() if directory else which.cache
    paths = which.paths(target)
    if not any(path.exists() for path in paths):
        return []
    if problems := jar_problems(which, target):
        raise JarsError(
            f"{target} holds {which.name}, but {'; '.join(problems)}: run {which.setup}, which fetches them again"
        )
    return paths


def jar_problems(which: JarSet, directory: Path) -> list[str]:
    """What is missing or wrong in a directory of jars, one line each; empty when all is well."""
    problems = []
    for coordinate, pinned in which.pinned.items():
        path = directory / jar_name(coordinate)
        if not path.is_file():
            problems.append(f"{path.name} is missing")
        elif _sha256(path) != pinned:
            problems.append(f"{path.name} is not the pinned file (SHA-256 {_sha256(path)})")
    return problems


def fetch(which: JarSet, target: Path, *, java: JavaHome) -> None:
    """Resolves a set of jars into ``target``; a jar appears there only complete and with the pinned hash."""
    target.mkdir(parents=True, exist_ok=True)
    # Next to the target, so that moving a jar into place is one rename.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as name:
        workspace = Path(name)
        resolved = _resolve(which, workspace, java=java)
        for coordinate, pinned in which.pinned.items():
            draft = _take(which, resolved, coordinate=coordinate, workspace=workspace)
            if _sha256(draft) != pinned:
                raise JarsError(
                    f"{draft.name} was fetched with SHA-256 {_sha256(draft)}, but {pinned} is pinned: "
                    f"the package mirror in use serves another file. Nothing was installed.\n{_ways_out(which)}"
                )
        for draft in which.paths(workspace):
            draft.replace(target / draft.name)


def _resolve(which: JarSet, workspace: Path, *, java: JavaHome) -> Path:
    """Has Ivy fetch the jars; returns its directory of jars, where an artifact's group is part of the name."""
    failure = _run_ivy(which, workspace, java=java, java_options="")
    if "PKIX path building failed" in failure:
        # Java does not know the authority behind this network; the machine, whose pip came this far, may.
        store = workspace / "authorities.jks"
        store.write_bytes(trust_store.jks(trust_store.machine_authorities()))
        failure = _run_ivy(which, workspace, java=java, java_options=trust_store.java_options(store))
    if failure:
        raise JarsError(f"{which.name} could not be fetched:\n{_gist(failure)}\n{_ways_out(which)}")
    return workspace / "ivy" / "jars"


def _run_ivy(which: JarSet, workspace: Path, *, java: JavaHome, java_options: str) -> str:
    """Submits an empty program to Spark with the jars as its packages; returns what went wrong, or nothing."""
    import pyspark  # Only here: a start that finds its jars does not need it.

    spark_home = Path(pyspark.__file__).parent
    program = workspace / "nothing.py"
    program.write_text("", encoding="utf-8")
    command = [str(spark_home / "bin" / "spark-submit"), "--master", "local[1]"]
    command += ["--packages", ",".join(which.pinned)]
    command += ["--conf", f"spark.jars.excludes={','.join(which.excludes)}"]
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


def _take(which: JarSet, resolved: Path, *, coordinate: str, workspace: Path) -> Path:
    group, name = coordinate.split(":")[0], jar_name(coordinate)
    source = resolved / f"{group}_{name}"
    if not source.is_file():
        raise JarsError(f"Ivy reported success, but {source.name} is not there.\n{_ways_out(which)}")
    return Path(shutil.copyfile(source, workspace / name))


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


def _ways_out(which: JarSet) -> str:
    names = "\n".join(f"    {coordinate}" for coordinate in which.pinned)
    return (
        f"Either make Maven Central (or a mirror of it, through ~/.m2 or Ivy's settings) reachable, or bring "
        f"the jars of these artifacts from another machine:\n{names}\n"
        f"and name their directory: STATELAKE__SPARK__JARS_DIR=/path, or jars_dir in section [spark] of "
        f"statelake.toml."
    )
