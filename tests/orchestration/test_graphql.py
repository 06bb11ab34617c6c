"""What a person does in the UI, over the GraphQL that the UI speaks: look, materialise, recover, rescale, save."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.workspace.context import WorkspaceRequestContext
from dagster_graphql.test.utils import define_out_of_process_context, execute_dagster_graphql
from pyspark.sql import SparkSession

from tests.orchestration.ground import JOB, QUIET, Ground

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.slow,
    # A run inside of the request that launched it: two event loops of Dagster in one thread, which it does not foresee.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]

CODE = """
from orchestration.definitions import build
from state_engine.runtime.settings import load_settings

location = build(load_settings())
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
ADD_PARTITION = """
mutation ($selector: RepositorySelector!, $name: String!, $key: String!) {
  addDynamicPartition(repositorySelector: $selector, partitionsDefName: $name, partitionKey: $key) { __typename }
}
"""


class Page:
    """The UI of a small job."""

    def __init__(self, context: WorkspaceRequestContext) -> None:
        self._context = context
        [found] = self.ask(LOCATION)["repositoriesOrError"]["nodes"]
        self.selector = {"repositoryName": found["name"], "repositoryLocationName": found["location"]["name"]}

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        return dict(execute_dagster_graphql(self._context, query, variables).data)

    def launch(self, suffix: str, *, partition: str | None = None, **config: Any) -> str:
        """Launch a job to its end; the id of the run."""
        step = f"{JOB}_{suffix.strip('_') or 'micro_batches'}"
        params = {
            "selector": {**self.selector, "jobName": JOB + suffix},
            "runConfigData": json.dumps({"ops": {step: {"config": config}}, **QUIET}),
            "mode": "default",
        }
        if partition is not None:
            self.ask(ADD_PARTITION, selector=self.selector, name=f"{JOB}_savepoints", key=partition)
            params["executionMetadata"] = {"tags": [{"key": "dagster/partition", "value": partition}]}
        found = self.ask(LAUNCH, params=params)["launchRun"]
        assert found["__typename"] == "LaunchRunSuccess", found
        run_id: str = found["run"]["runId"]
        run = self._context.instance.get_run_by_id(run_id)
        assert run is not None
        assert run.status == dg.DagsterRunStatus.SUCCESS
        return run_id

    def newest(self, *key: str) -> dict[str, Any]:
        """The newest materialisation: its run, its version, its metadata."""
        asset = self.ask(NEWEST, key={"path": [JOB, *key]})["assetOrError"]
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


@pytest.fixture
def page(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster"), overrides=IN_THIS_PROCESS) as instance:
        ground = Ground(tmp_path, instance)
        given = ground.settings
        monkeypatch.setenv("STATELAKE__ROOT", given.root)
        monkeypatch.setenv("STATELAKE__JOBS__MODULES", json.dumps(given.jobs.modules))
        monkeypatch.setenv("STATELAKE__JOBS__PARAMETERS", json.dumps(given.jobs.parameters))
        (tmp_path / "small_location.py").write_text(CODE)
        with define_out_of_process_context(
            str(tmp_path / "small_location.py"), "location", instance
        ) as context:
            yield Page(context)


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
