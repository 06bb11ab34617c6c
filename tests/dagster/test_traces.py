"""A run of Dagster whose tags name a trace: the run of the job continues it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from state_engine.engine import running
from state_engine.telemetry.trace_context import trace_context
from tests.dagster.days import KEYS, Days
from tests.dagster.sites import DagsterSite, Site

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(("kind", "partition"), [(Site, None), (Days, KEYS[0])])
def test_a_run_continues_the_trace_of_its_tags(
    kind: type[DagsterSite],
    partition: str | None,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Mapping[str, str]] = []
    original = running.run

    def run(*args: Any, **options: Any) -> Any:
        seen.append(dict(trace_context()))
        return original(*args, **options)

    monkeypatch.setattr(running, "run", run)
    with dg.DagsterInstance.ephemeral() as instance:
        site = kind(tmp_path, instance)
        (job,) = (
            one for one in site.defs.resolve_all_job_defs() if one.name in ("days", "count_window_average")
        )
        done = job.execute_in_process(
            instance=instance, tags={"traceparent": PARENT, "team": "shops"}, partition_key=partition
        )
        assert done.success
    assert seen == [{"traceparent": PARENT}]
