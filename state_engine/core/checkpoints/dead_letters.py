"""Dead letters: how many a micro-batch may have, and which of them wait to be sent again.

What was sent is a position like that of a source: each checkpoint that sends letters appends which ones, so a restore
to before it has them waiting again. Flink has no such thing; a side output plays its part there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from state_engine.core.argument_checks import checked_class
from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError

LETTERS = "_dead_letters"
"""The name that the position of sent letters has among those of sources; no source can have it."""


@checked_class
@dataclass(frozen=True)
class DeadLetterLimit:
    """How many rows a micro-batch may refuse; one that refuses more is not committed.

    Args:
        rows: so many.
        share: such a part of the rows that came in, from 0 to 1.

    Example:
        >>> DeadLetterLimit(rows=100, share=0.5).exceeded(refused=3, rows_in=4)
        '3 of 4 rows were refused (75.0 %), and max_dead_letters allows 50.0 %'
        >>> DeadLetterLimit(rows=100, share=0.5).exceeded(refused=2, rows_in=4)
        ''
    """

    rows: int | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        if self.rows is None and self.share is None:
            raise ConfigurationError("DeadLetterLimit needs rows, or share, or both")
        if self.rows is not None and (type(self.rows) is not int or self.rows < 0):
            raise ConfigurationError(f"rows of a DeadLetterLimit must be 0 or more, not {self.rows!r}")
        if self.share is not None and not 0 <= self.share <= 1:
            raise ConfigurationError(f"share of a DeadLetterLimit must be from 0 to 1, not {self.share!r}")

    def exceeded(self, *, refused: int, rows_in: int) -> str:
        """Which limit is passed, as text; empty where none is."""
        part = refused / rows_in if rows_in else float(bool(refused))
        said = (
            f"{refused:,} of {counted(rows_in, 'row was', 'rows were')} refused ({100 * part:.1f} %), and "
            "max_dead_letters allows"
        )
        if self.rows is not None and refused > self.rows:
            return f"{said} {self.rows:,}"
        if self.share is not None and part > self.share:
            return f"{said} {100 * self.share:.1f} %"
        return ""


def limit_of(given: DeadLetterLimit | int | None) -> DeadLetterLimit | None:
    """What a job declares: a number stands for so many rows."""
    if given is None or isinstance(given, DeadLetterLimit):
        return given
    if type(given) is not int:
        raise ConfigurationError(
            f"max_dead_letters must be a number of rows or a DeadLetterLimit(rows=…, share=…), not {given!r}"
        )
    return DeadLetterLimit(rows=given)


def letter_files(path: Sequence[CheckpointRow]) -> list[tuple[int, DataFile]]:
    """The files of dead letters along a path, each once, with the checkpoint that refused the rows; oldest first."""
    by_path: dict[str, tuple[int, DataFile]] = {}
    for row in path:
        for file in row.dead_letters:
            by_path.setdefault(file.path, (row.checkpoint_id, file))
    return list(by_path.values())


def letters_sent(path: Sequence[CheckpointRow]) -> int:
    """How many letters were sent again along a path."""
    progress = path[-1].source(LETTERS) if path else None
    return int(json.loads(progress.position_to)["letters"]) if progress else 0


def letters_waiting(path: Sequence[CheckpointRow]) -> int:
    """How many letters along a path were not sent again."""
    return sum(file.rows for _, file in letter_files(path)) - letters_sent(path)


def without_letters(row: CheckpointRow) -> CheckpointRow:
    """A row that knows nothing of letters that were sent: of a savepoint, which takes no dead letters along."""
    sources = [s for s in row.sources if s.name != LETTERS]
    return replace(
        row, sources=sources, operator_state=[r for r in row.operator_state if r.operator != LETTERS]
    )
