"""Java's archive of Spark's classes: with it, Spark starts in about half of the processor time.

A scheduled run starts a JVM, and the JVM reads and verifies ten thousand classes before it does anything. Java can keep
them ready to be mapped into memory (class data sharing). ``statelake setup`` makes the archive once for a Java and a
Spark; a session takes it where it is there. An archive that does not fit, because Spark or Java was replaced, is left
aside by Java itself, without a word: nothing but time depends on it. Has no counterpart in Flink.
"""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import platformdirs
import pyspark

from state_engine.machine.java import JavaHome

_TIMEOUT_S = 300
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
"""Java's remarks on archives that do not fit. ``-Xlog:disable`` would hide other warnings, too."""

_WARM_UP = """
import sys
from pathlib import Path
from state_engine.machine.settings import SparkSettings
from state_engine.spark.session import local_session

options = {"spark.driver.extraJavaOptions": sys.argv[1]}
settings = SparkSettings(master="local[2]", options=options, java_home=sys.argv[3])
spark = local_session(settings, app_name="statelake-setup")
for _ in range(2):
    spark.range(100).selectExpr("id % 10 k", "id v").write.format("delta").mode("append").save(sys.argv[2])
    table = spark.read.format("delta").load(sys.argv[2])
    table.groupBy("k").sum("v").collect()
    joined = table.join(table.select("k").distinct(), "k").orderBy("v")
    joined.mapInArrow(lambda batches: batches, "k long, v long").toArrow()
    spark.sparkContext.parallelize([1, 2], 2).mapPartitions(lambda rows: rows).collect()
spark.stop()
"""


def class_archive(java: JavaHome, *, cache_dir: Path | None = None) -> Path:
    """Where the archive for a Java and this PySpark is, or would be."""
    spark = Path(pyspark.__file__).parent
    key = hashlib.sha256(f"{java.path.resolve()}\n{spark.resolve()}".encode()).hexdigest()[:12]
    cache = cache_dir or platformdirs.user_cache_path("statelake")
    return cache / "classes" / f"java-{java.version}-spark-{pyspark.__version__}-{key}.jsa"


def archive_options(java: JavaHome, *, cache_dir: Path | None = None) -> str:
    """Java options that take the archive; empty where there is none."""
    archive = class_archive(java, cache_dir=cache_dir)
    if not archive.is_file():
        return ""
    return f"-XX:SharedArchiveFile={_quoted(archive)} -Xshare:auto {_SILENT}"


def make_class_archive(java: JavaHome, *, cache_dir: Path | None = None) -> Path | None:
    """Start Spark once and keep the classes that it loaded, unless this was done before; takes about a minute.

    Returns:
        The archive; None where this Java has none of its own to build on (a stripped-down one) or Spark does not start.
    """
    archive = class_archive(java, cache_dir=cache_dir)
    if archive.is_file():
        return archive
    base = java.path / "lib" / "server" / "classes.jsa"
    if not base.is_file():
        return None
    with suppress(OSError, subprocess.SubprocessError):
        archive.parent.mkdir(parents=True, exist_ok=True)
        # Beside its place, so that it gets there by one rename, complete.
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".making-") as scratch:
            draft = Path(scratch) / archive.name
            # The base is named, as another cache may hold an archive of ours, which the session would take.
            options = (
                f"-XX:ArchiveClassesAtExit={_quoted(draft)} -XX:SharedArchiveFile={_quoted(base)} {_SILENT}"
            )
            subprocess.run(
                [sys.executable, "-c", _WARM_UP, options, f"{scratch}/table", str(java.path)],
                cwd=scratch,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=True,
            )
            draft.replace(archive)
            return archive
    return None


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
