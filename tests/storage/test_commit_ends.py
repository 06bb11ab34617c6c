"""The meaning of Java exceptions of a commit, simulated by objects of the same form."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from state_engine.core.errors import CommitFailedError, CommitUnknownError, MissingFilesError, StorageError
from state_engine.storage.delta.commit_ends import (
    OvertakenError,
    TransactionTakenError,
    classified,
    unreadable,
)

URI = "file:///state/totals/checkpoints"


@dataclass
class Java:
    """A Java exception."""

    name: str
    message: str
    cause: Java | None = None

    def getClass(self) -> Any:
        short = self.name.rpartition(".")[2]
        return SimpleNamespace(getName=lambda: self.name, getSimpleName=lambda: short)

    def getMessage(self) -> str:
        return self.message

    def getCause(self) -> Java | None:
        return self.cause

    def getSuppressed(self) -> list[Java]:
        return []


def raised(*chain: tuple[str, str]) -> Any:
    """An error of py4j; outermost exception first."""
    cause: Java | None = None
    for name, message in reversed(chain):
        cause = Java(name, message, cause)
    return SimpleNamespace(java_exception=cause)


DENIED = (
    ("io.delta.kernel.exceptions.MaxCommitRetryLimitReachedException", "Commit attempt 200 failed"),
    ("java.io.IOException", "cannot write"),
    ("java.io.FileNotFoundException", "/state/_delta_log/.7.json.tmp (Permission denied)"),
)


def test_a_denied_log_is_no_lost_race() -> None:
    error = classified(raised(*DENIED), URI, committing=True)
    assert type(error) is CommitUnknownError
    assert "the permission is denied" in str(error)
    assert "Give the user" in str(error)
    assert "another writer" not in str(error)


@pytest.mark.parametrize("said", ["No space left on device", "Too many open files", "Read-only file system"])
def test_what_is_refused_before_the_commit_failed_for_certain(said: str) -> None:
    error = classified(raised(("java.io.IOException", said)), URI, committing=False)
    assert type(error) is CommitFailedError
    assert "Nothing was written" in str(error)
    assert said in str(error)


def test_races_are_what_they_were() -> None:
    lost = classified(raised(DENIED[0]), "s3a://bucket/t", committing=True)
    assert isinstance(lost, OvertakenError)
    taken = raised(("io.delta.kernel.exceptions.ConcurrentTransactionException", "seen"))
    assert isinstance(classified(taken, URI, committing=True), TransactionTakenError)


def test_a_table_that_cannot_be_read_is_named() -> None:
    assert isinstance(
        unreadable(raised(("java.io.IOException", "Too many open files")).java_exception, URI), StorageError
    )
    silent = unreadable(
        raised(
            ("io.delta.kernel.exceptions.KernelEngineException", "Error reading JSON file"),
            ("software.amazon.awssdk.core.exception.SdkClientException", "Unable to execute HTTP request"),
        ).java_exception,
        URI,
    )
    assert isinstance(silent, StorageError)
    assert "does not answer" in str(silent)
    damaged = unreadable(raised(("java.lang.RuntimeException", "Could not parse")).java_exception, URI)
    assert isinstance(damaged, MissingFilesError)
    assert URI in str(damaged)
    assert "backup" in str(damaged)
