"""The operations under faults: the preparation of each, the first and the second try, and the results."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.checkpoints.write_ids import write_id_in
from state_engine.core.errors import ConfigurationError
from state_engine.operations.savepoints import MANIFEST
from tests.core.checkpoints.rows import tree
from tests.faults.operations import OperationCase
from tests.faults.plane import Fault, InjectedFault, installed
from tests.faults.workloads import CLOCK_MS, Site
from tests.protocol.passing_time import Clock

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
