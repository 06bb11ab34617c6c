"""Workers run the code of the driver, and every checkpoint records its version."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import StatefulJob
from state_engine.core.errors import CodeVersionError
from state_engine.spark.shipped_code import attempts
from tests.support.tiny import Site

pytestmark = pytest.mark.spark_tasks

SOURCE = '''
from state_engine import KeyedProcessFunction
from {helper} import scaled

FACTOR = {factor}


class Scale(KeyedProcessFunction):
    """Gives the values, scaled."""

    def process_element(self, value, ctx):
        yield str(ctx.get_current_key()), value.v, scaled(value.v * FACTOR)
'''
HELPER = "def scaled(value):\n    return value * {times}\n"


@dataclass
class Code:
    """A user's module and its helper, as files; loaded in this process."""

    directory: Path
    name: str

    @property
    def helper(self) -> str:
        return f"{self.name}_helper"

    def write(self, *, factor: int = 1, times: int = 1, more: str = "") -> None:
        """Edit the files; nothing is loaded."""
        files = {
            self.name: SOURCE.format(factor=factor, helper=self.helper) + more,
            self.helper: HELPER.format(times=times),
        }
        for name, text in files.items():
            file = self.directory / f"{name}.py"
            older_s = file.stat().st_mtime if file.exists() else 0.0
            file.write_text(text)
            # compiled files distinguish versions by whole seconds
            os.utime(file, (older_s + 2, older_s + 2) if older_s else None)

    def load(self) -> ModuleType:
        """Load, or load again, both modules."""
        importlib.invalidate_caches()
        for name in (self.helper, self.name):
            if name in sys.modules:
                importlib.reload(sys.modules[name])
            else:
                importlib.import_module(name)
        return sys.modules[self.name]


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Code]:
    directory = tmp_path / "code"
    directory.mkdir()
    monkeypatch.syspath_prepend(str(directory))
    module = Code(directory, "mine_" + request.node.name.removeprefix("test_")[:40])
    module.write()
    yield module
    for name in (module.name, module.helper):
        sys.modules.pop(name, None)


@pytest.fixture
def seen_by_workers(code: Code, spark: SparkSession) -> Iterator[None]:
    """Workers find the files as this process does."""
    includes = spark.sparkContext._python_includes
    assert includes is not None
    includes.append(str(code.directory))
    yield
    includes.remove(str(code.directory))


def job_of(site: Site, module: ModuleType, function: Any = None) -> StatefulJob:
    return site.job(function or module.Scale())


def results(site: Site) -> list[int]:
    """The scaled values of the last checkpoint."""
    last = max(row.checkpoint_id for row in site.engine().checkpoints("tiny"))
    assert last
    return [row[2] for row in sorted(site.outputs(), key=lambda row: row[1])]


def versions(site: Site) -> list[str]:
    return [row.code_version for row in site.engine().checkpoints("tiny")]


def test_the_code_that_was_reloaded_runs_also_in_a_replay(
    tmp_path: Path, spark: SparkSession, code: Code, seen_by_workers: None
) -> None:
    site = Site(tmp_path, spark)
    code.load()

    def run(value: int) -> StatefulJob:
        site.put({"k": ["a"], "v": [value]}, f"{value}")
        site.engine().run(job := job_of(site, sys.modules[code.name]))
        return job

    run(1)
    code.write(factor=100)
    run(2)  # edited, and not loaded: what this process has still runs
    assert results(site) == [1, 2]
    code.write(factor=100, times=7)
    code.load()  # the helper of the function, too
    fixed = run(3)
    assert results(site) == [1, 2, 2100]
    first, edited, reloaded = versions(site)
    assert first == edited != reloaded
    site.engine().replay(fixed, branch="fixed")
    difference = site.engine().compare(fixed, "fixed").outputs["out"]
    assert (difference.rows_only_old, difference.rows_only_new) == (2, 2)


@pytest.mark.long
def test_a_redefinition_by_hand_runs(
    tmp_path: Path, spark: SparkSession, code: Code, seen_by_workers: None
) -> None:
    site, module = Site(tmp_path, spark), code.load()
    site.put({"k": ["a"], "v": [1]}, "1").engine().run(job_of(site, module))
    module.__dict__["FACTOR"] = 50
    site.put({"k": ["a"], "v": [2]}, "2").engine().run(job_of(site, module))
    assert results(site) == [1, 100]
    module.__dict__["scaled"] = lambda value: value + 1
    site.put({"k": ["a"], "v": [3]}, "3").engine().run(job_of(site, module))
    assert results(site) == [1, 100, 151]
    assert len(set(versions(site))) == 3


