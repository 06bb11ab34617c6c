"""What takes part in the comparison: something that keeps state and is given one batch after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

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
    """An engine with the reference job on it. Its state lives as long as the object."""

    name: str

    @abstractmethod
    def run(self, batch: Path) -> Taken:
        """Process the files of a directory as one batch."""

    @abstractmethod
    def results(self) -> Results:
        """Outputs of all batches so far, and the state after the last."""

    @abstractmethod
    def close(self) -> None:
        """Stop whatever runs in the background."""
