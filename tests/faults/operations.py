"""Faults in operations as data: the points of each operation, the effect of a fault there, and how it is done again.

An operation comes after two of three micro-batches (``prepare`` does the rest of the preparation). Those in front
(restore, rescale, promote) lose against a micro-batch that comes first, those in the background never do, and a change
of max parallelism tries again. An import goes into an empty root, where no micro-batch can come in between: there it
is another runner that imports the same savepoint, and goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.checkpoints.write_ids import write_id_in
from state_engine.core.errors import ConfigurationError, StaleParentError
from state_engine.operations.savepoints import MANIFEST
from tests.core.checkpoints.rows import tree
from tests.faults.plane import STEPS, Action, Fault, InjectedFault, installed
from tests.faults.workloads import CLOCK_MS, Site
from tests.protocol.passing_time import Clock

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


SAVEPOINT, BRANCH = "safe", "again"
KEY_GROUPS_AFTER = 16
KEEP_ONE = RetentionPolicy(keep_last=1)
HOURS = 25
"""After so long what nobody needs is collected."""

# -- before ------------------------------------------------------------------------------------------------------------


def prepare(site: Site, operation: str) -> None:
    """Two micro-batches in an empty directory, and what else an operation needs."""
    match operation:
        case "promote" | "drop_branch":
            site.run(max_batches=2)
            _replay(site, from_checkpoint=1)
        case "collect":
            _litter(site)
        case "import":  # nothing is left of the root that the savepoint was taken in
            old = Site(site.directory / "old", site.workload, site.spark, cut=site.cut)
            old.run(max_batches=2)
            with old.engine() as engine:
                engine.savepoints(site.workload.name).create(SAVEPOINT, site.directory / SAVEPOINT)
            shutil.rmtree(old.directory)
        case _:
            site.run(max_batches=2)


def _litter(site: Site) -> None:
    """An expired checkpoint whose changes are in a base, and the files of an attempt that crashed before its commit."""
    with hours_later(0):
        site.run(max_batches=1)
        with site.engine() as engine:
            engine.compact(site.workload.name)
        site.run(max_batches=1)
        with installed([Fault("before commit")]), pytest.raises(InjectedFault):
            site.run(max_batches=1)
        with site.engine() as engine:
            engine.expire_checkpoints(site.workload.name, KEEP_ONE)
    assert orphans(site)


@contextmanager
def hours_later(hours: int) -> Iterator[Clock]:
    """The engine uses a clock that is ahead."""
    clock = Clock()
    clock.pass_hours(hours)
    with pytest.MonkeyPatch.context() as patch:
        clock.rule(patch)
        yield clock


def orphans(site: Site) -> set[Path]:
    """Data files of attempts that no checkpoint records."""
    known = {row.write_id for row in site.rows()}
    data_files = (p for p in site.directory.rglob("*.parquet") if "_delta_log" not in p.parts)
    return {path for path in data_files if write_id_in(path.name) not in known}


# -- doing -------------------------------------------------------------------------------------------------------------


def perform(site: Site, operation: str) -> Any:
    """Perform the operation with an engine of its own."""
    name = site.workload.name
    if operation == "collect":
        return collect(site, hours=HOURS)
    if operation == "replay":
        return _replay(site)
    with site.engine() as engine:
        match operation:
            case "restore":
                return engine.restore(name, checkpoint_id=1)
            case "promote":
                return engine.promote(name, BRANCH, expected_head=2)
            case "rescale":
                return engine.rescale(site.job(), parallelism=3)
            case "max_parallelism":
                return engine.rescale(site.job(), max_parallelism=KEY_GROUPS_AFTER)
            case "compact":
                return engine.compact(name)
            case "retain":
                return engine.expire_checkpoints(name, KEEP_ONE)
            case "drop_branch":
                return engine.drop_branch(name, BRANCH)
            case "savepoint":
                return engine.savepoints(name).create(SAVEPOINT, site.directory / SAVEPOINT)
            case "import":
                return engine.restore(site.job(), savepoint=site.directory / SAVEPOINT)
            case _:
                raise ValueError(operation)


def _replay(site: Site, from_checkpoint: int | None = None) -> Any:
    """Replay the whole history, or the rest of it."""
    with site.engine() as engine:
        return engine.replay(site.job(), branch=BRANCH, from_checkpoint=from_checkpoint)


def collect(site: Site, *, hours: int, dry_run: bool = False) -> Any:
    """Collect with clocks that are some hours ahead."""
    with hours_later(hours) as clock, site.engine() as engine:
        return engine.vacuum(site.job(), clock=clock.now_ms, dry_run=dry_run)


def perform_again(site: Site, operation: str) -> None:
    """What an operator does after an operation that did not end."""
    name = site.workload.name
    if operation == "promote":  # what came since is replayed, too
        replayed = _replay(site)
        with site.engine() as engine:
            engine.promote(name, BRANCH, expected_head=replayed.main_head_id)
        return
    if operation == "import" and site.rows():
        with pytest.raises(ConfigurationError, match="this job has checkpoints already"):
            perform(site, operation)
        return
    if operation == "savepoint":
        with site.engine() as engine:
            if SAVEPOINT in engine.savepoints(name).list():
                # as the message of a delete says: what was not finished is nothing that a delete would know
                shutil.rmtree(site.directory / SAVEPOINT, ignore_errors=True)
                engine.savepoints(name).delete(SAVEPOINT, keep_files=True)
    perform(site, operation)


def unfinished(site: Site, case: OperationCase) -> bool:
    """Whether an operator must do it again, after a fault."""
    if case.operation == "savepoint" and not (site.directory / SAVEPOINT / MANIFEST).exists():
        return True
    return not case.committed


def another_runner(site: Site, case: OperationCase) -> None:
    """The work of another runner while the operation sleeps: a micro-batch, see ``operations``."""
    other = site.again()
    if case.operation == "import" and not case.committed:
        perform(other, case.operation)
    if case.operation == "max_parallelism" and case.committed:
        other.max_parallelism = KEY_GROUPS_AFTER
    if case.operation == "collect":  # it is that late for all
        with other.engine() as engine:
            assert engine.run(other.job(), clock=CLOCK_MS, max_batches=1).batches
        return
    assert other.run(max_batches=1).batches


# -- afterwards --------------------------------------------------------------------------------------------------------


def check_effect(site: Site, operation: str) -> None:
    """What an operation that ended has left."""
    rows, (head, *_) = site.rows(), site.path()[::-1]
    kinds = [row.kind.value for row in rows]
    match operation:
        case "restore":
            assert kinds.count("restore") == 1
        case "promote":
            assert kinds.count("promote") == 1
            assert BRANCH in {row.branch for row in site.path()}
            assert BRANCH not in tree({row.checkpoint_id: row for row in rows}).open_branches
        case "rescale":
            assert kinds.count("rescale") == 1
            assert {o.parallelism for o in head.operators} == {3}
        case "max_parallelism":
            assert kinds.count("rescale") == 1
            assert {o.max_parallelism for o in head.operators} == {KEY_GROUPS_AFTER}
            site.max_parallelism = KEY_GROUPS_AFTER
        case "compact":
            assert kinds.count("compaction") == 1
            assert {b.checkpoint_id for o in head.operators for b in o.bases} == {2}
        case "retain":
            assert [row.retired for row in rows if row.kind == "retention"] in ([[1]], [[1, 2]])
        case "drop_branch":
            assert [row.retired for row in rows if row.kind == "retention"] == [[3]]
            with site.engine() as engine, pytest.raises(ConfigurationError, match="no open branch"):
                engine.drop_branch(site.workload.name, BRANCH)
        case "savepoint":
            with site.engine() as engine:
                # rows that only pinned and let go may have come before it
                assert (
                    2
                    <= engine.savepoints(site.workload.name).verify(site.directory / SAVEPOINT).checkpoint_id
                    < head.checkpoint_id
                )
                assert list(engine.savepoints(site.workload.name).list()) == [SAVEPOINT]
        case "import":
            assert kinds.count("import") == 1
        case "replay":
            _check_replayed(site)
        case "collect":
            _check_collected(site)


def _check_replayed(site: Site) -> None:
    """The branch goes on to the end of ``main``, each micro-batch once, with equal results."""
    replayed = _replay(site)
    assert replayed.remaining == 0
    rows = site.rows()
    own, main = (
        [row for row in rows if row.branch == branch and row.kind == "checkpoint"]
        for branch in (BRANCH, "main")
    )
    assert [r.sources for r in own] == [r.sources for r in main]
    with site.engine() as engine:
        comparison = engine.compare(site.workload.name, BRANCH)
    assert comparison.is_equal, comparison.summary()


def _check_collected(site: Site) -> None:
    """Unneeded files are deleted now or a day later, and so is a fence that was not committed."""
    # logs have the time of a removal by the clock of the machine, so it is that long ago already
    assert {file.step for file in collect(site, hours=HOURS).files} <= {"delete"}
    collect(site, hours=2 * HOURS)
    assert not collect(site, hours=2 * HOURS, dry_run=True).files
    assert orphans(site) == set()
