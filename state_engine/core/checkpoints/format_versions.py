"""Formats of a root: what changed from one to the next, and how a row of ``checkpoints`` gets from one to the next.

A root says its format; this version reads and writes one only. An older one is upgraded explicitly, step by step. The
steps are pure functions over rows as plain values (dicts and lists): what they meet on storage is for
``operations.root_upgrade``. Plays the part of Flink's ``MetadataSerializers``, which keeps a reader for every version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from state_engine.core.errors import RootError

FORMAT_VERSION = 7
"""Of the tables under a root. A root of another format is refused."""

PlainRow = dict[str, Any]


@dataclass(frozen=True)
class FormatStep:
    """From the format before to ``version``.

    Attributes:
        row: a row of the format before as one of this format.
    """

    version: int
    changes: str
    row: Callable[[PlainRow], PlainRow]


def _with_ends_of_time(row: PlainRow) -> PlainRow:
    # how many rows were late is not known of older rows
    none: PlainRow = {"floor_ms": None, "idle": False, "last_rows_ms": None, "behind_watermark": 0}
    ended = {"sources": [one | none for one in row["sources"]]}
    operators = [
        _not_known_when(
            one | {"expired": [], "first_timers": [], "second_key": [], "shape": "", "input_type": ""}
        )
        for one in row["operators"]
    ]
    if "operator_state" in row:
        ended |= {"operator_state": [_not_known_when(one) for one in row["operator_state"]]}
    return (
        row
        | ended
        | {
            "operator_watermarks_ms": {},
            "kept_states": {},
            "expectations": [],
            "gates": [],
            "declared": "",
            "operators": operators,
        }
    )


def _not_known_when(operator: PlainRow) -> PlainRow:
    """With all of its states as if they were asked for late, until a micro-batch shows which are not."""
    return operator | {"asked_late": [state["name"] for state in operator["states"]]}


STEPS = (
    FormatStep(
        7,
        "rows record idle sources, what ended time besides rows, how many rows were late, what expired, each "
        "subtask's first timers, the states that functions ask for later than in open or that keep_states names, and "
        "the key of the second of two connected streams, the shape of functions, how many rows break a rule, what "
        "gates said, and what the code declared",
        _with_ends_of_time,
    ),
)
"""In order. Nothing leads from formats before the first step's."""


def steps_from(version: int, *, where: str) -> list[FormatStep]:
    """The steps from a format to this version's; none where it is this version's.

    Example:
        >>> [step.version for step in steps_from(6, where="the root")]
        [7]
    """
    if version > FORMAT_VERSION:
        raise newer(where, version)
    if version < STEPS[0].version - 1:
        raise RootError(
            f"{where} has format {version} of a Statelake before 0.2.0, which this version cannot upgrade: upgrade it "
            "with 0.2.0 first, or use another root and run the jobs from the beginning"
        )
    return [step for step in STEPS if step.version > version]


def upgraded_row(row: PlainRow, steps: list[FormatStep]) -> PlainRow:
    """A row after some steps.

    Example:
        >>> row = {"checkpoint_id": 1, "operators": [], "sources": [{"name": "rows"}]}
        >>> upgraded_row(row, steps_from(6, where="the root"))["sources"][0]["idle"]
        False
    """
    for step in steps:
        row = step.row(row)
    return row


def newer(where: str, version: int) -> RootError:
    return RootError(
        f"{where} was written by a newer Statelake: it has format {version}, this version reads format "
        f"{FORMAT_VERSION}. Upgrade Statelake"
    )


def older(uri: str, version: int) -> RootError:
    """The error for a root of an older format, which says how to upgrade it, if there is a way."""
    steps_from(version, where=uri)
    return RootError(
        f"{uri} has format {version} of an older Statelake, this version reads and writes format {FORMAT_VERSION}. "
        f"Stop its jobs, then upgrade it with: statelake upgrade (in Python: StateEngine.upgrade('{uri}')); "
        "--dry-run shows what it will do"
    )
