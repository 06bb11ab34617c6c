"""What takes part in the comparison: something that keeps state and is given one batch after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from pyspark.sql import SparkSession

from benchmarks.workload import Results


@dataclass(frozen=True)
class Taken:
    """What one batch took.

    Attributes:
        seconds: wall time until its outputs and state were safe.
        spark_jobs: Spark jobs that ran; None where nobody counted.
        delta_commits: commits to Delta tables; None where nobody counted.
        detail: parts of the time by name, in seconds.
    """

    seconds: float
    spark_jobs: int | None = None
    delta_commits: int | None = None
    detail: dict[str, float] | None = None


class Contender(ABC):
    """An engine with the reference job on it. Its state lives as long as the object.

    Attributes:
        name: as tables show it.
        slow: whether a full batch takes so long that one is warm-up and one is counted.
    """

    name: ClassVar[str]
    slow: ClassVar[bool] = False

    @classmethod
    def start(cls, spark: SparkSession, directory: Path, *, keep_outputs: bool) -> Self:
        """A new one without state.

        Args:
            spark: session of the application that all contenders share.
            directory: for all that it reads and writes; it is made.
            keep_outputs: whether ``results`` will be asked for.
        """
        del keep_outputs  # most keep them in any case
        return cls(spark, directory)  # type: ignore[call-arg]

    @abstractmethod
    def run(self, batch: Path) -> Taken:
        """Process the files of a directory as one batch."""

    @abstractmethod
    def results(self) -> Results:
        """Outputs of all batches so far, and the state after the last."""

    def close(self) -> None:  # noqa: B027 - most have nothing in the background
        """Stop whatever runs in the background."""
