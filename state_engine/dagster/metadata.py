"""What Dagster shows of a micro-batch: numbers as plain ints and floats, so that it can plot them, and small tables.

Everything comes from the committed row and from the engine's report; nothing is measured or computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from state_engine.core.checkpoints.checkpoint import DAGSTER_RUN, CheckpointRow, ExpectationCount
from state_engine.core.checkpoints.dead_letters import letters_waiting
from state_engine.core.checkpoints.entry_counts import EntryCount, entry_counts
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.retention import shown_kind
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.types.ddl import ddl_text
from state_engine.core.types.type_text import shown_storage
from state_engine.dagster.pictures import (
    durations_and_lag,
    event_time_lag_s,
    key_group_load,
    state_sizes,
)
from state_engine.microbatch.reports import BatchReport, OperatorReport
from state_engine.state_tables.base import TableReport

Metadata = Mapping[str, Any]


def checkpoint_metadata(row: CheckpointRow, batch: BatchReport | None, history: History) -> Metadata:
    """One committed micro-batch.

    Args:
        batch: what the run that committed it measured; None where an earlier run did and this one published it.
        history: of the job, by id: the parent links to the run that committed it.
    """
    metadata: dict[str, Any] = {
        "checkpoint_id": row.checkpoint_id,
        "parent_checkpoint_id": dg.MetadataValue.null() if row.parent_id is None else row.parent_id,
        "kind": shown_kind(row),
        "rows_in": row.rows_in,
        "rows_refused": row.rows_refused,
        "refused_share": round(row.rows_refused / row.rows_in, 4) if row.rows_in else 0.0,
        "dead_letters": letters_waiting(history.path(row.checkpoint_id))
        if row.checkpoint_id in history
        else 0,
        "rows_out": sum(sink.rows for sink in row.sinks),
        "changed_entries": sum(operator.changed_entries for operator in row.operators),
        "clock": _instant(row.clock_ms),
        "watermark": dg.MetadataValue.null() if row.watermark_ms is None else _instant(row.watermark_ms),
        "behind_watermark": row.behind_watermark,
        "write_id": row.write_id,
        "requested_by": row.requested_by,
    }
    parent = history.get(row.parent_id) if row.parent_id is not None else None
    if parent is not None and parent.requested_by.startswith(DAGSTER_RUN):
        metadata["parent_checkpoint"] = dg.MetadataValue.dagster_run(
            parent.requested_by.removeprefix(DAGSTER_RUN)
        )
    if row.partition:
        metadata |= {"partition": row.partition, "late_rows": row.late_rows}
    by_source = {source.name: source.behind_watermark for source in row.sources if source.behind_watermark}
    if by_source:
        metadata["behind_watermark_by_source"] = dg.MetadataValue.json(by_source)
    if row.expectations:
        metadata["rows_that_break_rules"] = sum(one.broken for one in row.expectations)
        metadata["expectations"] = dg.MetadataValue.md(_expectations(row.expectations))
    if (lag_s := event_time_lag_s(row)) is not None:
        metadata["event_time_lag_s"] = lag_s
    if batch is not None:
        operators = list(batch.operators.values())
        metadata |= {
            "keys_touched": sum(operator.keys for operator in operators),
            "bytes_written": batch.bytes_written,
            "seconds": round(batch.seconds, 3),
            "events_per_second": events_per_second(batch.rows_in, batch.seconds),
            "delta_commits": batch.delta_commits,
            "steps": dg.MetadataValue.md(_steps(batch.steps_s)),
            "operators": dg.MetadataValue.md(operator_table(operators)),
            "key_group_skew": dg.MetadataValue.md(skew_table(operators)),
            "key_group_load": dg.MetadataValue.md(key_group_load(operators)),
        }
    return metadata


def run_metadata(
    batches: Sequence[BatchReport],
    *,
    caught_up: bool,
    published_pending: Sequence[int],
    waiting: Sequence[str] = (),
    outages: Sequence[str] = (),
) -> Metadata:
    """What is true of the whole run, beside its last checkpoint."""
    seconds = sum(batch.seconds for batch in batches)
    rows = sum(batch.rows_in for batch in batches)
    return {
        "run_batches": len(batches),
        "run_rows_in": rows,
        "run_seconds": round(seconds, 3),
        "run_events_per_second": events_per_second(rows, seconds),
        "caught_up": caught_up,
        "published_for_earlier_runs": dg.MetadataValue.json(list(published_pending)),
        "files_waiting": dg.MetadataValue.json(list(waiting)),
        "outages": dg.MetadataValue.json(list(outages)),
    }


def history_metadata(path: Sequence[CheckpointRow]) -> Metadata:
    """Pictures of the newest checkpoints on a path, and what the keyed state is made of at its end."""
    picture, sizes = state_sizes(path)
    files, size = sizes[-1]
    return {
        "state_files": files,
        "state_bytes": size,
        "state_size": dg.MetadataValue.md(picture),
        "durations_and_lag": dg.MetadataValue.md(durations_and_lag(path)),
    }


def sink_metadata(sink: str, rows: Sequence[CheckpointRow]) -> Metadata:
    """What a run published to the sink of a name: ``rows`` are the checkpoints that it published."""
    staged = [in_row for row in rows if (in_row := row.sink(sink)) is not None]
    return {
        "rows_out": sum(one.rows for one in staged),
        "files": sum(len(one.files) for one in staged),
        "bytes_written": sum(file.bytes for one in staged for file in one.files),
        "checkpoints": dg.MetadataValue.json([row.checkpoint_id for row in rows]),
    }


def table_metadata(table: str, moves: Sequence[TableReport], checkpoint_id: int) -> Metadata:
    """What a run changed in the published table of a name, and the checkpoint whose state it shows then.

    Args:
        moves: what tables got, one move after the other.
    """
    own = [move for move in moves if move.name == table]
    compared = [move.whole for move in own if move.whole]
    return {
        "rows_came": sum(move.rows for move in own),
        "rows_went": sum(move.deleted for move in own),
        "shows_checkpoint": checkpoint_id,
        **({"compared_as_a_whole": compared[-1]} if compared else {}),
    }


def moves_table(moves: Sequence[TableReport]) -> str:
    """What published tables got, or would get, as Markdown."""
    return markdown(
        ["table", "rows come", "rows go", "because"], [[m.name, m.rows, m.deleted, m.whole] for m in moves]
    )


def state_metadata(
    path: Sequence[CheckpointRow], operator: str, state: str, batches: Sequence[BatchReport]
) -> Metadata:
    """What a run changed in the operator that a state belongs to; entries and columns of the state at a path's end."""
    row = path[-1]
    done = [batch.operators[operator] for batch in batches if operator in batch.operators]
    metadata: dict[str, Any] = {
        "operator_changed_entries": sum(report.changed_entries for report in done),
        "operator_rows_in": sum(report.rows_in for report in done),
        "changelog_bytes": sum(report.changelog_bytes for report in done),
    }
    if done:
        metadata["keys_touched_by_last_batch"] = done[-1].keys
    metadata |= _entries(entry_counts(path, operator).get(state), row)
    recorded = row.operator(operator)
    schema = next((s for s in recorded.states if s.name == state), None) if recorded else None
    if recorded is not None and schema is not None:
        key = KeySchema.recorded(recorded.key_schema, recorded.key_type)  # as declared, where that is known
        metadata["kind"] = schema.kind
        metadata["stored_type"] = ddl_text(shown_storage(schema.type))
        columns = [dg.TableColumn(*one) for one in zip(key.names, key.type_texts, strict=True)]
        metadata["key_columns"] = dg.MetadataValue.table_schema(dg.TableSchema(columns))
    return metadata


