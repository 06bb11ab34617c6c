"""Scripts that ``spark-submit`` starts, as a user would: nothing of the engine's own session is there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark

from state_engine.machine.jars import delta_jars, jars_of
from state_engine.machine.java import find_java_home
from state_engine.machine.spark_versions import installed_spark
from state_engine.spark.log_store import LOG_STORE_JAR
from state_engine.spark.session import DELTA_CATALOG, DELTA_EXTENSION, LOG_SETTINGS
from tests.support.java import INTERPRETED, SHORT_LIVED_JAVA


def spark_submit(directory: Path, *options: str, script: Path, master: str = "local[2]") -> list[str]:
    """The command that starts a script on a master, with what the engine needs."""
    java = find_java_home(environ=os.environ, explicit=None)
    jars = [*jars_of(delta_jars(installed_spark()), None, java=java), LOG_STORE_JAR.path()]
    conf = {
        "spark.sql.extensions": DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()} {SHORT_LIVED_JAVA}",
        **INTERPRETED,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
    }
    return [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--master", master, "--driver-memory", "1g", "--jars", ",".join(map(str, jars))),
        *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}")),
        *options,
        str(script),
    ]


def submit_environment() -> dict[str, str]:
    """Variables for ``spark-submit``: Java, Spark and Python of these tests."""
    return {
        "JAVA_HOME": str(find_java_home(environ=os.environ, explicit=None).path),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
    }
