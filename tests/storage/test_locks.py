"""The table lock: one holder at a time over threads and processes, freed when its holder dies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from state_engine.core.errors import LockTimeoutError
from state_engine.storage.stores import locks
from state_engine.storage.stores.locks import LOCK_FILE, table_lock

HOLD = """
import sys
from state_engine.storage.stores.locks import table_lock
with table_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts processes that hold a lock until a line is written to them."""
    started: list[subprocess.Popen[str]] = []

    def start(uri: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_timeout_names_the_holder(tmp_path: Path, holder: Callable[[str], subprocess.Popen[str]]) -> None:
    uri = f"file://{tmp_path}/t"
    process = holder(uri)
    with (
        pytest.raises(LockTimeoutError, match=rf'held by .*"pid": {process.pid}.*released when it ends'),
        table_lock(uri, timeout_s=0.05),
    ):
        pass
    process.communicate("\n")
    with table_lock(uri, timeout_s=10):
        assert f'"pid": {os.getpid()}' in (tmp_path / "t" / LOCK_FILE).read_text()


def test_killed_holder_frees_the_lock(tmp_path: Path, holder: Callable[[str], subprocess.Popen[str]]) -> None:
    uri = f"file://{tmp_path}/t"
    process = holder(uri)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with table_lock(uri, timeout_s=10):
        pass


def test_an_error_inside_frees_the_lock(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/t"
    with pytest.raises(ValueError, match="inside"), table_lock(uri):
        raise ValueError("inside")
    with table_lock(uri, timeout_s=0.05):
        pass


def test_threads_exclude_each_other(tmp_path: Path) -> None:
    uri, inside, seen = f"file://{tmp_path}/t", threading.Semaphore(1), []

    def enter(_: int) -> None:
        with table_lock(uri):
            seen.append(inside.acquire(blocking=False))
            inside.release()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enter, range(200)))
    assert seen == [True] * 200


def test_names_of_one_directory_share_a_lock(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "t")
    with (
        table_lock(f"file://{tmp_path}/t"),
        pytest.raises(LockTimeoutError),
        table_lock(f"file://{tmp_path}/link", timeout_s=0.05),
    ):
        pass


def test_object_stores_take_no_lock(tmp_path: Path) -> None:
    with table_lock("s3a://bucket/t"), table_lock("s3a://bucket/t", timeout_s=0):
        pass


def test_a_lock_counts_only_if_its_file_is_still_the_one_at_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is removed and made anew while somebody waits for the lock of the old one."""
    uri, table = f"file://{tmp_path}/t", tmp_path / "t"
    real, made_anew = locks._acquire, list[ExitStack]()

    def acquire(handle: int, *args: Any, **options: Any) -> None:
        real(handle, *args, **options)
        if not made_anew:
            made_anew.append(ExitStack())
            shutil.rmtree(table)
            made_anew[0].enter_context(table_lock(uri))

    monkeypatch.setattr(locks, "_acquire", acquire)
    with pytest.raises(LockTimeoutError), table_lock(uri, timeout_s=0.05):
        pass
    made_anew[0].close()
    with table_lock(uri, timeout_s=0.05):
        assert (table / locks.LOCK_FILE).read_text().startswith("{")
