"""Checkpoint rows: a round trip through their table, and a snapshot of their columns."""

from __future__ import annotations

from dataclasses import fields, replace

from state_engine.core.checkpoints.checkpoint import (
    ROW_TYPE,
    BaseRange,
    CheckpointRow,
    OperatorStatePart,
    OperatorStateRef,
    OperatorStateSchema,
    StagedSink,
)
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.updates import continuing
from state_engine.core.checkpoints.write_ids import WriteAttempt
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.types.ddl import ddl_text
from tests.core.checkpoints.rows import changes, checkpoint, operator, progress


def full() -> CheckpointRow:
    staged = StagedSink(
        "out", "delta", "file:///sink", "id", "{}", [changes(0, (None, None), rows=3), changes(1, (1, 2))]
    )
    one = operator(changes(0, (0, 63)))
    one.states.append(StateSchema("s", "value", "bigint"))
    one.bases.append(BaseRange(0, 127, "b1", 1))
    parts = [OperatorStatePart(0, "w1", 2, "d1"), OperatorStatePart(1, "w2", 0)]
    buffered = OperatorStateSchema("buffered", "even_split", "bigint", parts)
    return checkpoint(
        2, 1, watermark_ms=5, operators=[one],
        operator_state=[OperatorStateRef("events", "w2", 1), OperatorStateRef("sink", "w2", 2, 2, [buffered])],
        operator_state_files=[changes(0, (None, None))], sources=[progress("a", "b")], sinks=[staged],
        dead_letters=[changes(0, (None, None))], durations_ms={"plan": 3}, metrics={"seen": 1.5},
        delta_versions={"operator_state": 7}, job="j", code_version="c", requested_by="me",
    )  # fmt: skip


def test_rows_come_back_as_they_were() -> None:
    rows = [full(), checkpoint(1)]
    assert ROW_TYPE.from_arrow(ROW_TYPE.to_arrow(rows, storage=True)) == rows


INHERITED = {
    "clock_ms", "watermark_ms", "operator_state", "job", "code_version", "rescaled", "partition",
    "partition_start_ms", "partition_end_ms", "operator_watermarks_ms", "kept_states", "declared", "digest",
}  # fmt: skip
"""What a row of an operation has from its parent; the commit makes the digest."""


def test_a_row_of_an_operation_has_nothing_of_its_parent_but_what_still_holds() -> None:
    """A new column is inherited until ``continuing`` resets it: decide which it shall be."""
    base = full()
    other = {f.name: {"x": 1} if f.name == "durations_ms" else object() for f in fields(base)} | {
        name: getattr(base, name) for name in ("operators", "sources", "checkpoint_id", "kind")
    }
    parent = replace(base)
    for name, value in other.items():
        object.__setattr__(parent, name, value)
    attempt = WriteAttempt("w", base.created_at)
    row = continuing(parent, CheckpointKind.RESTORE, 7, attempt, requested_by="")
    kept = {f.name for f in fields(row) if getattr(row, f.name) is getattr(parent, f.name)}
    assert kept == INHERITED


def test_parts_are_found_by_name() -> None:
    row = full()
    assert row.operator("counter") is row.operators[0]
    assert row.operator("other") is None
    assert row.sink("out") is row.sinks[0]
    assert row.sink("other") is None
    assert row.sinks[0].rows == 4


def test_state_expires_by_the_watermark_of_its_operator_where_that_is_behind() -> None:
    row = replace(full(), watermark_ms=100, operator_watermarks_ms={"behind": 70, "ahead": 130})
    assert [row.watermark_of(uid) for uid in ("behind", "ahead", "other")] == [70, 100, 100]
    assert replace(row, watermark_ms=None).watermark_of("behind") is None


def test_operator_state_knows_the_attempts_that_hold_elements() -> None:
    assert full().operator_state[0].write_ids() == set()
    assert full().operator_state[1].write_ids() == {"w1"}


