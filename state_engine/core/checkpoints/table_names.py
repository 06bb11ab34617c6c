"""The tables of a job by their names, and the files that a row of ``checkpoints`` lists in each of them.

A name is a path below the directory of the job; the tables of an operator have the same one below a savepoint's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile
from state_engine.core.names import stored_name

OPERATORS = "operators"
"""Name of the directory that holds one directory of tables an operator."""

OPERATOR_STATE = "operator_state"
"""Name of the table of operator state and source positions."""


def operator_directory(uid: str) -> str:
    """Where the tables of an operator are in the directory of its job, and its files in that of a savepoint."""
    return f"{OPERATORS}/{stored_name(uid)}"


def base_table(uid: str) -> str:
    return keyed_tables(operator_directory(uid))[1]


def changelog_table(uid: str) -> str:
    return keyed_tables(operator_directory(uid))[0]


def keyed_tables(directory: str) -> tuple[str, str]:
    return f"{directory}/changelog", f"{directory}/base"


def listed_in_tables(row: CheckpointRow) -> Iterator[tuple[str, Sequence[DataFile]]]:
    """The files that a row lists as its own, by the name of the job's table; those for sinks are not among them."""
    for operator in row.operators:
        yield changelog_table(operator.uid), [*operator.changelog, *operator.expired]
        yield base_table(operator.uid), operator.base_files
    yield OPERATOR_STATE, row.operator_state_files
