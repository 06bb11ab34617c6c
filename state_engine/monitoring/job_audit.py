"""What must hold of a job's tables, looked at again after the fact: each rule reads them and says what is wrong.

The engine checks the same before every commit; this finds what happened to the tables since, or beside the engine. No
Spark and no Java are needed. Nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow, DataFile
from state_engine.core.checkpoints.invariants import Violation, violations
from state_engine.core.checkpoints.state_files import keyed_state_files
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import DamagedFileError
from state_engine.core.keys.key_arrays import key_groups_of
from state_engine.monitoring.job_history import JobHistory
from state_engine.monitoring.restorable import needed_files
from state_engine.sources.source_positions import SourcePositions
from state_engine.storage.stores.files import join, open_location
from state_engine.storage.stores.in_threads import in_threads
from state_engine.storage.stores.parquet_reading import open_recorded

_POSITIONS, _GROUPS = "source positions are contiguous", "every key in its own key group"
_ONE_CHILD = ("ids grow", "on the branch", "continues existing rows")
_SAMPLED_FILES = 32
"""Files of an operator whose keys are looked at: the newest ones."""
_SHOWN = 5
"""Problems that a text names."""


@dataclass(frozen=True)
class Finding:
    """What a rule saw.

    Attributes:
        problems: what is wrong with them; empty where all is right.
    """

    looked_at: int
    what: str
    problems: tuple[str, ...] = ()


def positions_are_contiguous(history: JobHistory) -> Finding:
    """Every checkpoint reads on where its parent ended, and the recorded ends are what the table of positions says."""
    path = history.path
    problems = [f"checkpoint {i}: {v.detail}" for i, v in _broken(path, positions_are_contiguous.__name__)]
    positions = SourcePositions(history.layout.operator_state)
    for source in path[-1].sources if path else []:
        recorded = json.loads(source.position_to or "{}").get("elements")
        elements = len(positions.elements(path, source.name))
        if recorded is not None and recorded != elements:
            problems.append(
                f"source '{source.name}': its position has {counted(elements, 'element')} on the path, and "
                f"{recorded} in the "
                "count of its head"
            )
    return Finding(len(path), "checkpoints", tuple(problems))


def one_commit_per_parent(history: JobHistory) -> Finding:
    """No id was committed twice, and no two rows of ``main`` continue the same one but those that move the head."""
    problems = [f"id {i} was committed {n} times" for i, n in history.repeated.items()]
    children: dict[int | None, list[CheckpointRow]] = {}
    for row in history.checkpoints.values():
        if row.branch == MAIN and not row.kind.starts_elsewhere:
            children.setdefault(row.parent_id, []).append(row)
    for parent, rows in children.items():
        if len(rows) > 1:
            ids = [row.checkpoint_id for row in rows]
            problems.append(f"checkpoints {ids} all continue {parent}")
    return Finding(len(history.checkpoints), "checkpoints", tuple(problems))


def rows_fit_their_parents(history: JobHistory) -> Finding:
    """Clocks, watermarks, partitions, bases and counts of every checkpoint are as they may be after its parent."""
    path = history.path
    broken = _broken(path, rows_fit_their_parents.__name__)
    return Finding(
        len(path), "checkpoints", tuple(f"checkpoint {i}: {v.name}: {v.detail}" for i, v in broken)
    )


def _broken(path: Sequence[CheckpointRow], rule: str) -> Iterator[tuple[int, Violation]]:
    """The invariants that a rule looks at and rows of a path break, with the ids of these."""
    for parent, row in zip([None, *path[:-1]], path, strict=True):
        for violation in violations(row, parent):
            if rule_of(violation.name) == rule:
                yield row.checkpoint_id, violation


def outputs_are_published(history: JobHistory) -> Finding:
    """Every sink has seen all that the head's path staged for it."""
    problems = [
        f"sink '{staged.name}' ({staged.path}) has not seen checkpoint {row.checkpoint_id}: "
        f"{counted(staged.rows, 'row')}"
        for row, staged in history.unpublished()
    ]
    return Finding(len(history.path), "checkpoints", tuple(problems))


