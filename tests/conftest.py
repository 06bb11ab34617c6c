"""Fixtures for all tests: one Spark session for the whole run, started by the first test that asks for it."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from state_engine.core import errors
from tests.promises import FIRST_RING, PROMISES
from tests.support.java import INTERPRETED, SHORT_LIVED_JAVA
from tests.support.limits import SetLimits, limits_of_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from state_engine.storage.delta.kernel import DeltaKernel


collect_ignore = ["fixtures/releases/make.py"]
"""Runs with another release only."""

# Commits wait for the disk (`durability = "sync"`). A file system in memory answers at once; it is used where there is
# one with room enough: a whole run leaves less than 1 GB behind.
MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# The profile of all property tests. Half of Hypothesis' own number of examples: a run looks elsewhere each time, and
# there are many runs. No limits of time: a loaded machine must not fail a test.
settings.register_profile(
    "tests", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks at groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that uses the session is a Spark test. `make test` runs those that show a promise, on one worker."""
    promised = {test for tests in PROMISES.values() for test in tests}
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.nodeid in promised or item.nodeid.partition("[")[0] in promised:
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif item.get_closest_marker("spark") or not item.nodeid.startswith(FIRST_RING):
            item.add_marker(pytest.mark.more)


def pytest_collection_finish() -> None:
    """Modules and test items live to the end: collections of garbage need not look at them each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """An exception that the engine did not foresee is a defect, whatever a test makes of it."""
    made: list[str] = []

    def noted(self: errors.InternalError, *args: object) -> None:
        errors.StatelakeError.__init__(self, *args)
        made.append(str(self))

    with pytest.MonkeyPatch.context() as patched:
        if not item.get_closest_marker("internal_errors"):
            patched.setattr(errors.InternalError, "__init__", noted)
        yield
    assert not made, f"no StatelakeError of its own: {made}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores, as the engine itself starts it.

    Subtasks of a few rows run in this process unless a test is about Spark tasks: that halves a micro-batch.
    """
    # Imported here: tests without Spark must run where PySpark cannot even be started.
    from state_engine.machine.settings import SparkSettings
    from state_engine.spark.session import local_session
    from state_engine.testing import subtasks_in_process

    scratch: Path = tmp_path_factory.mktemp("spark")
    options = {
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
        "spark.driver.extraJavaOptions": SHORT_LIVED_JAVA,
        # Queries of tests run once, over a few rows: compiled, they would cost a fifth more time. Tests in processes of
        # their own, the demo and the benchmarks run them compiled.
        **INTERPRETED,
    }
    os.environ["STATELAKE__LOCAL_COPIES__DIRECTORY"] = str(scratch / "copies")
    session = local_session(
        SparkSettings(master="local[2]", driver_memory="3g", options=options), app_name="statelake-tests"
    )
    with subtasks_in_process(session):
        yield session
    session.stop()


@pytest.fixture(autouse=True)
def spark_tasks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Subtasks of a test with this mark run in Spark tasks."""
    if request.node.get_closest_marker("spark_tasks") and "spark" in request.fixturenames:
        with limits_of_session(request.getfixturevalue("spark")) as set_limits:
            set_limits(in_process=False)
            yield
    else:
        yield


@pytest.fixture
def limits(spark: SparkSession) -> Iterator[SetLimits]:
    """Gives the session other limits of placement until the test ends."""
    with limits_of_session(spark) as set_limits:
        yield set_limits


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Queries of the test are compiled, because they run over many rows."""
    options = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {name: spark.conf.get(name) for name in options}
    for name, value in options.items():
        spark.conf.set(name, value)
    yield
    for name, known in before.items():
        spark.conf.set(name, str(known))


@pytest.fixture
def kernel(spark: SparkSession) -> Iterator[DeltaKernel]:
    """A Kernel of its own, with nothing remembered."""
    from state_engine.storage.delta.kernel import DeltaKernel

    new_kernel = DeltaKernel(spark)
    yield new_kernel
    new_kernel.close()
