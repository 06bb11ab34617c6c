"""The limit of rows that a micro-batch may refuse, and the number of dead letters along a path."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from state_engine import StatefulJob
from state_engine.core.checkpoints.checkpoint import DataFile, OperatorStateRef, SourceProgress
from state_engine.core.checkpoints.dead_letters import (
    LETTERS,
    DeadLetterLimit,
    letter_files,
    letters_sent,
    letters_waiting,
    without_letters,
)
from state_engine.core.errors import ConfigurationError
from tests.core.checkpoints.rows import checkpoint


@pytest.mark.parametrize(
    ("limit", "refused", "rows_in", "exceeded"),
    [
        (DeadLetterLimit(rows=0), 0, 5, False),
        (DeadLetterLimit(rows=0), 1, 5, True),
        (DeadLetterLimit(rows=2), 2, 2, False),
        (DeadLetterLimit(share=0.5), 1, 2, False),
        (DeadLetterLimit(share=0.5), 2, 3, True),
        (DeadLetterLimit(share=0), 1, 1_000_000, True),
        (DeadLetterLimit(share=0.5), 1, 0, True),
        (DeadLetterLimit(rows=10, share=0.5), 11, 100, True),
        (DeadLetterLimit(rows=10, share=0.5), 10, 11, True),
    ],
)
def test_what_is_too_much(limit: DeadLetterLimit, refused: int, rows_in: int, exceeded: bool) -> None:
    assert bool(limit.exceeded(refused=refused, rows_in=rows_in)) is exceeded


@pytest.mark.parametrize("wrong", [{}, {"rows": -1}, {"rows": True}, {"share": 1.1}, {"share": -0.1}])
def test_limits_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="DeadLetterLimit"):
        DeadLetterLimit(**wrong)


def test_a_limit_belongs_to_a_job_with_dead_letters() -> None:
    job = StatefulJob("j", on_error="dead_letter", max_dead_letters=3)
    assert job.max_dead_letters == DeadLetterLimit(rows=3)
    with pytest.raises(ConfigurationError, match="needs on_error='dead_letter'"):
        StatefulJob("j", max_dead_letters=3)
    with pytest.raises(ConfigurationError, match="a number of rows or a DeadLetterLimit"):
        StatefulJob("j", on_error="dead_letter", max_dead_letters=0.5)  # type: ignore[arg-type]


def test_letters_along_a_path() -> None:
    first, second = DataFile("a", 1, 3, 0), DataFile("b", 1, 2, 0)
    refused = replace(checkpoint(1), dead_letters=[first])
    sent = SourceProgress(LETTERS, "{}", '{"letters": 2, "elements": 1}', 2, None)
    ref = OperatorStateRef(LETTERS, "w", 1)
    path = [
        refused,
        replace(checkpoint(2, 1), dead_letters=[first, second], sources=[sent], operator_state=[ref]),
    ]
    assert letter_files(path) == [(1, first), (2, second)]
    assert (letters_sent(path[:1]), letters_waiting(path[:1])) == (0, 3)
    assert (letters_sent(path), letters_waiting(path)) == (2, 3)
    assert letters_waiting([]) == 0
    bare = without_letters(path[1])
    assert (bare.sources, bare.operator_state) == ([], [])
