"""Keys of a store are nowhere: in no file of the root or of sinks, no log, no page of Spark's web interface, and
nothing that Dagster keeps.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from state_engine.storage.stores.files import open_location
from tests.faults.child import REPOSITORY
from tests.support import stores
from tests.support.store_proxy import StoreProxy
from tests.support.stores import environment


def files_of(directory: Path, uri: str) -> Iterator[tuple[str, bytes]]:
    """Everything that a run left, on the disk and in the store."""
    for path in directory.rglob("*"):
        if path.is_file():
            yield str(path), path.read_bytes()
    at = open_location(uri)
    for name in at.files():
        yield name, at.inside(name).read()


@pytest.mark.long
@pytest.mark.spark
def test_no_key_is_shown_or_kept(store: StoreProxy, uri: str, tmp_path: Path) -> None:
    secret = os.environ[stores.SECRET]
    done = subprocess.run(
        [sys.executable, "-m", "tests.stores.showing", str(tmp_path), uri],
        cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment(store.endpoint)},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "spark.app.name" in done.stdout, "the page of the environment"
    assert "DEBUG" in done.stderr
    assert "INFO SparkContext" in done.stderr
    assert secret not in done.stdout
    assert secret not in done.stderr
    left = dict(files_of(tmp_path, uri))
    assert any("_delta_log" in name for name in left)
    assert any(name.endswith("sql.db") for name in left)
    assert any(b"ASSET_MATERIALIZATION" in content for name, content in left.items() if "/home/" in name)
    assert not [name for name, content in left.items() if secret.encode() in content]