def _entries(count: EntryCount | None, row: CheckpointRow) -> Metadata:
    """How many entries a state has, and as of when: empty where nobody knows before a compaction."""
    if count is None:
        return {}
    as_of = f"checkpoint {count.checkpoint_id}"
    if count.checkpoint_id != row.checkpoint_id:
        as_of += ", the last compaction: later expiries, and writes without reading, are not counted"
    return {"entries": count.entries, "entries_as_of": as_of}


def events_per_second(rows: int, seconds: float) -> float:
    """Rows per second; 0 where nothing was timed."""
    return round(rows / seconds, 1) if seconds > 0 else 0.0


def operator_table(operators: Sequence[OperatorReport]) -> str:
    return markdown(
        ["operator", "rows in", "rows out", "refused", "keys", "changed entries", "changelog bytes"],
        [
            [
                o.uid, o.rows_in, o.rows_out, o.rows_refused, o.keys, o.changed_entries, o.changelog_bytes
            ]
            for o in operators
        ],
    )  # fmt: skip


def skew_table(operators: Sequence[OperatorReport]) -> str:
    """How evenly rows fell on key groups and subtasks, as Markdown; skew 1.0 is perfectly even."""
    lines: list[list[Any]] = []
    for one in operators:
        if not one.group_rows:
            continue
        fullest = max(one.group_rows, key=lambda group: (one.group_rows[group], -group))
        mean = sum(one.group_rows.values()) / len(one.group_rows)
        most = one.group_rows[fullest]
        subtasks = " / ".join(f"{s.rows_in:,}" for s in sorted(one.subtasks, key=lambda s: s.subtask))
        lines.append([one.uid, len(one.group_rows), mean, most, fullest, most / mean, subtasks])
    return markdown(
        ["operator", "key groups", "rows each, mean", "most", "in group", "skew", "rows by subtask"], lines
    )


def markdown(header: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    r"""A Markdown table; numbers to the right.

    Example:
        >>> print(markdown(["what", "rows"], [["a|b", 1200]]))
        | what | rows |
        |---|---:|
        | a\|b | 1,200 |
    """
    right = [
        bool(lines) and all(isinstance(line[i], int | float) for line in lines) for i in range(len(header))
    ]
    rule = "".join("|---:" if number else "|---" for number in right)
    return "\n".join([_line(header), f"{rule}|", *map(_line, lines)])


def _line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else " ".join(str(value).split()).replace("|", "\\|")


def _expectations(counts: Sequence[ExpectationCount]) -> str:
    return markdown(
        ["expectation", "rule", "otherwise", "rows", "break it"],
        [[one.name, one.rule, one.otherwise, one.rows, one.broken] for one in counts],
    )


def _steps(steps_s: Mapping[str, float]) -> str:
    return markdown(["step", "ms"], [[name, round(s * 1000)] for name, s in steps_s.items()])


def _instant(ms: int) -> Any:
    return dg.MetadataValue.timestamp(datetime.fromtimestamp(ms / 1000, UTC))
