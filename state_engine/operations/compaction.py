"""Writes a base of an operator's keyed state with Spark, and makes the operator's part of the row that commits it.

One Spark job: its tasks fold disjoint key groups and write their files; only the list of files comes back. The files
are seen by nobody until a row of ``checkpoints`` lists them, and micro-batches go on meanwhile. Bases are what
compaction, savepoints and a change of max parallelism rest on. Decision 0017.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from state_engine.core.checkpoints.checkpoint import (
    BaseFile,
    BaseRange,
    CheckpointRow,
    DataFile,
    OperatorCheckpoint,
)
from state_engine.core.errors import ConfigurationError
from state_engine.core.keys.key_groups import KeyGroupRange, check_max_parallelism, remaining
from state_engine.core.types.ddl import parse_ddl
from state_engine.operations.changed_groups import as_ranges
from state_engine.spark.placement import limits_of
from state_engine.spark.tasks import OwnReads, Report, TaskAttempt, run, written_files
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.base import BaseSpec, write_base_files
from state_engine.storage.state.listed_files import KeyGroups
from state_engine.storage.state.located_files import StateFile, state_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS_AT_ONCE = 500_000
"""Rows that a task holds in memory, where no single key group has more."""
_ROWS_OF_ONE_TASK = 50_000
"""Rows that one task folds as fast as several."""


@dataclass(frozen=True)
class WrittenBase:
    """What was written of a base.

    Attributes:
        files: one for each key group that has entries, in order of key groups; paths relative to the table or
            directory.
        expired: files of the operator's changelog with the entries that were left out and are listed.
    """

    files: list[BaseFile]
    expired: list[DataFile]


def write_base(
    spark: SparkSession,
    layout: JobLayout,
    path: Sequence[CheckpointRow],
    uid: str,
    *,
    base_id: str,
    max_parallelism: int | None = None,
    key_groups: Sequence[KeyGroupRange] | None = None,
    savepoint: str | None = None,
    listing: Sequence[str] = (),
) -> WrittenBase:
    """Fold an operator's state at the end of a path into the files of a base, which no reader sees yet.

    What has expired by the clock and the watermark of the path's last row is left out.

    Args:
        max_parallelism: number of key groups of the base, where it changes; by default the operator's.
        savepoint: directory for the files of a savepoint; by default they are for the operator's own table.
        listing: names of states of which the entries that are left out are listed.
    """
    operator = path[-1].operator(uid) if path else None
    if operator is None:
        raise ConfigurationError(f"there is no state of an operator '{uid}' to make a base of")
    max_parallelism = operator.max_parallelism if max_parallelism is None else max_parallelism
    check_max_parallelism(max_parallelism)
    _check_groups(operator, key_groups, max_parallelism)
    files = state_files(layout, path, uid)
    chunks = _chunks(
        files,
        _members(key_groups, max_parallelism),
        before=operator.max_parallelism,
        after=max_parallelism,
        tasks=spark.sparkContext.defaultParallelism,
    )
    if not chunks:
        return WrittenBase([], [])
    spec = BaseSpec(
        uri=savepoint or layout.base(uid),
        base_id=base_id,
        key_type=parse_ddl(operator.key_schema).arrow,
        states=tuple(operator.states),
        max_parallelism=max_parallelism,
        clock_ms=path[-1].clock_ms,
        watermark_ms=path[-1].watermark_of(uid),
        full_snapshot=savepoint is not None,
        changelog=layout.changelog(uid),
        listing=tuple(listing),
    )
    label = f"{layout.job}: base of operator {uid} as of checkpoint {path[-1].checkpoint_id}"
    # a task each, so that progress can be reported
    tasks = OwnReads(len(chunks), chunks.__getitem__, here=limits_of(spark).in_process)
    reports = run(spark, tasks, partial(_fold, spec), label=label, prefix=f"job '{layout.job}': ")
    return WrittenBase(written_files(reports, BaseFile), written_files(reports, DataFile, "expired"))


def compacted(
    operator: OperatorCheckpoint,
    files: Sequence[BaseFile],
    *,
    base_id: str,
    checkpoint_id: int,
    max_parallelism: int,
    expired: Sequence[DataFile] = (),
    key_groups: Sequence[KeyGroupRange] | None = None,
    unchanged: Sequence[KeyGroupRange] = (),
) -> OperatorCheckpoint:
    """The operator's part of the row that commits a base: nothing changed, but where the state lies.

    Args:
        operator: as of the row's parent, which may be later than the checkpoint that the base stands for.
        expired: files with the entries of published states that it leaves out.
        unchanged: of the others, those that did not change between their bases and ``checkpoint_id``: these bases stand
            for it, too, from now on.
    """
    _check_groups(operator, key_groups, max_parallelism)
    new = list(key_groups) if key_groups is not None else [KeyGroupRange(0, max_parallelism - 1)]
    made = [BaseRange(r.start, r.end, base_id, checkpoint_id) for r in new]
    kept = []
    if max_parallelism == operator.max_parallelism:
        for base in operator.bases:
            own = KeyGroupRange(base.key_group_start, base.key_group_end)
            at = [(r, base.checkpoint_id) for r in remaining(own, [*new, *unchanged])]
            newer = max(base.checkpoint_id, checkpoint_id)
            at += [(r, newer) for r in remaining(own, [*new, *remaining(own, unchanged)])]
            kept += [BaseRange(r.start, r.end, base.base_id, stands_for) for r, stands_for in at]
    return replace(
        operator.unwritten(),
        max_parallelism=max_parallelism,
        bases=_joined(sorted([*made, *kept], key=lambda b: b.key_group_start)),
        base_files=list(files),
        expired=list(expired),
        # of other key groups nobody knows the first timers
        first_timers=operator.first_timers if max_parallelism == operator.max_parallelism else [],
    )


def _joined(bases: Sequence[BaseRange]) -> list[BaseRange]:
    ranges: list[BaseRange] = []
    for base in bases:
        last = ranges[-1] if ranges else None
        if last and last.key_group_end + 1 == base.key_group_start and _same(last, base):
            ranges[-1] = replace(last, key_group_end=base.key_group_end)
        else:
            ranges.append(base)
    return ranges


def _same(one: BaseRange, other: BaseRange) -> bool:
    return (one.base_id, one.checkpoint_id) == (other.base_id, other.checkpoint_id)


def _check_groups(
    operator: OperatorCheckpoint, key_groups: Sequence[KeyGroupRange] | None, max_parallelism: int
) -> None:
    if key_groups is None:
        return
    if max_parallelism != operator.max_parallelism:
        raise ConfigurationError(
            f"operator '{operator.uid}': max parallelism changes from {operator.max_parallelism} to "
            f"{max_parallelism}, so every key group must be in the new base: do not choose any"
        )
    ordered = sorted(key_groups, key=lambda r: r.start)
    overlap = any(a.end >= b.start for a, b in pairwise(ordered))
    if overlap or any(r.end >= max_parallelism for r in ordered):
        raise ConfigurationError(
            f"operator '{operator.uid}': key groups {ordered} must not overlap, and must be below "
            f"{max_parallelism}"
        )


# -- tasks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chunk:
    groups: KeyGroups
    files: list[StateFile]


def _fold(spec: BaseSpec, chunk: _Chunk, attempt: TaskAttempt) -> Report:
    files = [f.listed for f in chunk.files]
    written, expired = write_base_files(
        spec, files, chunk.groups, task=attempt.task, attempt=attempt.attempt_id
    )
    return {"files": written, "expired": expired}


def _members(key_groups: Sequence[KeyGroupRange] | None, max_parallelism: int) -> list[int]:
    if key_groups is None:
        return list(range(max_parallelism))
    return sorted(group for groups in key_groups for group in groups)


def _chunks(
    files: Sequence[StateFile],
    groups: Sequence[int],
    *,
    before: int,
    after: int,
    tasks: int,
    at_once: int = _ROWS_AT_ONCE,
) -> list[_Chunk]:
    """Neighbouring key groups with about as many rows as a task may hold, or few enough to keep all tasks busy.

    Args:
        before, after: number of key groups in the files, and in the base.
        at_once: rows that a task may hold.
    """
    # a hash that is r modulo the one number and s modulo the other has r = s modulo what divides both
    residues = gcd(before, after)
    of_residue = np.zeros(residues)
    inside = []
    for file in files:
        of_file = np.unique(np.arange(file.key_group_min, file.key_group_max + 1) % residues)
        of_residue[of_file] += file.listed.rows / len(of_file)
        inside.append(set(of_file.tolist()))
    rows = {g: of_residue[g % residues] * residues / after for g in groups}
    limit = min(at_once, max(_ROWS_OF_ONE_TASK, sum(rows.values()) / tasks))
    chunks: list[list[int]] = []
    held = limit
    for group in (g for g in groups if rows[g]):  # the others have no entry
        if held + rows[group] / 2 >= limit:
            chunks.append([])
            held = 0.0
        chunks[-1].append(group)
        held += rows[group]
    return [
        _Chunk(
            KeyGroups(after, tuple(as_ranges(chunk))),
            [f for f, own in zip(files, inside, strict=True) if own & {g % residues for g in chunk}],
        )
        for chunk in chunks
    ]
