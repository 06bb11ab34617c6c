"""What a Dagster run sends to executors: the modules of jobs and their data, as a command does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from state_engine.dagster import StateEngineResource, statelake_definitions
from state_engine.machine.settings import JobsSettings, Settings, SparkSettings
from state_engine.spark import session
from tests.support.clusters import python_program

PACKAGE = {
    "__init__.py": "",
    "rates.py": (
        "import json, pkgutil\n\n\n"
        "def rate():\n    return json.loads(pkgutil.get_data('mall', 'rates.json'))['rate']\n"
    ),
    "rates.json": '{"rate": 3}',
    "flows.py": """
from pathlib import Path

from state_engine import DeltaSink, FileSource, KeyedProcessFunction, StatefulJob, ValueStateDescriptor
from state_engine.registry import RegisteredJob

HERE = Path(__file__).parents[2]


class Total(KeyedProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_element(self, value, ctx):
        from mall.rates import rate  # nothing that is pickled with the function leads here

        self.total.update(self.total.value() + value.v * rate())
        yield value.k, self.total.value()


def jobs(settings):
    job = StatefulJob("totals", parallelism=2)
    rows = job.source("rows", FileSource(str(HERE / "feed")))
    sums = rows.key_by("k").process(Total(), uid="total", output_type="k string, total bigint")
    sums.sink("out", DeltaSink(str(HERE / "out")))
    return [RegisteredJob(job=job)]
""",
}
RUN = """
import sys

import dagster as dg

sys.path.append("code")
from state_engine.dagster import statelake_definitions

with dg.DagsterInstance.ephemeral() as instance:
    done = statelake_definitions().resolve_job_def("totals").execute_in_process(instance=instance)
print(done.success)
"""


def project(directory: Path) -> None:
    for name, text in PACKAGE.items():
        file = directory / "code/mall" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (directory / "feed").mkdir()
    pq.write_table(pa.table({"k": ["a", "b", "a"], "v": [1, 2, 3]}), directory / "feed/a.parquet")
    (directory / "statelake.toml").write_text(f"""
root = "root"

[jobs]
modules = ["mall.flows"]
package_data = ["mall/*.json"]

[spark]
master = "local-cluster[2,1,1024]"
driver_memory = "1g"

[spark.options]
"spark.pyspark.python" = "{python_program(directory / "python")}"
"spark.executor.memory" = "512m"
"spark.sql.shuffle.partitions" = "2"
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.local.dir" = "{directory / "local"}"
""")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_executors_are_sent_the_modules_of_jobs_and_their_data(tmp_path: Path) -> None:
    project(tmp_path)
    (tmp_path / "dagster_home").mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYTHONPATH"))}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        env={**environment, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["True"], done.stderr[-5000:]
    rows = DeltaTable(str(tmp_path / "out")).to_pyarrow_table().to_pylist()
    assert sorted((row["k"], row["total"]) for row in rows) == [("a", 3), ("a", 12), ("b", 6)]


def test_the_modules_are_those_of_the_settings_file_and_of_the_definitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "statelake.toml").write_text('[jobs]\nmodules = ["mine"]\npackage_data = ["mine/*.json"]\n')
    monkeypatch.chdir(tmp_path)
    sent: list[tuple[list[str], list[str]]] = []

    def ship(spark: Any, modules: list[str], *, package_data: list[str]) -> None:
        sent.append((modules, package_data))

    monkeypatch.setattr(session, "ship_code", ship)
    monkeypatch.setattr(session, "check_session", lambda spark: None)
    classic: Any = SimpleNamespace(_jsparkSession=None)
    for active in (None, classic):  # a new session, and one that was there
        monkeypatch.setattr(session, "_active_session", lambda there=active: there)
        monkeypatch.setattr(session, "_start", lambda settings, name: classic)
        StateEngineResource(root=str(tmp_path)).engine()
        settings = Settings(
            root=str(tmp_path), jobs=JobsSettings(modules=["yours"], package_data=["yours/*.csv"])
        )
        resource: Any = statelake_definitions([], settings=settings).resources
        resource["state_engine"].engine()
        session.local_session(SparkSettings())
        assert sent == [
            (["mine"], ["mine/*.json"]),
            (["mine", "yours"], ["mine/*.json", "yours/*.csv"]),
            ([], []),
        ]
        sent.clear()
        resource["state_engine"]._engine = None  # the resource of these definitions is kept
