"""One job, deployed three times: every run is a process of its own that finds another version of the job's module."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from state_engine import open_state
from state_engine.core.errors import ConfigurationError

pytestmark = [pytest.mark.long, pytest.mark.spark]

PROJECT = Path(__file__).parents[2]
JOB = """
from types import SimpleNamespace
from state_engine import (
    DeltaSink, KeyedProcessFunction, MapStateDescriptor, StatefulJob, StateTtlConfig, Time, ValueStateDescriptor
)

ROWS = [("a", 1), ("b", 2), ("a", 2**40), ("c", 4), ("b", 5), ("c", 6)]

{function}

def jobs(settings):
    job = StatefulJob("deployed", parallelism=2)
    rows = job.from_collection(ROWS, "k string, v bigint", name="rows", max_rows_per_batch=2)
    sums = rows.key_by("k").process(Sums(), uid="sums", output_type="k string, total bigint"){drop}
    sums.sink("out", DeltaSink("{sink}"))
    return [SimpleNamespace(job=job, prepare=lambda: None)]
"""
FIRST = """
class Sums(KeyedProcessFunction):
    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", "int"))
        self.last = runtime_context.get_state(ValueStateDescriptor("last", "struct<v: int, half: float>"))
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int))

    def process_element(self, value, ctx):
        self.sum.update((self.sum.value() or 0) + value.v)
        self.last.update((value.v, value.v / 2))
        self.seen.update(1)
        yield value.k, self.sum.value()
"""
SECOND = '''
class Sums(KeyedProcessFunction):
    """A state renamed, one given up, one added; a field added, numbers widened, and a time to live."""

    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("total", "bigint").renamed_from("sum"))
        last = ValueStateDescriptor("last", "struct<v: bigint, half: double, late: string>")
        last.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).build())
        self.last = runtime_context.get_state(last)
        self.by_number = runtime_context.get_map_state(MapStateDescriptor("by_number", int, str))

    def process_element(self, value, ctx):
        self.sum.update((self.sum.value() or 0) + value.v)
        self.last.update((value.v, value.v / 2, "late"))
        self.by_number.put(value.v, value.k)
        yield value.k, self.sum.value()
'''
THIRD = SECOND.replace('"total", "bigint").renamed_from("sum")', '"total", str)')


class Deployment:
    """A directory with the module, a root and a sink."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.root = directory, directory / "root"

    def run(self, function: str, drop: str = "") -> subprocess.CompletedProcess[str]:
        """One micro-batch of a version of the module, in a new process."""
        text = JOB.format(function=function, drop=drop, sink=self.directory / "sink")
        (self.directory / "deployed_job.py").write_text(text)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("STATELAKE")}
        given = {
            "PYTHONPATH": os.pathsep.join([str(PROJECT), str(self.directory)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "200",
            "STATELAKE__ROOT": str(self.root),
            "STATELAKE__JOBS__MODULES": "deployed_job",
        }
        command = "from state_engine.cli.main import main; main()"
        return subprocess.run(
            [sys.executable, "-c", command, "run", "deployed", "--max-batches", "1"],
            env=inherited | given,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def rows(self, state: str, checkpoint_id: int | None = None) -> dict[str, dict[str, Any]]:
        """What is stored, by key, read without Spark."""
        table = open_state.read_state(
            self.root, "deployed", "sums", state, checkpoint_id=checkpoint_id, metadata=True
        )
        return {row["k"]: row for row in table.to_pylist()}

    def values(self, state: str, checkpoint_id: int | None = None) -> dict[str, Any]:
        return {k: row["value"] for k, row in self.rows(state, checkpoint_id).items()}


def test_a_job_goes_on_over_deployments_and_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    first = deployment.run(FIRST)
    assert first.returncode == 0, first.stderr
    assert deployment.values("sum") == {"a": 1, "b": 2}

    second = deployment.run(SECOND, '.drop_states("seen")')
    assert second.returncode == 0, second.stderr
    assert "2 rows in, stopped after 1 micro-batch, head 2" in second.stdout
    totals = {"a": 1 + 2**40, "b": 2, "c": 4}
    assert deployment.values("total") == totals
    last = deployment.rows("last")
    assert {k: row["value"] for k, row in last.items()} == {
        "a": {"v": 2**40, "half": 2.0**39, "late": "late"},
        "b": {"v": 2, "half": 1.0, "late": None},
        "c": {"v": 4, "half": 2.0, "late": "late"},
    }
    assert {k: row["expires_at"] is None for k, row in last.items()} == {"a": False, "b": True, "c": False}
    assert deployment.values("by_number") == {"a": "a", "c": "c"}
    assert deployment.values("seen", 1) == {"a": 1, "b": 1}
    for gone in ("sum", "seen"):
        with pytest.raises(ConfigurationError, match=f"no state '{gone}'"):
            deployment.values(gone)

    refused = deployment.run(THIRD)
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr + refused.stdout, refused.stderr
    (shown,) = (line for line in refused.stderr.splitlines() if line.startswith("error: "))
    assert "job 'deployed': operator 'sums': state 'total' is stored as bigint" in shown
    assert "the function declares string" in shown
    assert "restore the old declaration" in shown
    assert deployment.values("total") == totals

    again = deployment.run(SECOND)
    assert again.returncode == 0, again.stderr
    assert deployment.values("total") == {"a": 1 + 2**40, "b": 7, "c": 10}
