"""A root and a savepoint that a release made are opened, read, run on, restored and imported, and give what it gives.

See ``tests/fixtures/releases/README.md``. The results that are expected are those of the release itself.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import shutil
import tarfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import StateEngine
from state_engine.core.checkpoints.format_versions import FORMAT_VERSION
from state_engine.core.errors import RootError, SinkError
from tests.fixtures.releases import release_jobs as jobs

FIXTURES = Path(jobs.__file__).parent
FORMATS = {"0.2.0": 6}
"""The format of roots of each release that has a fixture."""

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:state .* folding state is deprecated:DeprecationWarning"),
]


@pytest.fixture
def home(release: str) -> Iterator[Path]:
    """The fixture, where it was made; one process at a time, of all on this machine."""
    made = jobs.home_of(release)
    if made.parent.resolve() != made.parent:
        pytest.skip(f"{made.parent} is a link here, and fixtures name their paths without links")
    with open(f"{made}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(made, ignore_errors=True)
        with tarfile.open(FIXTURES / release / "archive.tar.gz") as archive:
            # the archive is ours, and a Python before 3.11.4 knows no filter
            if hasattr(tarfile, "data_filter"):
                archive.extraction_filter = tarfile.data_filter
            archive.extractall(made)
        yield made
        shutil.rmtree(made)


@pytest.fixture
def expected(release: str) -> dict[str, Any]:
    return dict(json.loads(gzip.decompress((FIXTURES / release / "expected.json.gz").read_bytes())))


def test_each_release_has_its_fixture() -> None:
    assert sorted(path.parent.name for path in FIXTURES.glob("*/archive.tar.gz")) == sorted(FORMATS)
    assert max(FORMATS.values()) in (FORMAT_VERSION - 1, FORMAT_VERSION)  # one may be of the next release


@pytest.mark.parametrize("release", FORMATS)
def test_the_archive_is_the_one_that_was_made(release: str) -> None:
    digest, name = (FIXTURES / release / "sha256").read_text().split()
    assert digest == sha256((FIXTURES / release / name).read_bytes()).hexdigest()


@pytest.mark.parametrize("release", FORMATS)
def test_what_a_release_left_goes_on(
    release: str, home: Path, expected: dict[str, Any], spark: SparkSession
) -> None:
    def engine() -> StateEngine:
        """As another process would have it."""
        return StateEngine(home / "root", spark)

    if FORMATS[release] < FORMAT_VERSION:
        with pytest.raises(RootError, match=f"format {FORMATS[release]} of an older Statelake"):
            engine().checkpoints("everything")
    upgraded = StateEngine.upgrade(home / "root", spark)
    assert (upgraded.before, upgraded.after) == (FORMATS[release], FORMAT_VERSION)
    assert upgraded.jobs == (["counted", "everything"] if FORMATS[release] < FORMAT_VERSION else [])

    sums = engine().read_state("everything", "keyed", "sum", checkpoint_id=6).collect()
    assert sorted(repr(list(row)) for row in sums) == expected["before"]["as_of_6"]["keyed.sum"]

    steps = []
    for step, shown in jobs.going_on(home, spark, table="counts_since"):
        assert shown == _of_words_since(step, expected[step]), step
        steps.append(step)
    assert sorted(steps) == sorted(expected)


@pytest.mark.parametrize("release", FORMATS)
def test_the_table_that_a_keyed_sink_of_a_release_wrote_is_refused(
    release: str, home: Path, spark: SparkSession
) -> None:
    StateEngine.upgrade(home / "root", spark)
    engine, before = StateEngine(home / "root", spark), jobs.counted_seen(home)
    jobs.put_words(home, "three")
    with pytest.raises(SinkError, match=r"counts.*belongs to nobody.*Name another table.*adopt=True"):
        engine.run(jobs.counted(home), clock=jobs.CLOCK_MS + 5_000, max_batches=1)
    assert jobs.counted_seen(home) == before


def _of_words_since(step: str, shown: Any) -> Any:
    """What a release shows; its keyed sink begins in another table, which has the words that came since."""
    if step != "counted_run":
        return shown
    counts = [row for row in shown["outputs"]["upserted"] if row[0] in ("three", "four")]
    return shown | {"outputs": shown["outputs"] | {"upserted": counts}}
