"""The actions of a person in the UI, over its GraphQL: look, materialise, recover, rescale, save."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus
from dagster._core.workspace.context import WorkspaceRequestContext
from dagster._daemon.backfill import execute_backfill_iteration
from dagster_graphql.test.utils import define_out_of_process_context, execute_dagster_graphql
from pyspark.sql import SparkSession

from state_engine.dagster.time_partitions import range_tags
from state_engine.machine.settings import Settings
from tests.dagster import days as days_module
from tests.dagster.days import Days
from tests.dagster.sites import JOB, QUIET, Site

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    # A run inside of the request that launched it: two event loops of Dagster in one thread, which it does not foresee.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    # Dagster calls what it gave up itself when it starts a backfill.
    pytest.mark.filterwarnings("ignore:.*AssetSelection.sources:DeprecationWarning"),
]

PROJECT = Path(__file__).parents[2]
CODE = """
from state_engine.dagster import JobOptions, statelake_definitions
from state_engine.machine.settings import load_settings

location = statelake_definitions(settings=load_settings(), options=JobOptions.everything())
"""
IN_THIS_PROCESS = {
    "run_launcher": {
        "module": "dagster._core.launcher.sync_in_memory_run_launcher",
        "class": "SyncInMemoryRunLauncher",
    },
    "run_coordinator": {"module": "dagster.core.run_coordinator", "class": "DefaultRunCoordinator"},
}
LOCATION = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } } } } }"
ASSETS = "{ assetNodes { assetKey { path } groupName description kinds isPartitioned hasAssetChecks } }"
LAUNCH = """
mutation ($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message stack }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""
NEWEST = """
query ($key: AssetKeyInput!) {
  assetOrError(assetKey: $key) {
    ... on Asset {
      assetMaterializations(limit: 1) {
        runId
        partition
        tags { key value }
        metadataEntries {
          label
          ... on IntMetadataEntry { intValue }
          ... on MarkdownMetadataEntry { mdStr }
          ... on BoolMetadataEntry { boolValue }
        }
      }
    }
  }
}
"""
PARTITION_BACKFILL = """
mutation ($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message stack }
  }
}
"""
STATUSES = """
query ($key: AssetKeyInput!) {
  assetNodeOrError(assetKey: $key) {
    ... on AssetNode {
      backfillPolicy { policyType }
      partitionKeys
      partitionStats { numMaterialized numPartitions numFailed }
    }
  }
}
"""
ADD_PARTITION = """
mutation ($selector: RepositorySelector!, $name: String!, $key: String!) {
  addDynamicPartition(repositorySelector: $selector, partitionsDefName: $name, partitionKey: $key) { __typename }
}
"""


