"""Versions of Spark that the engine works with, and what belongs to each: tried by ``make test-matrix``.

Decision 0073. Flink's connectors are released for each version of Flink instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from state_engine.core.errors import SetupError


@dataclass(frozen=True)
class SparkVersion:
    """A minor version of Spark.

    Attributes:
        hadoop: version of Hadoop that Spark brings; its modules for stores must be of the same one.
    """

    name: str
    pyspark: str
    hadoop: str


SPARK_VERSIONS: Mapping[str, SparkVersion] = {
    one.name: one for one in (SparkVersion("4.1", "4.1.1", "3.4.2"), SparkVersion("4.2", "4.2.0", "3.5.0"))
}


def spark_version(version: str) -> SparkVersion:
    """The minor version that a version of Spark belongs to.

    Example:
        >>> spark_version("4.1.3").hadoop
        '3.4.2'
    """
    known = SPARK_VERSIONS.get(".".join(version.split(".")[:2]))
    if known is None:
        tried = " or ".join(f"pyspark=={one.pyspark}" for one in SPARK_VERSIONS.values())
        raise SetupError(
            f"Spark {version} does not work with Statelake, which was tried with {tried}: install one of these"
        )
    return known


def installed_spark() -> SparkVersion:
    """That of the installed package; PySpark itself is not imported."""
    try:
        return spark_version(metadata.version("pyspark"))
    except metadata.PackageNotFoundError as error:
        newest = list(SPARK_VERSIONS.values())[-1].pyspark
        raise SetupError(f"PySpark is not installed: pip install pyspark=={newest}") from error
