"""Dead letters in Dagster: their number is in the metadata of a micro-batch and in a check."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import dagster as dg
import pytest

from state_engine import StatefulJob
from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile, SourceProgress
from state_engine.core.checkpoints.dead_letters import LETTERS
from state_engine.core.errors import StorageError
from state_engine.dagster.concepts import checks
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.metadata import checkpoint_metadata
from state_engine.machine.settings import Settings
from state_engine.registry import RegisteredJob
from tests.core.checkpoints.rows import checkpoint, tree

WARN, ERROR = dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR


def row(
    number: int, *, rows_in: int = 6, refused: int = 0, kind: str = "checkpoint", sent: int = 0
) -> CheckpointRow:
    letters = [DataFile(f"write_id=w{number}/letters", 1, refused, 0)] if refused else []
    position = json.dumps({"letters": sent})
    return checkpoint(
        number,
        number - 1 or None,
        kind=kind,
        rows_in=rows_in,
        rows_refused=refused,
        dead_letters=letters,
        sources=[SourceProgress(LETTERS, position, position, 0, None)] if sent else [],
    )


def checked(monkeypatch: pytest.MonkeyPatch, path: list[CheckpointRow]) -> dg.AssetCheckResult:
    monkeypatch.setattr(checks, "read_history", lambda root, job: SimpleNamespace(path=path))
    return run_check()


def run_check() -> dg.AssetCheckResult:
    letters_check = checks._dead_letters(
        DagsterJob(registered=RegisteredJob(job=StatefulJob("refusing")), settings=Settings())
    )
    result = letters_check()
    assert isinstance(result, dg.AssetCheckResult)
    return result


@pytest.mark.parametrize(
    ("path", "passed", "severity", "counts"),
    [
        ([], True, WARN, (0, 0, 0)),
        ([row(1)], True, WARN, (0, 0, 6)),
        ([row(1, refused=2), row(2)], False, WARN, (2, 0, 6)),
        ([row(1), row(2, refused=6), row(3, kind="compaction")], False, ERROR, (6, 6, 6)),
        ([row(1, refused=2), row(2, sent=1)], False, WARN, (1, 0, 6)),
        ([row(1, refused=2), row(2, sent=2)], True, WARN, (0, 0, 6)),
    ],
)
def test_the_check_warns_of_letters_and_fails_where_all_rows_are_refused(
    monkeypatch: pytest.MonkeyPatch, path: list[CheckpointRow], passed: bool, severity: dg.AssetCheckSeverity,
    counts: tuple[int, int, int],
) -> None:  # fmt: skip
    result = checked(monkeypatch, path)
    assert (result.passed, result.severity) == (passed, severity)
    shown = [result.metadata[name].value for name in ("dead_letters", "rows_refused", "rows_in")]
    assert tuple(shown) == counts
    assert ("statelake dead-letters list refusing" in (result.description or "")) is not passed


def test_a_history_that_cannot_be_read_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(root: str, job: str) -> None:
        raise StorageError("job 'refusing': denied")

    monkeypatch.setattr(checks, "read_history", refuse)
    result = run_check()
    assert (result.passed, result.severity) == (False, WARN)
    assert "denied" in (result.description or "")


def test_the_metadata_of_a_micro_batch_counts_late_rows() -> None:
    late = [
        SourceProgress(name, "", "", 6, None, behind_watermark=behind)
        for name, behind in (("a", 2), ("b", 0), ("c", 1))
    ]
    rows = tree([row(1), replace(row(2), sources=late)])
    shown = [checkpoint_metadata(one, None, rows) for one in rows.values()]
    assert [one["behind_watermark"] for one in shown] == [0, 3]
    assert "behind_watermark_by_source" not in shown[0]
    assert shown[1]["behind_watermark_by_source"].value == {"a": 2, "c": 1}


def test_the_metadata_of_a_micro_batch_counts_what_waits_by_then() -> None:
    rows = tree([row(1, refused=3), row(2, refused=1), row(3, sent=2)])
    shown = [checkpoint_metadata(one, None, rows) for one in rows.values()]
    assert [one["dead_letters"] for one in shown] == [3, 4, 2]
    assert [one["rows_refused"] for one in shown] == [3, 1, 0]
    assert [one["refused_share"] for one in shown] == [0.5, round(1 / 6, 4), 0.0]