def keys_are_in_their_groups(history: JobHistory) -> Finding:
    """Every key is in the key group of its hash, and every file holds only key groups of the subtask that wrote it.

    Of each operator the newest files are read; of all others the recorded ranges are compared.
    """
    path, looked_at = history.path, 0
    problems = [f"checkpoint {i}: {v.detail}" for i, v in _broken(path, keys_are_in_their_groups.__name__)]
    for operator in path[-1].operators if path else []:
        files, layout = keyed_state_files(path, operator.uid), history.layout
        since = {row.checkpoint_id: row.operator(operator.uid) for row in path}
        wanted: list[tuple[str, DataFile, int, int | None]] = [
            (join(layout.changelog(operator.uid), held.file.path), held.file, known.max_parallelism, None)
            for held in files.changelog[-_SAMPLED_FILES:]
            if (known := since[held.checkpoint_id]) is not None
        ]
        wanted += [
            (
                join(layout.base(operator.uid), held.file.path),
                held.file,
                operator.max_parallelism,
                held.groups.start,
            )
            for held in files.base[-_SAMPLED_FILES:]
        ]
        for rows, problem in in_threads(lambda one: _keys_of(*one), wanted):
            looked_at += rows
            problems += [problem] if problem else []
    return Finding(looked_at, "entries", tuple(problems))


def files_are_there(history: JobHistory) -> Finding:
    """Every file that reading the head takes exists, with the size and the rows that its checkpoint recorded."""
    wanted = list(needed_files(history.layout, history.path))
    problems = in_threads(lambda one: _problem_of(*one), wanted)
    return Finding(len(wanted), "files", tuple(p for p in problems if p))


RULES: dict[str, Callable[[JobHistory], Finding]] = {
    "positions_are_contiguous": positions_are_contiguous,
    "keys_are_in_their_groups": keys_are_in_their_groups,
    "one_commit_per_parent": one_commit_per_parent,
    "rows_fit_their_parents": rows_fit_their_parents,
    "outputs_are_published": outputs_are_published,
    "files_are_there": files_are_there,
}
"""By name: all that must hold of a job."""


def rule_of(invariant: str) -> str:
    """The rule that looks again at an invariant of commits.

    Example:
        >>> rule_of("clock never goes back")
        'rows_fit_their_parents'
    """
    rule = {_POSITIONS: positions_are_contiguous, _GROUPS: keys_are_in_their_groups}.get(invariant)
    if invariant in _ONE_CHILD:
        rule = one_commit_per_parent
    return (rule or rows_fit_their_parents).__name__


def summary_of(problems: Sequence[str]) -> str:
    """Problems as one text; of many only the first ones."""
    more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
    return "; ".join([*problems[:_SHOWN], *more])


def _keys_of(uri: str, listed: DataFile, max_parallelism: int, group: int | None) -> tuple[int, str]:
    """Rows of a file of keyed state, and what is wrong with their key groups; ``group``: of a base, the file's own."""
    try:
        file = open_recorded(uri, listed)
        names = [name for name in ("key_group", "key_hash") if name in file.schema.names]
        table = file.read(names)
    except FileNotFoundError:
        return 0, f"{uri} is gone"
    except DamagedFileError as error:
        return 0, str(error)
    expected = key_groups_of(table["key_hash"].to_numpy(), max_parallelism)
    recorded = table["key_group"].to_numpy() if "key_group" in names else np.full(len(expected), group)
    wrong = int((expected != recorded).sum())
    first = int(np.argmax(expected != recorded)) if wrong else 0
    problem = (
        f"{uri}: {wrong:,} of {counted(len(expected), 'row is', 'rows are')} in another key group than their "
        "hash says, first the hash "
        f"{table['key_hash'][first].as_py()} in group {recorded[first]} instead of {expected[first]}"
    )
    return table.num_rows, problem if wrong else ""


def _problem_of(directory: str, file: DataFile) -> str:
    uri = join(directory, file.path)
    at = open_location(uri)
    size = at.info().size
    if size is None:
        return f"{uri} is gone"
    if size != file.bytes:
        return f"{uri} has {counted(size, 'byte')}, {file.bytes:,} were recorded"
    try:
        rows = open_recorded(uri, file).metadata.num_rows
    except DamagedFileError as error:
        return str(error)
    return "" if rows == file.rows else f"{uri} has {counted(rows, 'row')}, {file.rows:,} were recorded"
