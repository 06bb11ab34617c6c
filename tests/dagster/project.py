"""A fresh project as ``create-dagster project`` lays it out, with jobs and assets of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent
NAME = "shop"
PYPROJECT = f"""
[project]
name = "{NAME}"
version = "0.1.0"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "{NAME}"
registry_modules = ["{NAME}.components.*"]
"""
DEFINITIONS = """
from pathlib import Path

from dagster import definitions, load_from_defs_folder


@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
JOBS = '''
"""Totals of customers: of all orders, and day by day."""

from pathlib import Path

from state_engine import (
    DeltaSink, FileSource, KeyedProcessFunction, StatefulJob, TimePartitions, ValueStateDescriptor,
)
from state_engine.registry import RegisteredJob

LAKE = Path(__file__).parents[3] / "lake"
COLUMNS = "customer string, amount bigint, at timestamp"


class Total(KeyedProcessFunction):
    """The total of a customer."""

    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int))

    def process_element(self, value, ctx):
        self.total.update((self.total.value() or 0) + value.amount)
        yield value.customer, self.total.value()


def totals(name, **options):
    job = StatefulJob(name, parallelism=1, max_parallelism=2, **options)
    source = FileSource(str(LAKE / "orders"), schema=COLUMNS, format="json")
    orders = job.source("orders", source, order_by=["at"], event_time="at")
    sums = orders.key_by("customer").process(Total(), uid="total", output_type="customer string, total bigint")
    sums.sink("totals", DeltaSink(str(LAKE / name)))
    return job


totals_so_far = totals("totals")


def every_minute():
    return RegisteredJob(job=totals_so_far, cron="* * * * *")


def by_day():
    days = TimePartitions("at", start="2024-03-01", end="2024-03-04")
    return RegisteredJob(job=totals("daily", partitions=days), description="Totals, day by day.")
'''
ASSETS = '''
import json

import dagster as dg

from shop.jobs.orders import LAKE


@dg.asset(key=["raw", "orders"], group_name="raw")
def orders() -> None:
    """Orders as the shop exports them."""
    (LAKE / "orders").mkdir(parents=True, exist_ok=True)
    rows = [
        {"customer": customer, "amount": 10 * day, "at": f"2024-03-0{day}T12:00:00Z"}
        for day in (1, 2, 3)
        for customer in ("ann", "bob")
    ]
    (LAKE / "orders" / "march.json").write_text("".join(json.dumps(row) + "\\n" for row in rows))


@dg.asset(deps=[dg.AssetKey(["totals", "sinks", "totals"])], group_name="reports")
def best_customers() -> None:
    """Reads what the job writes."""
'''


class Project:
    """A project in a directory, with a Dagster instance of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / NAME
        self.package = self.directory / "src" / NAME
        self.home = directory / "dagster"
        self.home.mkdir()
        (self.home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
        self._write("pyproject.toml", PYPROJECT)
        for module in ("__init__.py", "defs/__init__.py", "jobs/__init__.py"):
            self._write(f"src/{NAME}/{module}", "")
        self._write(f"src/{NAME}/definitions.py", DEFINITIONS)
        self._write(f"src/{NAME}/jobs/orders.py", JOBS)
        self._write(f"src/{NAME}/defs/assets.py", ASSETS)

    @property
    def variables(self) -> dict[str, str]:
        """What an activated environment of the project gives to commands."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("STATELAKE", "DAGSTER"))}
        return {
            **clean,
            "DAGSTER_HOME": str(self.home),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.directory / "src"),
            "STATELAKE__SPARK__DRIVER_MEMORY": "1g",
            "STATELAKE__SPARK__MASTER": "local[2]",
            "VIRTUAL_ENV": str(BIN.parent),
        }

    def add(self, name: str, attributes: str) -> None:
        """The attributes of a component, in place of those that the scaffolder wrote."""
        path = self.package / "defs" / name / "defs.yaml"
        path.write_text(f"type: state_engine.dagster.JobComponent\nattributes:\n{attributes}")

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            cwd=self.directory,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _write(self, path: str, text: str) -> None:
        (self.directory / path).parent.mkdir(parents=True, exist_ok=True)
        (self.directory / path).write_text(text.lstrip())