def test_the_columns_of_the_table_are_pinned() -> None:
    """A change here changes the format of stored roots: raise FORMAT_VERSION, or keep old rows readable."""
    columns = {f.name: ddl_text(f.type) for f in ROW_TYPE.storage}
    file = (
        "array<struct<`path`: string, `bytes`: bigint, `rows`: bigint, `subtask`: bigint, `key_group_min`: bigint, "
        "`key_group_max`: bigint, `key_hash_min`: bigint, `key_hash_max`: bigint, `footer`: bigint>>"
    )
    base_file = file.removesuffix(">>") + ", `entries`: map<string, bigint>>>"
    plain = dict.fromkeys(
        [
            "checkpoint_id",
            "parent_id",
            "clock_ms",
            "watermark_ms",
            "rows_in",
            "rows_refused",
            "partition_start_ms",
            "partition_end_ms",
            "late_rows",
        ],
        "bigint",
    )
    texts = dict.fromkeys(
        [
            "branch",
            "kind",
            "write_id",
            "job",
            "code_version",
            "requested_by",
            "partition",
            "backfill",
            "declared",
            "digest",
        ],
        "string",
    )
    assert columns == {
        **plain,
        **texts,
        "created_at": "timestamp",
        "drained": "boolean",
        "operator_watermarks_ms": "map<string, bigint>",
        "kept_states": "map<string, array<string>>",
        "operators": (
            "array<struct<`uid`: string, `parallelism`: bigint, `max_parallelism`: bigint, `key_schema`: string, "
            "`states`: array<struct<`name`: string, `kind`: string, `type`: string, `ttl`: string, "
            "`stored_as`: string>>, "
            f"`changelog`: {file}, "
            "`bases`: array<struct<`key_group_start`: bigint, `key_group_end`: bigint, `base_id`: string, "
            "`checkpoint_id`: bigint>>, `changed_entries`: bigint, `key_type`: string, "
            f"`next_timers_ms`: map<string, bigint>, `base_files`: {base_file}, `expired`: {file}, "
            "`directory`: string, "
            "`entries`: map<string, bigint>, "
            "`first_timers`: array<struct<`key_group_start`: bigint, `key_group_end`: bigint, "
            "`times_ms`: map<string, bigint>>>, `asked_late`: array<string>, `second_key`: array<string>, "
            "`shape`: string, `input_type`: string>>"
        ),
        "operator_state": (
            "array<struct<`operator`: string, `write_id`: string, `elements`: bigint, `parallelism`: bigint, "
            "`states`: array<struct<`name`: string, `scheme`: string, `type`: string, "
            "`parts`: array<struct<`subtask`: bigint, `write_id`: string, `elements`: bigint, `digest`: string>>>>, "
            "`last_run`: string, `asked_late`: array<string>>>"
        ),
        "operator_state_files": file,
        "sources": (
            "array<struct<`name`: string, `position_from`: string, `position_to`: string, `rows`: bigint, "
            "`watermark_ms`: bigint, `floor_ms`: bigint, `idle`: boolean, `last_rows_ms`: bigint, "
            "`behind_watermark`: bigint>>"
        ),
        "sinks": (
            "array<struct<`name`: string, `kind`: string, `path`: string, `identity`: string, `schema`: string, "
            f"`files`: {file}, `withdrawn`: {file}>>"
        ),
        "dead_letters": file,
        "durations_ms": "map<string, bigint>",
        "metrics": "map<string, double>",
        "delta_versions": "map<string, bigint>",
        "gates": "array<struct<`name`: string, `bound`: string, `otherwise`: string, `broken`: string>>",
        "expectations": (
            "array<struct<`name`: string, `rule`: string, `otherwise`: string, `rows`: bigint, `broken`: bigint>>"
        ),
        "replaced_id": "bigint",
        "retired": "array<bigint>",
        "pinned": "array<struct<`name`: string, `checkpoint_id`: bigint, `path`: string>>",
        "unpinned": "array<string>",
        "rescaled": "array<struct<`uid`: string, `parallelism`: bigint, `declared`: bigint>>",
    }
