"""Logs of tables in memory fence as Delta Kernel does: by versions of transactions, and by files that are gone."""

from __future__ import annotations

import pyarrow as pa
import pytest

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.storage.delta.kernel import (
    FileGroup,
    InactiveFilesError,
    Transaction,
    TransactionTakenError,
)
from state_engine.testing.memory_kernel import MemoryKernel

TABLE = "file:///nowhere/table"


def files(*names: str) -> list[FileGroup]:
    return [FileGroup([DataFile(name, 1, 1, 0) for name in names])]


def test_a_version_of_a_transaction_is_taken_once() -> None:
    kernel = MemoryKernel()
    assert kernel.version(TABLE) is None
    assert kernel.create_table(TABLE, pa.schema([]), properties={"a": "b"})
    assert not kernel.create_table(TABLE, pa.schema([]))
    assert kernel.properties(TABLE) == {"a": "b"}
    assert kernel.change(TABLE, add=files("x"), transaction=Transaction("job", 1)) == 1
    for version in (1, 0):
        with pytest.raises(TransactionTakenError):
            kernel.change(TABLE, add=files("y"), transaction=Transaction("job", version))
    kernel.change(TABLE, add=files("z"), transaction=Transaction("other", 1))
    assert kernel.active_files(TABLE) == ["x", "z"]
    assert kernel.latest_transaction(TABLE, "job") == 1


def test_files_that_are_gone_are_not_removed_again_and_nothing_is_changed() -> None:
    kernel = MemoryKernel()
    kernel.create_table(TABLE, pa.schema([]))
    kernel.change(TABLE, add=files("x"))
    kernel.change(TABLE, add=[], remove=["x"])
    with pytest.raises(InactiveFilesError):
        kernel.change(TABLE, add=files("y"), remove=["x"], transaction=Transaction("job", 1))
    assert kernel.active_files(TABLE) == []
    assert kernel.latest_transaction(TABLE, "job") is None
