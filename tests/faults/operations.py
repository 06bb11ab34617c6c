"""Faults in operations as data: the points of each operation, and the effect of a fault there.

An operation comes after two of three micro-batches (``performing`` names the rest of the preparation). Those in front
(restore, rescale, promote) lose against a micro-batch that comes first, those in the background never do, and a change
of max parallelism tries again. An import goes into an empty root, where no micro-batch can come in between: there it
is another runner that imports the same savepoint, and goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from state_engine.core.errors import ConfigurationError, StaleParentError
from tests.faults.plane import STEPS, Action, Fault

CUT_OF_OPERATIONS = 7
"""Rows of a micro-batch: there are three, and the third comes after the operation."""

# how often each operation reaches each point
_COMMITS = {
    "after file of the row": 1,
    "before entry of checkpoints": 1,
    "after entry of checkpoints": 1,
    "before row appended": 1,
    "after row appended": 1,
}
_IN_FRONT = {
    "before head published": 1,
    "after head published": 1,
    "before row committed": 1,
    "after row committed": 1,
}
_BACKGROUND = {"before background row": 1, "after background row": 1}
_MOVES = {"after move of files begun": 2, "after move of files withdrawn": 2, "after move of files added": 2}
# five sinks and the dead letters; the row, two Delta tables and the dead letters
_MOVES_HEAD = _COMMITS | _IN_FRONT | _MOVES | {"after sink published": 6, "after table committed": 4}
_ONCE_A_RUN = {"publish_pending": 1, "plan": 1}
"""Steps that are made once more when nothing is left to run."""

REACHED: dict[str, dict[str, int]] = {
    "restore": _MOVES_HEAD,
    "promote": _MOVES_HEAD,
    "rescale": _COMMITS | _IN_FRONT,
    "max_parallelism": _COMMITS
    | _IN_FRONT
    | {"after key groups written": 1, "after key groups listed": 1, "after table committed": 2},
    "compact": _COMMITS
    | _BACKGROUND
    | {"after base written": 1, "after base committed": 1, "after table committed": 2},
    "retain": _COMMITS | _BACKGROUND,
    "drop_branch": _COMMITS | _BACKGROUND,
    "collect": _COMMITS
    | _BACKGROUND
    | {
        "before collection planned": 2,
        "after collection planned": 2,
        "before fence": 1,
        "after fence": 1,
        "after files removed": 2,
        "after file deleted": 14,
        "after directory dropped": 7,
    },
    "savepoint": _COMMITS
    | _BACKGROUND
    | {
        "after checkpoint pinned": 1,
        "after keyed state copied": 1,
        "after operator state copied": 1,
        "before manifest": 1,
        "after manifest": 1,
    },
    "import": _COMMITS
    | {
        "after savepoint verified": 1,
        "after keyed state imported": 1,
        "after operator state imported": 1,
        "after table committed": 3,
    },
    # two micro-batches
    "replay": {point: 2 * count for point, count in _COMMITS.items()}
    | {f"{when} {step}": 2 + _ONCE_A_RUN.get(step, 0) for step in STEPS for when in ("before", "after")}
    | {
        "after file of positions": 2,
        "after operator": 2,
        "after prepared sink": 10,
        "after dropped exchange": 2,
        "after table committed": 6,
    },
}
UNTRIED = {"after table committed", "after table created", "after file of positions"}
"""Points that operations reach, too: just behind another one, or tried in micro-batches."""

_AFTER_THE_ROW = {
    "after entry of checkpoints", "after row appended", "after row committed", "after background row",
    "after sink published", "after checkpoint pinned", "after keyed state copied", "after operator state copied",
    "before manifest", "after manifest", *_MOVES,
}  # fmt: skip
_COMMITS_BEFORE_THE_ROW = {"compact": 1, "max_parallelism": 1, "import": 2}
"""Commits of other tables that an operation makes before that of its row."""
_BY_STEPS = ("replay", "collect")
"""Operations of several steps, each of which is done for good; done again, they go on."""


@dataclass(frozen=True)
class OperationCase:
    """One fault in one operation."""

    operation: str
    fault: Fault

    def __str__(self) -> str:
        return f"{self.operation}-{self.fault}"

    @property
    def committed(self) -> bool:
        """Whether the one row that makes the operation happen is committed when the fault happens."""
        if self.operation in _BY_STEPS:
            return False
        if self.fault.point == "after table committed":
            return self.fault.nth > _COMMITS_BEFORE_THE_ROW.get(self.operation, 0)
        return self.fault.point in _AFTER_THE_ROW

    @property
    def refusal(self) -> type[Exception] | None:
        """What the operation fails with when another runner comes first; None where it does not."""
        if self.committed or self.operation not in ("restore", "rescale", "promote", "import"):
            return None
        if self.fault.point == "before head published":  # it sees what came; which is not what was reviewed
            return ConfigurationError if self.operation == "promote" else None
        return StaleParentError


def operation_cases(action: Action) -> Iterator[OperationCase]:
    for operation, counts in REACHED.items():
        for point, count in counts.items():
            if action == "zombie" and point in _MOVES:
                continue  # it holds the lock of the sink there, so the others wait
            for nth in _tried(operation, point, count):
                yield OperationCase(operation, Fault(point, nth, action))


def _tried(operation: str, point: str, count: int) -> Iterator[int]:
    """Every time that a point is reached; of a replay those in its second micro-batch, and the first commit."""
    in_the_second = operation == "replay" and "entry of checkpoints" not in point
    yield from range(1 + (count // 2 if in_the_second else 0), count + 1)
