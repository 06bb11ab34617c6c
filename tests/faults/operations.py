"""Faults in operations as data: restore, rescale, compaction, retention, savepoints; after two micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from state_engine.core.retention import RetentionPolicy
from tests.faults.plane import Action, Fault
from tests.faults.workloads import Site

CUT_OF_OPERATIONS = 7
"""Rows of a micro-batch: there are three, and the third comes after the operation."""
SAVEPOINT = "safe"

# how often each operation reaches each point
_COMMITS = {
    "after file of the row": 1,
    "before entry of checkpoints": 1,
    "after entry of checkpoints": 1,
    "before row appended": 1,
    "after row appended": 1,
}
_IN_FRONT = {
    "before head settled": 1,
    "after head settled": 1,
    "before row committed": 1,
    "after row committed": 1,
}
_BACKGROUND = {"before background row": 1, "after background row": 1}
_MOVES = {"after move of files begun": 1, "after move of files withdrawn": 1, "after move of files added": 1}

REACHED: dict[str, dict[str, int]] = {
    "restore": _COMMITS | _IN_FRONT | _MOVES | {"after sink published": 3, "after table committed": 3},
    "rescale": _COMMITS | _IN_FRONT,
    "compact": _COMMITS
    | _BACKGROUND
    | {"after base written": 1, "after base committed": 1, "after table committed": 2},
    "retain": _COMMITS | _BACKGROUND,
    "savepoint": _COMMITS
    | _BACKGROUND
    | {
        "after checkpoint pinned": 1,
        "after keyed state copied": 1,
        "after operator state copied": 1,
        "before manifest": 1,
        "after manifest": 1,
    },
}
_AFTER_THE_ROW = {
    "after entry of checkpoints", "after row appended", "after row committed", "after background row",
    "after sink published", "after checkpoint pinned", "after keyed state copied", "after operator state copied",
    "before manifest", "after manifest", *_MOVES,
}  # fmt: skip


@dataclass(frozen=True)
class OperationCase:
    """One fault in one operation."""

    operation: str
    fault: Fault

    def __str__(self) -> str:
        return f"{self.operation}-{self.fault}"

    @property
    def committed(self) -> bool:
        """Whether the operation's row is committed when the fault happens."""
        if self.fault.point == "after table committed":  # a compaction has a commit of its base before it
            return self.fault.nth > (self.operation == "compact")
        return self.fault.point in _AFTER_THE_ROW

    @property
    def loses(self) -> bool:
        """Whether the operation fails when a micro-batch comes first; those in the background never do."""
        in_front = self.operation in ("restore", "rescale")
        return in_front and not self.committed and self.fault.point != "before head settled"


def operation_cases(action: Action) -> Iterator[OperationCase]:
    for operation, counts in REACHED.items():
        for point, count in counts.items():
            if action == "zombie" and point in _MOVES:
                continue  # it holds the lock of the sink there, so the others wait
            for nth in range(1, count + 1):
                yield OperationCase(operation, Fault(point, nth, action))


def perform(site: Site, operation: str) -> Any:
    """Do it, with an engine of its own."""
    name = site.workload.name
    with site.engine() as engine:
        match operation:
            case "restore":
                return engine.restore(name, 1)
            case "rescale":
                return engine.rescale(site.job(), parallelism=3)
            case "compact":
                return engine.compact(name)
            case "retain":
                return engine.retain(name, RetentionPolicy(keep_last=1))
            case "savepoint":
                return engine.savepoint(name, SAVEPOINT, site.directory / SAVEPOINT)
            case _:
                raise ValueError(operation)


def perform_again(site: Site, operation: str) -> None:
    """What an operator does who found that the operation did not end."""
    if operation != "savepoint":
        perform(site, operation)
        return
    with site.engine() as engine:
        if SAVEPOINT in engine.savepoints(site.workload.name):
            engine.delete_savepoint(site.workload.name, SAVEPOINT)
    perform(site, operation)


def check_effect(site: Site, operation: str) -> None:
    """What an operation that ended has left."""
    rows, (head, *_) = site.rows(), site.path()[::-1]
    kinds = [row.kind for row in rows]
    match operation:
        case "restore":
            assert kinds.count("restore") == 1
        case "rescale":
            assert kinds.count("rescale") == 1
            assert {o.parallelism for o in head.operators} == {3}
        case "compact":
            assert kinds.count("compaction") == 1
            assert {b.checkpoint_id for o in head.operators for b in o.bases} == {2}
        case "retain":
            assert [row.retired for row in rows if row.kind == "retention"] in ([[1]], [[1, 2]])
        case "savepoint":
            with site.engine() as engine:
                assert engine.verify_savepoint(site.directory / SAVEPOINT).checkpoint_id in (2, 3)
                assert list(engine.savepoints(site.workload.name)) == [SAVEPOINT]
