"""When an operator is compacted: by the files that lie upon one another, or by changes beside entries."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from state_engine.core.checkpoints.checkpoint import BaseRange, CheckpointRow, DataFile
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.compaction_policy import (
    CompactionNeed,
    CompactionPolicy,
    compaction_due,
    compaction_need,
)
from state_engine.core.errors import ConfigurationError
from state_engine.core.state.state_schema import StateSchema
from tests.core.checkpoints.rows import changes, checkpoint, in_base, operator

FEW = CompactionPolicy(max_files=3, max_ratio=0.5, min_entries=20)


def batches(*files: list[DataFile], first: int = 1, bases: tuple[BaseRange, ...] = ()) -> list[CheckpointRow]:
    """Micro-batches in a row, each with files of changes."""
    return [
        checkpoint(i, i - 1 or None, operators=[replace(operator(*own), bases=list(bases))])
        for i, own in enumerate(files, first)
    ]


def test_files_of_two_subtasks_do_not_lie_upon_one_another() -> None:
    both = [changes(0, (0, 63)), changes(1, (64, 127))]
    need = compaction_need(batches(both, both), "counter", FEW)
    assert (need.files, need.rows, need.reason) == (2, 4, "")
    assert (
        compaction_need(batches(both, both, both), "counter", FEW).reason
        == "3 files of changes, the policy allows 3"
    )


def test_what_a_base_holds_is_no_reason_any_more() -> None:
    one = [changes(0, (0, 127), rows=4)]
    path = batches(one, one, one)
    base = replace(
        path[-1].operators[0],
        changelog=[],
        bases=[BaseRange(0, 127, "w4", 3)],
        base_files=[in_base((0, 127), rows=24)],
    )
    path.append(checkpoint(4, 3, kind=CheckpointKind.COMPACTION, operators=[base]))
    need = compaction_need(path, "counter", FEW)
    assert (need.files, need.rows, need.entries, need.reason) == (0, 0, 24, "")
    path += batches([changes(0, (0, 127), rows=11)], first=5, bases=tuple(base.bases))
    assert compaction_need(path, "counter", FEW).reason == ""  # less than half of the entries
    path += batches([changes(0, (0, 127), rows=1)], first=6, bases=tuple(base.bases))
    assert compaction_need(path, "counter", FEW).reason == "12 changes on 24 entries"


def test_few_changes_are_no_reason_whatever_the_ratio() -> None:
    assert compaction_need(batches([changes(0, (0, 127), rows=9)]), "counter", FEW).reason == ""
    assert compaction_need(batches([changes(0, (0, 127), rows=10)]), "counter", FEW).reason


def test_entries_that_are_counted_are_enough_where_no_base_has_them() -> None:
    def need(rows: int, entries: int) -> CompactionNeed:
        row = batches([changes(0, (0, 127), rows=rows)])[0]
        first = replace(row, operators=[replace(row.operators[0], entries={"totals": entries})])
        return compaction_need([first], "counter", FEW)

    assert need(11, 24) == CompactionNeed(1, 11, 24)  # to fold them would save nothing
    assert need(12, 24).reason == "12 changes on 24 entries"
    assert need(10, 1).reason == "10 changes on 1 entry"  # as many as 20


def with_positions(
    path: list[CheckpointRow], *, kind: CheckpointKind = CheckpointKind.CHECKPOINT
) -> list[CheckpointRow]:
    """The path, each row of which lists a file of source positions and one of operator state."""
    return [
        replace(
            row,
            kind=kind,
            operator_state_files=[
                DataFile(f"part-{row.checkpoint_id}.parquet", 1, 1, 0),
                DataFile(f"part-{row.checkpoint_id}.counter.parquet", 1, 1, 0),
            ],
        )
        for row in path
    ]


def test_many_files_of_source_positions_are_a_reason_of_their_own() -> None:
    path = with_positions([checkpoint(i, i - 1 or None) for i in range(1, 6)])
    due = compaction_due(path, FEW)
    assert (bool(due), due.positions) == (False, "")
    assert due.reason == "0 files of changes on top of one another, 0 changes on 0 entries"
    path += with_positions([checkpoint(6, 5)])
    due = compaction_due(path, FEW)
    assert (bool(due), due.reasons, due.reason) == (True, {}, "6 files of source positions")
    path += with_positions([checkpoint(7, 6)], kind=CheckpointKind.COMPACTION)
    assert not compaction_due(path, FEW), "they are stated whole now"


def test_reasons_are_reported_by_operator() -> None:
    many, few = [changes(0, (0, 127), rows=4)], [changes(0, (0, 63))]
    rows = [
        checkpoint(
            i, i - 1 or None, operators=[operator(*many), replace(operator(*few if i == 1 else ()), uid="b")]
        )
        for i in (1, 2, 3)
    ]
    due = compaction_due(with_positions(rows * 2), FEW)
    assert due.reasons == {"counter": "6 files of changes, the policy allows 3"}
    assert (
        due.reason
        == "operator 'counter': 6 files of changes, the policy allows 3; 6 files of source positions"
    )
    assert (due.files, due.rows, due.entries) == (6, 26, 0)
    assert not compaction_due([], FEW)


def test_an_operator_that_the_path_does_not_know_needs_nothing() -> None:
    assert compaction_need(batches([changes(0, (0, 127))]), "other", FEW).files == 0
    assert compaction_need([], "counter", FEW).reason == ""


HOUR_MS = 3_600_000
HOURLY = {"ttl_ms": HOUR_MS, "time": "ProcessingTime", "visibility": "NeverReturnExpired", "compaction": True}
BY_EVENT = HOURLY | {"time": "EventTime"}


def based(
    *ttls: dict[str, Any] | None, at: tuple[int, int | None], now: tuple[int, int | None], **more: Any
) -> list[CheckpointRow]:
    """A compaction whose base has 30 entries of the first 64 key groups, and a micro-batch some time after it."""
    states = [
        StateSchema(f"s{i}", "value", "bigint", json.dumps(ttl) if ttl else "") for i, ttl in enumerate(ttls)
    ]
    ranges = [BaseRange(0, 63, "w1", 1), BaseRange(64, 127, "w0", 0)]
    files = [in_base((group, group), rows=10) for group in (0, 7, 63)]
    one = replace(operator(), bases=ranges, base_files=files, states=states)
    clocks = [{"clock_ms": clock, "watermark_ms": watermark} for clock, watermark in (at, now)]
    return [
        checkpoint(1, kind=CheckpointKind.COMPACTION, operators=[one], **clocks[0]),
        checkpoint(2, 1, operators=[replace(one, base_files=[], **more)], **clocks[1]),
    ]


@pytest.mark.parametrize(
    ("path", "expired"),
    [
        (based(HOURLY, at=(1, None), now=(HOUR_MS + 1, None)), 30),
        (based(HOURLY, at=(1, None), now=(HOUR_MS, None)), 0),
        (based(HOURLY, HOURLY | {"ttl_ms": 1}, at=(1, None), now=(HOUR_MS, None)), 0),
        (based(BY_EVENT, at=(1, 5), now=(9 * HOUR_MS, HOUR_MS + 5)), 30),
        (based(BY_EVENT, at=(1, 5), now=(9 * HOUR_MS, HOUR_MS + 4)), 0),
        (based(BY_EVENT, at=(1, None), now=(9 * HOUR_MS, HOUR_MS)), 0),
        (based(HOURLY, None, at=(1, None), now=(9 * HOUR_MS, None)), 0),
        (based(at=(1, None), now=(9 * HOUR_MS, None)), 0),
        (based(HOURLY | {"compaction": False}, at=(1, None), now=(9 * HOUR_MS, None)), 0),
        (
            based(
                HOURLY | {"visibility": "ReturnExpiredIfNotCleanedUp"}, at=(1, None), now=(9 * HOUR_MS, None)
            ),
            0,
        ),
        (based(HOURLY, at=(1, None), now=(9 * HOUR_MS, None), next_timers_ms={"event": 9}), 0),
    ],
    ids=["over", "not yet", "one still lives", "event time", "not yet by event time", "no event time",
         "one is for ever", "no state", "not in compactions", "may be seen", "a timer"],
)  # fmt: skip
def test_a_base_from_before_all_that_lives_is_a_reason(path: list[CheckpointRow], expired: int) -> None:
    need = compaction_need(path, "counter", CompactionPolicy())
    assert (need.expired, need.entries) == (expired, 30)
    assert need.reason == (f"{expired} of 30 entries have expired" if expired else "")


def test_some_may_have_expired() -> None:
    path = based(HOURLY, at=(1, None), now=(2 * HOUR_MS, None))
    newer = replace(path[0], checkpoint_id=0, write_id="w0", clock_ms=2 * HOUR_MS)
    others = replace(newer.operators[0], base_files=[in_base((64, 64), rows=31)])
    path = [replace(newer, operators=[others]), *path]
    need = compaction_need(path, "counter", CompactionPolicy())
    assert (need.expired, need.entries, need.reason) == (30, 61, "")
    assert compaction_need(path, "counter", CompactionPolicy(max_expired=0.49)).reason
    assert not compaction_need(path, "counter", CompactionPolicy(max_expired=1.1)).reason


@pytest.mark.parametrize(
    "wrong",
    [{"max_files": 1}, {"max_ratio": -0.1}, {"min_entries": -1}, {"max_files": "8"}, {"max_expired": -1}],
)
def test_numbers_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(wrong))} must be at least"):
        CompactionPolicy(**wrong)
