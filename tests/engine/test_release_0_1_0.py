"""A root and a savepoint that 0.1.0 made are upgraded, read, run on, restored and imported, and give what 0.1.0 gives.

See ``tests/fixtures/release_0_1_0/README.md``. The results that are expected are those of 0.1.0 itself.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from state_engine import StateEngine
from state_engine.core.checkpoints.format_versions import FORMAT_VERSION
from state_engine.core.errors import RootError
from tests.fixtures.release_0_1_0 import release_job as jobs

FIXTURE = Path(jobs.__file__).parent
ARCHIVE = FIXTURE / "release_0_1_0.tar.gz"

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:state .* folding state is deprecated:DeprecationWarning"),
]


@pytest.fixture
def home() -> Iterator[Path]:
    """The fixture, where it was made; one process at a time, of all on this machine."""
    if os.path.realpath(jobs.HOME.parent) != str(jobs.HOME.parent):
        pytest.skip(f"{jobs.HOME.parent} is a link here, and the fixture names its paths without links")
    with open(f"{jobs.HOME}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(jobs.HOME, ignore_errors=True)
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(jobs.HOME, filter="data")
        yield jobs.HOME
        shutil.rmtree(jobs.HOME)


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(gzip.decompress((FIXTURE / "expected.json.gz").read_bytes()))
    return recorded


def seen(home: Path, job: str = "everything") -> dict[str, Any]:
    """Outputs, keyed state and refused rows, as ``expected`` has them."""
    content = {
        "outputs": jobs.outputs(home / "sinks"),
        "states": jobs.states(home / "root", job, jobs.KEYED_STATES),
        "dead_letters": jobs.dead_letters(home / "root", job),
    }
    return cast(dict[str, Any], json.loads(json.dumps(content)))


def counted(home: Path) -> dict[str, Any]:
    """The same of the other job."""
    states = jobs.states(home / "root", "counted", jobs.COUNTED_STATES)
    return {"outputs": jobs.counted_outputs(), "states": states}


def test_the_archive_is_the_one_that_was_made() -> None:
    name, digest = (FIXTURE / "sha256").read_text().split()
    assert (name, digest) == (ARCHIVE.name, sha256(ARCHIVE.read_bytes()).hexdigest())


def test_what_0_1_0_left_goes_on(home: Path, expected: dict[str, Any], spark: SparkSession) -> None:
    def engine() -> StateEngine:
        """As another process would have it."""
        return StateEngine(home / "root", spark)

    with pytest.raises(RootError, match="format 5 of an older Statelake"):
        engine().checkpoints("everything")
    upgraded = StateEngine.upgrade(home / "root", spark)
    assert (upgraded.before, upgraded.after, upgraded.jobs) == (5, FORMAT_VERSION, ["counted", "everything"])

    assert len(engine().checkpoints("everything")) == expected["checkpoints"]
    as_of_6 = jobs.states(home / "root", "everything", jobs.KEYED_STATES, 6)
    assert seen(home) | {"as_of_6": as_of_6} == expected["before"]
    assert counted(home) == expected["counted_before"]
    sums = engine().read_state("everything", "keyed", "sum", checkpoint_id=6).collect()
    assert sorted(repr(list(row)) for row in sums) == as_of_6["keyed.sum"]

    jobs.put_events(5)
    jobs.put_rules(2, {"c": 7})
    jobs.put_words("three three FOUR")
    engine().run(jobs.everything(), clock=jobs.CLOCK_MS + 5_000)
    assert seen(home) == expected["run"]
    engine().run(jobs.counted(), clock=jobs.CLOCK_MS + 5_000, max_batches=1)
    assert counted(home) == expected["counted_run"]

    engine().restore("everything", checkpoint_id=3)
    assert seen(home) == expected["restored"]
    engine().run(jobs.everything(), clock=jobs.CLOCK_MS + 6_000)
    assert seen(home) == expected["restored_run"]

    moved = home / "moved"
    (moved / "sinks").mkdir(parents=True)
    jobs.constrain(spark, moved / "sinks")
    other, job = StateEngine(moved / "root", spark), jobs.everything("moved", sinks=moved / "sinks")
    other.restore(job, savepoint=home / "savepoint")
    assert jobs.states(moved / "root", "moved", jobs.KEYED_STATES) == expected["imported"]
    other.run(job, clock=jobs.CLOCK_MS + 7_000)
    assert seen(moved, "moved") == expected["imported_run"]
