"""What of Azure can be tried without an account: Azurite, an emulator of its blob service, where it is installed.

It has no hierarchical namespace, so no rename of directories in one step: a ``FileSink`` is refused there, and the rest
of what the engine does to files works.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from state_engine import FileSink
from state_engine.core.errors import ConfigurationError
from state_engine.storage.stores import files
from state_engine.storage.stores.files import join, open_location, write_parquet
from tests.sinks.requests import asked
from tests.support.ports import free_port
from tests.support.waiting import until

AZURITE = shutil.which("azurite-blob", path=Path(sys.prefix) / "azurite" / "node_modules" / ".bin")
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of every Azurite; its documentation gives it."""
URI = f"abfss://box@{ACCOUNT}.dfs.core.windows.net/lake"
TABLE = pa.table({"id": [1, 2, 3]})

pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(AZURITE is None, reason="make test-stores installs Azurite where there is npm"),
]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pafs.FileSystem]:
    """The blob service, with the container ``box``, as pyarrow reaches it."""
    assert AZURITE is not None
    address = f"127.0.0.1:{(port := free_port())}"
    command = [
        AZURITE, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--silent",
        "--skipApiVersionCheck", "--disableTelemetry",
    ]  # fmt: skip
    with subprocess.Popen(
        command, cwd=tmp_path_factory.mktemp("azurite"), stdout=subprocess.DEVNULL
    ) as server:
        try:
            fs = pafs.AzureFileSystem(
                ACCOUNT, account_key=KEY, blob_storage_authority=address, dfs_storage_authority=address,
                blob_storage_scheme="http", dfs_storage_scheme="http",
            )  # fmt: skip
            until(lambda: _has_container(fs), "Azurite", within_s=60)
            yield fs
        finally:
            server.kill()


def _has_container(fs: pafs.FileSystem) -> bool:
    try:
        fs.create_dir("box")
    except OSError:
        return False
    return True


@pytest.fixture(autouse=True)
def reached(emulator: pafs.FileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine reaches the container by its URI."""
    monkeypatch.setattr(files, "_remote", lambda uri: (emulator, "box/" + uri.split("/", 3)[3]))


def test_files_are_written_listed_read_and_deleted(tmp_path: Path) -> None:
    at = open_location(URI)
    written = write_parquet(TABLE, join(URI, "a", "b", "one.parquet"))
    at.inside("a", "note.json").write(b'{"n": 1}')
    sizes = {path: info.size for path, info in at.files().items()}
    assert sizes == {"a/b/one.parquet": written.bytes, "a/note.json": 8}
    with at.inside("a", "b", "one.parquet").opened() as file:
        assert pq.ParquetFile(file).read() == TABLE
    assert at.inside("a", "note.json").read_json() == {"n": 1}
    at.inside("a", "b", "one.parquet").copy_to(open_location(f"file://{tmp_path}/one.parquet"))
    assert pq.read_table(tmp_path / "one.parquet") == TABLE
    at.inside("a", "note.json").delete()
    with pytest.raises(FileNotFoundError):
        at.inside("a", "note.json").read()
    at.inside("a").delete_directory()
    assert at.files() == {}


def test_a_file_sink_is_refused_where_directories_are_not_renamed() -> None:
    def write_new(uri: str, text: str) -> bool:
        open_location(uri).write(text.encode())
        return True

    request = asked(SimpleNamespace(write_new=write_new), TABLE.schema, "w1")
    with pytest.raises(ConfigurationError, match=r"without a hierarchical namespace.*use a DeltaSink"):
        FileSink(f"{URI}/out").prepare(request)
    assert not [path for path in open_location(URI).files() if "_staged" in path or "sink.json" in path]
