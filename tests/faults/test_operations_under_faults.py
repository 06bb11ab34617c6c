"""Every fault point of restore, rescale, compaction, retention and savepoints; then it is done again.

State and outputs are in the end those of a job that nobody disturbed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from state_engine.core.errors import StaleParentError
from state_engine.runtime.savepoints import MANIFEST
from tests.faults.cases import Ground
from tests.faults.child import killed
from tests.faults.operations import (
    CUT_OF_OPERATIONS,
    REACHED,
    SAVEPOINT,
    OperationCase,
    check_effect,
    operation_cases,
    perform,
    perform_again,
)
from tests.faults.plane import InjectedFault, installed
from tests.faults.workloads import WORKLOADS, Site

pytestmark = [pytest.mark.spark, pytest.mark.faults]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Ground:
    """Three sinks, after two of three micro-batches."""
    base = tmp_path_factory.mktemp("operations")
    return Ground.prepare(WORKLOADS["sinks"], base, spark, cut=CUT_OF_OPERATIONS, begun=2)


def finish(ground: Ground, site: Site, case: OperationCase, *, committed: bool) -> None:
    """Settle, do again what was not done, and run to the end."""
    with site.engine() as engine:
        engine.settle(site.job())
    moved = case.operation == "restore" and committed
    assert site.outputs() == ground.after[1 if moved else 2].outputs
    unfinished = case.operation == "savepoint" and not (site.directory / SAVEPOINT / MANIFEST).exists()
    if not committed or unfinished:
        perform_again(site, case.operation)
    check_effect(site, case.operation)
    assert site.run().caught_up
    assert site.seen() == ground.after[-1]


@pytest.mark.parametrize("case", list(operation_cases("raise")), ids=str)
def test_an_operation_that_fails_can_be_done_again(case: OperationCase, ground: Ground) -> None:
    site = ground.fresh()
    with installed([case.fault]) as plane, pytest.raises(InjectedFault):
        perform(site, case.operation)
    assert plane.fired == [case.fault]
    finish(ground, site, case, committed=case.committed)


@pytest.mark.parametrize("case", list(operation_cases("zombie")), ids=str)
def test_an_operation_that_slept_disturbs_nobody(case: OperationCase, ground: Ground) -> None:
    """A micro-batch comes in between: restore and rescale fail then, and the others go on."""
    site = ground.fresh()

    def another_runner() -> None:
        assert site.again().run(max_batches=1).batches

    with installed([case.fault], meanwhile=another_runner) as plane:
        if case.loses:
            with pytest.raises(StaleParentError):
                perform(site, case.operation)
        else:
            perform(site, case.operation)
    assert plane.fired == [case.fault]
    if case.loses:
        assert site.outputs() == ground.after[3].outputs
        perform_again(site, case.operation)
    check_effect(site, case.operation)
    assert site.run().caught_up
    assert site.seen() == ground.after[-1]


Killed = Callable[[OperationCase], Path]


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """The directory that a killed process left of a case; one process for all cases of an operation."""
    made: dict[str, Path] = {}

    def directory(case: OperationCase) -> Path:
        if str(case) not in made:
            base = tmp_path_factory.mktemp("killed")
            same = [c for c in operation_cases("sigkill") if c.operation == case.operation]
            found = {str(c): base / str(i) for i, c in enumerate(same)}
            told = [("sinks", found[str(c)], [c.fault], c.operation) for c in same]
            assert killed(told) == ""
            made.update(found)
        return made[str(case)]

    return directory


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", list(operation_cases("sigkill")), ids=str)
def test_an_operation_that_was_killed_can_be_done_again(
    case: OperationCase, ground: Ground, dead: Killed
) -> None:
    finish(ground, ground.at(dead(case)), case, committed=case.committed)


@pytest.mark.parametrize("operation", list(REACHED))
def test_the_matrix_has_every_point_as_often_as_it_is_reached(operation: str, ground: Ground) -> None:
    site = ground.fresh()
    counts = REACHED[operation]
    with installed([], watch=counts) as plane:
        perform(site, operation)
    assert plane.hits == counts
