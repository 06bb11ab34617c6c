"""Every fault point of every operation, by raising, by SIGKILL and with a zombie; then it is done again.

State and outputs are in the end those of a job that nobody disturbed.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from state_engine.core.errors import StaleParentError
from tests.faults.cases import SavedSite
from tests.faults.child import CaseOfChild, KilledCases
from tests.faults.operations import (
    BRANCH,
    CUT_OF_OPERATIONS,
    REACHED,
    UNTRIED,
    OperationCase,
    another_runner,
    check_effect,
    operation_cases,
    perform,
    perform_again,
    prepare,
    unfinished,
)
from tests.faults.plane import POINTS, Fault, InjectedFault, installed
from tests.faults.workloads import WORKLOADS, Seen, Site

pytestmark = [pytest.mark.spark, pytest.mark.faults]


@dataclass(frozen=True)
class Prepared:
    """Three sinks, with what is there before an operation, to be broken again and again."""

    saved_site: SavedSite
    saved: dict[str, Path] = field(default_factory=dict)

    def fresh(self, operation: str) -> Site:
        """Always in the same directory, for sinks are recorded by path."""
        directory = self.saved_site.site.directory
        shutil.rmtree(directory, ignore_errors=True)
        if operation not in self.saved:
            prepare(self.saved_site.site.again(), operation)
            self.saved[operation] = directory.parent / f"before {operation}"
            shutil.copytree(directory, self.saved[operation])
        else:
            shutil.copytree(self.saved[operation], directory)
        return self.saved_site.site.again()

    def expected(self, operation: str, *, batches: int) -> Seen:
        """What is seen after so many micro-batches; a job that began with a savepoint has outputs since then."""
        seen = self.saved_site.after[batches]
        if operation != "import":
            return seen
        before = self.saved_site.after[2].outputs
        since = {name: Counter(rows) - Counter(before[name]) for name, rows in seen.outputs.items()}
        return Seen({name: sorted(rows.elements()) for name, rows in since.items()}, seen.state)

    def finish(self, site: Site, case: OperationCase) -> None:
        """Publish what is pending, repeat an operation that did not happen, and run to the end."""
        with site.engine() as engine:
            engine.publish_pending(site.job())
        moved = case.operation == "restore" and case.committed
        assert site.outputs() == self.expected(case.operation, batches=1 if moved else 2).outputs
        if unfinished(site, case):
            perform_again(site, case.operation)
        self.check_end(site, case.operation)

    def check_end(self, site: Site, operation: str) -> None:
        """The operation has had its effect, and plain runs give the results of an undisturbed job."""
        check_effect(site, operation)
        assert site.run().caught_up
        assert site.seen() == self.expected(operation, batches=3)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Prepared:
    base = tmp_path_factory.mktemp("operations")
    return Prepared(SavedSite.prepare(WORKLOADS["sinks"], base, spark, cut=CUT_OF_OPERATIONS, begun=2))


@pytest.mark.parametrize("case", list(operation_cases("raise")), ids=str)
def test_an_operation_that_fails_can_be_done_again(case: OperationCase, prepared: Prepared) -> None:
    site = prepared.fresh(case.operation)
    with installed([case.fault]) as plane, pytest.raises(InjectedFault):
        perform(site, case.operation)
    assert plane.fired == [case.fault]
    prepared.finish(site, case)


@pytest.mark.parametrize("case", list(operation_cases("zombie")), ids=str)
def test_an_operation_that_slept_disturbs_nobody(case: OperationCase, prepared: Prepared) -> None:
    """A micro-batch comes in between: what moves the head, or divides the state anew, fails then; the others go on."""
    site = prepared.fresh(case.operation)
    with installed([case.fault], meanwhile=lambda: another_runner(site, case)) as plane:
        if case.refusal:
            with pytest.raises(case.refusal):
                perform(site, case.operation)
        else:
            perform(site, case.operation)
    assert plane.fired == [case.fault]
    if case.refusal:
        assert site.outputs() == prepared.expected(case.operation, batches=3).outputs
        perform_again(site, case.operation)
    prepared.check_end(site, case.operation)


@pytest.mark.parametrize("nth", [1, 2])
def test_of_two_replays_of_a_branch_one_goes_on(nth: int, prepared: Prepared) -> None:
    """Instead of a micro-batch, the other runner replays the same branch while the first one sleeps."""
    site = prepared.fresh("replay")
    schedule = [Fault("before entry of checkpoints", nth, "zombie")]
    with (
        installed(schedule, meanwhile=lambda: perform(site.again(), "replay")),
        pytest.raises(StaleParentError),
    ):
        perform(site, "replay")
    assert [row.branch for row in site.rows()] == ["main", "main", BRANCH, BRANCH]
    prepared.check_end(site, "replay")


@pytest.mark.parametrize("operation", list(REACHED))
def test_an_operation_that_is_slow_is_not_noticed(operation: str, prepared: Prepared) -> None:
    site = prepared.fresh(operation)
    schedule = [Fault(point, 1, "delay") for point in REACHED[operation]]
    with installed(schedule) as plane:
        perform(site, operation)
    assert set(plane.fired) == set(schedule)
    prepared.check_end(site, operation)


Killed = KilledCases[OperationCase]


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """What a killed process left of a case; one process for all cases of an operation."""

    def together(case: OperationCase) -> list[OperationCase]:
        return [c for c in operation_cases("sigkill") if c.operation == case.operation]

    def shown(case: OperationCase, directory: Path) -> CaseOfChild:
        return CaseOfChild("sinks", directory, [case.fault], case.operation)

    return KilledCases(together, shown, lambda: tmp_path_factory.mktemp("killed"))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "case",
    [
        # one process dies for all cases of an operation, so one worker of several does them
        pytest.param(case, id=str(case), marks=pytest.mark.xdist_group(f"killed {case.operation}"))
        for case in operation_cases("sigkill")
    ],
)
def test_an_operation_that_was_killed_can_be_done_again(
    case: OperationCase, prepared: Prepared, dead: Killed
) -> None:
    prepared.finish(prepared.saved_site.at(dead(case).directory), case)


@pytest.mark.parametrize("operation", list(REACHED))
def test_the_matrix_has_every_point_as_often_as_it_is_reached(operation: str, prepared: Prepared) -> None:
    site = prepared.fresh(operation)
    counts = REACHED[operation]
    with installed([], watch=POINTS) as plane:
        perform(site, operation)
    assert {point: hits for point, hits in plane.hits.items() if point in counts} == counts
    assert set(plane.hits) - set(counts) <= UNTRIED