def test_code_that_workers_cannot_import_is_sent_or_refused(
    tmp_path: Path, spark: SparkSession, code: Code
) -> None:
    site = Site(tmp_path, spark).put({"k": ["a"], "v": [3]})
    lock = "\n\nimport threading\nLOCK = threading.Lock()\n\nclass Locked(Scale):\n" + (
        "    def process_element(self, value, ctx):\n        with LOCK:\n"
        "            yield from super().process_element(value, ctx)\n"
    )
    code.write(more=lock)
    module = code.load()
    with pytest.raises(
        CodeVersionError, match=f"(?s)job 'tiny'.*{code.name}.*Nothing of this micro-batch"
    ) as raised:
        site.engine().run(job_of(site, module, module.Locked()))
    assert "cannot pickle '_thread.lock' object" in str(raised.value)
    assert site.nothing_happened()
    site.engine().run(job_of(site, module))  # can be pickled; and nothing refuses the second try
    assert results(site) == [3]


UDFS = """
from pyspark.sql.functions import udf
import {helper} as helper

TERM = {term}


@udf("bigint")
def changed(v):
    return helper.scaled(v) + TERM


def step(rows):
    local = udf(lambda v: helper.scaled(v) + TERM, "bigint")
    return rows.withColumn("n", changed("v")).withColumn("m", local("v"))
"""


@dataclass
class Udfs:
    """A module with UDFs beside the helper; each of its steps adds a column by a module's UDF, and one by its own."""

    code: Code
    spark: SparkSession

    @property
    def name(self) -> str:
        return f"{self.code.name}_udfs"

    def write(self, *, term: int, times: int) -> None:
        """Edit the files; nothing is loaded."""
        self.code.write(times=times)
        file = self.code.directory / f"{self.name}.py"
        older_s = file.stat().st_mtime if file.exists() else 0.0
        file.write_text(UDFS.format(helper=self.code.helper, term=term))
        os.utime(file, (older_s + 2, older_s + 2) if older_s else None)
        importlib.invalidate_caches()

    def results(self) -> list[tuple[int, int]]:
        step = sys.modules[self.name].step
        frame = self.spark.createDataFrame([(1,), (2,)], "v bigint")
        for attempt in attempts(self.spark, [step], job="udfs", frames=[step]):
            with attempt:
                rows = step(frame).collect()
        return [(row.n, row.m) for row in rows]


@pytest.fixture
def udfs(code: Code, spark: SparkSession, seen_by_workers: None) -> Iterator[Udfs]:
    udfs_of_code = Udfs(code, spark)
    udfs_of_code.write(term=0, times=1)
    code.load()
    importlib.import_module(udfs_of_code.name)
    assert udfs_of_code.results() == [(1, 1), (2, 2)]
    yield udfs_of_code
    sys.modules.pop(udfs_of_code.name, None)


def test_udfs_of_a_transform_are_the_drivers(udfs: Udfs) -> None:
    """No worker compares the code of a UDF: Spark pickles it by name, with the environment it was made in.

    The module of the UDF is not loaded again, so it keeps its UDF as it was made, and new workers would read its file.
    """
    udfs.write(term=7, times=100)
    importlib.reload(sys.modules[udfs.code.helper])
    rows = StatefulJob("udfs").from_collection([(1,), (2,)], "v bigint")
    values = rows.transform(sys.modules[udfs.name].step).collect(spark=udfs.spark)
    assert [(row.n, row.m) for row in values] == [(100, 100), (200, 200)]


@pytest.mark.long
def test_udfs_that_transform_state_are_the_drivers(udfs: Udfs, tmp_path: Path) -> None:
    site = Site(tmp_path, udfs.spark).put({"k": ["a"], "v": [3]})
    engine, job = site.engine(), site.job()
    engine.run(job)
    udfs.write(term=7, times=100)
    importlib.reload(sys.modules[udfs.code.helper])
    changed = sys.modules[udfs.name].changed
    engine.state_processor(job).transform_state(
        "sums", "total", map=lambda rows: rows.withColumn("value", changed("value"))
    )
    assert site.state() == {"a": 300}


@pytest.mark.long
def test_udfs_follow_each_change(udfs: Udfs) -> None:
    udfs.write(term=0, times=10)
    importlib.reload(sys.modules[udfs.code.helper])
    assert udfs.results() == [(10, 10), (20, 20)]
    udfs.write(term=7, times=100)
    importlib.reload(sys.modules[udfs.code.helper])
    assert udfs.results() == [(100, 100), (200, 200)]
    sys.modules[udfs.name].__dict__["TERM"] = 5
    assert udfs.results() == [(105, 105), (205, 205)]
    importlib.reload(sys.modules[udfs.name])
    assert udfs.results() == [(107, 107), (207, 207)]