class Page:
    def __init__(self, context: WorkspaceRequestContext, job: str = JOB) -> None:
        self._context, self.job = context, job
        [repository] = self.ask(LOCATION)["repositoriesOrError"]["nodes"]
        self.selector = {
            "repositoryName": repository["name"],
            "repositoryLocationName": repository["location"]["name"],
        }

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        return dict(execute_dagster_graphql(self._context, query, variables).data)

    def launch(
        self,
        suffix: str,
        *,
        partition: str | None = None,
        tags: Mapping[str, str] | None = None,
        **config: Any,
    ) -> str:
        """Launch a job to its end; the id of the run."""
        step = f"{self.job}_{suffix.strip('_') or 'micro_batches'}"
        params = {
            "selector": {**self.selector, "jobName": self.job + suffix},
            "runConfigData": json.dumps({"ops": {step: {"config": config}}, **QUIET}),
            "mode": "default",
            "executionMetadata": {"tags": [{"key": k, "value": v} for k, v in (tags or {}).items()]},
        }
        if partition is not None:
            self.ask(ADD_PARTITION, selector=self.selector, name=f"{self.job}_savepoints", key=partition)
            params["executionMetadata"] = {"tags": [{"key": "dagster/partition", "value": partition}]}
        answer = self.ask(LAUNCH, params=params)["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        run_id: str = answer["run"]["runId"]
        run = self._context.instance.get_run_by_id(run_id)
        assert run is not None
        assert run.status == dg.DagsterRunStatus.SUCCESS
        return run_id

    def backfill(self, assets: Sequence[dg.AssetKey], partitions: Sequence[str]) -> list[dg.DagsterRun]:
        """Start a backfill of assets and let the daemon bring it to its end; its runs, oldest first."""
        keys = [{"path": list(key.path)} for key in assets]
        params = {"assetSelection": keys, "partitionNames": list(partitions)}
        answer = self.ask(PARTITION_BACKFILL, params=params)["launchPartitionBackfill"]
        assert answer["__typename"] == "LaunchBackfillSuccess", answer
        instance, logger = self._context.instance, logging.getLogger("backfill")
        for _ in range(6):
            for error in execute_backfill_iteration(self._context.process_context, logger):
                assert error is None, error
        backfill = instance.get_backfill(answer["backfillId"])
        assert backfill is not None
        assert backfill.status == BulkActionStatus.COMPLETED_SUCCESS, backfill.error
        runs = instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": answer["backfillId"]}))
        return list(reversed(list(runs)))

    def newest(self, *key: str) -> dict[str, Any]:
        """The newest materialisation: its run, its version, its metadata."""
        asset = self.ask(NEWEST, key={"path": [self.job, *key]})["assetOrError"]
        [event] = asset["assetMaterializations"]
        values = {
            e["label"]: next((e[k] for k in ("intValue", "mdStr", "boolValue") if k in e), None)
            for e in event["metadataEntries"]
        }
        tags = {tag["key"]: tag["value"] for tag in event["tags"]}
        return {
            **values,
            "run": event["runId"],
            "version": tags["dagster/data_version"],
            "of": event["partition"],
        }


@contextmanager
def opened(
    directory: Path, given: Settings, monkeypatch: pytest.MonkeyPatch, job: str, instance: dg.DagsterInstance
) -> Iterator[Page]:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    monkeypatch.setenv("STATELAKE__ROOT", given.root)
    monkeypatch.setenv("STATELAKE__JOBS__MODULES", json.dumps(given.jobs.modules))
    monkeypatch.setenv("STATELAKE__JOBS__PARAMETERS", json.dumps(given.jobs.parameters))
    location = directory / "small_location.py"
    location.write_text(CODE)
    with define_out_of_process_context(str(location), "location", instance) as context:
        yield Page(context, job)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster"), overrides=IN_THIS_PROCESS) as one:
        yield one


@pytest.fixture
def page(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> Iterator[Page]:
    with opened(tmp_path, Site(tmp_path, instance).settings, monkeypatch, JOB, instance) as one:
        yield one


def test_look_materialise_recover_rescale_and_save(page: Page) -> None:
    nodes = {"/".join(n["assetKey"]["path"]): n for n in page.ask(ASSETS)["assetNodes"]}
    assert nodes[f"{JOB}/operations/head"]["groupName"] == f"{JOB}_operations"
    assert nodes[f"{JOB}/operations/savepoints"]["isPartitioned"]
    assert nodes[f"{JOB}/checkpoint"]["hasAssetChecks"]
    assert nodes[f"{JOB}/sinks/averages"]["kinds"] == ["deltalake", "pyspark"]

    run = page.launch("")
    seen = page.newest("checkpoint")
    assert (seen["run"], seen["version"], seen["rows_in"], seen["run_batches"]) == (run, "3", 1, 3)
    assert seen["key_group_load"].startswith("![count_window_average: rows by key group](data:image/svg+xml")
    assert seen["durations_and_lag"].startswith("![micro-batches](data:image/svg+xml")

    page.launch("__recover", checkpoint_id=1, dry_run=False)
    assert page.newest("operations", "head")["version"] == "4"
    run = page.launch("__rescale", parallelism=2)
    seen = page.newest("operations", "layout")
    assert (seen["run"], seen["version"], seen["subtasks"]) == (run, "5", 2)
    page.launch("__savepoint", partition="by_hand")
    seen = page.newest("operations", "savepoints")
    assert (seen["of"], seen["version"], seen["verified"]) == ("by_hand", "5", False)
    page.launch("")
    assert page.newest("checkpoint")["version"] == "8"  # 6 pins the savepoint


def test_partitions_as_a_range_and_by_a_backfill(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    days = Days(tmp_path, instance)
    with opened(tmp_path, days.settings, monkeypatch, days_module.JOB, instance) as page:
        asset = page.ask(STATUSES, key={"path": list(days_module.CHECKPOINT.path)})["assetNodeOrError"]
        assert asset["backfillPolicy"]["policyType"] == "SINGLE_RUN"
        assert asset["partitionKeys"] == days_module.KEYS
        run = page.launch("", tags=range_tags(*days_module.KEYS[:3:2]))
        assert days.log() == [("08", "1"), ("09", "2"), ("10", "3")]
        assert page.newest("checkpoint")["run"] == run

        # what is selected in the UI, the second day once more: one run, later days of the job included
        [again] = page.backfill(days_module.ASSETS, days_module.KEYS[1:])
        assert again.tags["dagster/asset_partition_range_start"] == days_module.KEYS[1]
        assert {e.partition for e in days.events()} == set(days_module.KEYS)
        assert days.outputs()[-1] == (6, "b", 12)

        # the last one is not run twice, and Dagster is content
        before = days.log()
        page.backfill(days_module.ASSETS, days_module.KEYS[-1:])
        assert days.log() == [*before, before[-1]]
        asset = page.ask(STATUSES, key={"path": list(days_module.SUMS.path)})["assetNodeOrError"]
        assert asset["partitionStats"] == {"numMaterialized": 5, "numPartitions": 5, "numFailed": 0}
