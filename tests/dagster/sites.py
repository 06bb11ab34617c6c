"""A small job under Dagster: the example of five pairs, on a root of its own, and how to look at what runs logged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from state_engine import StateEngine
from state_engine.dagster import JobOptions, statelake_definitions
from state_engine.dagster.micro_batches import DATA_VERSION_TAG
from state_engine.machine.settings import JobsSettings, Settings

JOB = "count_window_average"
PAIRS = [(1, 3), (1, 5), (1, 7), (1, 4), (1, 2)]
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


class DagsterSite(ABC):
    """A directory with a feed, a root and a sink, and an ephemeral Dagster instance."""

    def __init__(self, directory: Path, instance: dg.DagsterInstance) -> None:
        self.directory, self.instance = directory, instance
        self.runs: list[dg.ExecuteInProcessResult] = []

    @property
    @abstractmethod
    def settings(self) -> Settings:
        """The settings of the project, as they are now."""

    @property
    def defs(self) -> dg.Definitions:
        return statelake_definitions(settings=self.settings, options=JobOptions.everything())

    def engine(self, spark: SparkSession) -> StateEngine:
        return StateEngine(self.settings.root, spark)

    def events(self, key: dg.AssetKey) -> list[dg.AssetMaterialization]:
        records = self.instance.fetch_materializations(key, limit=100, ascending=True).records
        return [r.asset_materialization for r in records if r.asset_materialization is not None]


class Site(DagsterSite):
    """The example of five pairs, which are three micro-batches: two, two and one."""

    def __init__(self, directory: Path, instance: dg.DagsterInstance, *, parallelism: int = 1) -> None:
        super().__init__(directory, instance)
        self.parallelism = parallelism
        self.arrive("a", PAIRS)

    @property
    def settings(self) -> Settings:
        given = {
            "feed": str(self.directory / "feed"),
            "max_rows_per_batch": 2,
            "parallelism": self.parallelism,
        }
        jobs = JobsSettings(modules=["jobs.count_window_average"], parameters={JOB: given})
        return Settings(root=str(self.directory / "state"), jobs=jobs)

    @property
    def table(self) -> Path:
        """Of the job's directory."""
        return self.directory / "state" / JOB

    def arrive(self, name: str, pairs: list[tuple[int, int]]) -> None:
        feed = self.directory / "feed"
        feed.mkdir(exist_ok=True)
        keys, values = zip(*pairs, strict=True)
        pq.write_table(pa.table({"key": keys, "value": values}), feed / f"{name}.parquet")

    def run(
        self,
        suffix: str = "",
        *,
        partition: str | None = None,
        raise_on_error: bool = True,
        **config: Any,
    ) -> dg.ExecuteInProcessResult:
        """Launch a job: the micro-batches, or ``__<operation>``; configure its only step."""
        job = self.defs.resolve_job_def(JOB + suffix)
        step = f"{JOB}_{suffix.strip('_') or 'micro_batches'}"
        if partition is not None:
            self.instance.add_dynamic_partitions(f"{JOB}_savepoints", [partition])
        return job.execute_in_process(
            instance=self.instance,
            run_config={"ops": {step: {"config": config}}, **QUIET},
            partition_key=partition,
            raise_on_error=raise_on_error,
        )

    def versions(self, key: dg.AssetKey) -> list[str]:
        return [(event.tags or {})[DATA_VERSION_TAG] for event in self.events(key)]

    def shown(self, key: dg.AssetKey) -> dict[str, Any]:
        return {name: value.value for name, value in self.events(key)[-1].metadata.items()}


def failure_of(result: dg.ExecuteInProcessResult) -> str:
    [event] = [e for e in result.all_events if e.is_step_failure]
    error = event.step_failure_data.error
    assert error is not None
    return error.to_string()
