"""Every fault point, by raising, by SIGKILL and with a zombie, on every workload; then plain runs: nothing differs.

A part of it runs with ``make test-all``; ``make test-faults`` runs all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.cases import ONCE, Case, SavedSite, broken, cases, check_fault
from tests.faults.child import CaseOfChild, KilledCases, killed
from tests.faults.plane import POINTS, Fault, InjectedFault, installed
from tests.faults.workloads import WORKLOADS

QUICK = {
    ("chained", "raise", "after operator", 1),
    ("chained", "raise", "after commit_changelog", 1),
    ("chained", "raise", "after commit_operator_state", 1),
    ("chained", "raise", "after file of the row", 1),
    ("chained", "raise", "before publish", 1),
    ("chained", "raise", "after sink published", 1),
    ("chained", "zombie", "after plan", 1),
    ("chained", "zombie", "before entry of checkpoints", 1),
    ("chained", "zombie", "after entry of checkpoints", 1),
    ("chained", "sigkill", "after commit_files", 1),
    ("chained", "sigkill", "after sink published", 1),
    ("windows", "raise", "after commit_changelog", 2),
    ("windows", "zombie", "before entry of checkpoints", 1),
    ("operators", "raise", "after operator", 2),
    ("operators", "raise", "after commit_changelog", 3),
    ("operators", "zombie", "before entry of checkpoints", 1),
    ("operators", "zombie", "after rows of a Delta table", 1),
    ("operators", "sigkill", "after commit_changelog", 2),
    ("operators", "sigkill", "before rows of a Delta table", 1),
    ("last_rows", "raise", "after rows of a Delta table", 1),
    ("last_rows", "zombie", "before rows of a Delta table", 1),
    ("last_rows", "zombie", "before rows of an SQL table", 1),
}
"""The faults that ``make test-all`` tries, too."""


def part_of(case: Case, *, quick: bool) -> bool:
    fault = case.fault
    return ((case.workload.name, fault.action, fault.point, fault.nth) in QUICK) is quick


def items(*actions: str) -> list[object]:
    """Cases as parameters; slow ones have the mark."""
    all_cases = [case for action in actions for case in cases(action)]  # type: ignore[arg-type]
    return [
        pytest.param(case, id=str(case), marks=marks_of(case))
        for case in sorted(all_cases, key=lambda case: case.workload.name)
    ]


def marks_of(case: Case) -> list[pytest.MarkDecorator]:
    """One process dies for all cases of a workload, so one worker runs them."""
    quick = part_of(case, quick=True)
    marks = [] if quick else [pytest.mark.faults]
    if case.fault.action == "sigkill":
        marks.append(pytest.mark.xdist_group(f"killed {case.workload.name}{' quick' if quick else ''}"))
    return marks


SavedSites = Callable[[str], SavedSite]


@pytest.fixture(scope="module")
def saved_sites(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> SavedSites:
    """The saved site of a workload, prepared at its first use."""
    prepared: dict[str, SavedSite] = {}

    def saved_site(name: str) -> SavedSite:
        if name not in prepared:
            prepared[name] = SavedSite.prepare(WORKLOADS[name], tmp_path_factory.mktemp(name), spark)
        return prepared[name]

    return saved_site


@pytest.mark.parametrize("case", items("raise", "zombie"))
def test_a_fault_changes_no_result(case: Case, saved_sites: SavedSites) -> None:
    check_fault(saved_sites(case.workload.name), case)


def test_a_fault_that_keeps_coming_back_loses_nothing(saved_sites: SavedSites) -> None:
    """The second run fails where the first left outputs pending, the third one just after it."""
    saved_site = saved_sites("chained")
    site = saved_site.fresh()
    for point in ("before publish", "after sink published", "before plan"):
        with installed([Fault(point)]), pytest.raises(InjectedFault):
            site.run()
    saved_site.check_recovery(site)


@pytest.mark.parametrize("name", ["last_rows", pytest.param("sinks", marks=pytest.mark.faults)])
def test_an_attempt_that_a_compaction_overtakes_commits_all_the_same(
    name: str, saved_sites: SavedSites
) -> None:
    """It is numbered anew, and its files are looked at once more, those of a table in a database, too: none."""
    saved_site = saved_sites(name)
    site = saved_site.fresh()

    def compaction() -> None:
        with site.engine() as engine:
            engine.compact(name)

    with installed([Fault("before commit", action="zombie")], meanwhile=compaction):
        assert site.run().caught_up
    assert [row.checkpoint_id for row in site.rows()] == list(range(1, saved_site.batches + 2))
    assert site.seen() == saved_site.after[-1]


@pytest.mark.faults
@pytest.mark.parametrize("name", ["chained", "sinks"])
def test_a_micro_batch_that_is_slow_is_not_noticed(name: str, saved_sites: SavedSites) -> None:
    saved_site = saved_sites(name)
    site = saved_site.fresh()
    schedule = [Fault(point, 1, "delay") for point in (*ONCE, *saved_site.workload.reached())]
    with installed(schedule) as plane:
        assert site.run(max_batches=1).batches
    assert set(plane.fired) == set(schedule)
    assert len(site.rows()) == 2
    saved_site.check_recovery(site)


def test_publish_pending_publishes_without_running(saved_sites: SavedSites) -> None:
    saved_site = saved_sites("chained")
    site = saved_site.fresh()
    with installed([Fault("before publish")]), pytest.raises(InjectedFault):
        site.run()
    assert site.outputs() == saved_site.after[1].outputs
    with site.engine() as engine:
        assert engine.publish_pending(site.job()) == [2]
        assert engine.publish_pending(site.job()) == []
    assert site.outputs() == saved_site.after[2].outputs
    assert len(site.rows()) == 2


# -- SIGKILL -----------------------------------------------------------------------------------------------------------

Killed = KilledCases[Case]


def shown(case: Case, directory: Path) -> CaseOfChild:
    return CaseOfChild(case.workload.name, directory, [case.fault])


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """What a killed process left of a case; one process for all cases of a workload and part."""

    def together(case: Case) -> list[Case]:
        quick = part_of(case, quick=True)
        return [c for c in cases("sigkill") if c.workload is case.workload and part_of(c, quick=quick)]

    return KilledCases(together, shown, lambda: tmp_path_factory.mktemp("killed"))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", items("sigkill"))
def test_a_killed_process_changes_no_result(case: Case, saved_sites: SavedSites, dead: Killed) -> None:
    site = saved_sites(case.workload.name).at(dead(case).directory)
    assert len(site.rows()) == (2 if case.committed else 1)
    saved_sites(case.workload.name).check_recovery(site)


@pytest.mark.faults
@pytest.mark.parametrize("point", ["after entry of checkpoints", "before entry of checkpoints"])
def test_a_process_that_dies_at_the_very_point_changes_no_result(
    point: str, saved_sites: SavedSites, tmp_path: Path
) -> None:
    case = Case(WORKLOADS["sinks"], Fault(point, action="sigkill"))
    assert killed([shown(case, tmp_path / "site")]) == ""
    site = saved_sites("sinks").at(tmp_path / "site")
    assert len(site.rows()) == (2 if case.committed else 1)
    saved_sites("sinks").check_recovery(site)


# -- the matrix is whole -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chained", *(pytest.param(n, marks=pytest.mark.faults) for n in WORKLOADS)])
def test_the_matrix_has_every_point_as_often_as_it_is_reached(name: str, saved_sites: SavedSites) -> None:
    site = saved_sites(name).fresh()
    with installed([], watch=POINTS) as plane:
        site.run(max_batches=1)
    elsewhere = {"after table created", "before row appended", "after row appended"}
    reached = {point: hits for point, hits in plane.hits.items() if point not in elsewhere}
    assert reached == dict.fromkeys(ONCE, 1) | WORKLOADS[name].reached()


TABLES = 6
"""What a first run makes: checkpoints, operator state, changes, two Delta sinks, and, to publish, dead letters."""


@pytest.mark.faults
def test_a_first_run_makes_so_many_tables(saved_sites: SavedSites, tmp_path: Path) -> None:
    site = saved_sites("sinks").at(tmp_path)
    with installed([], watch=["after table created"]) as plane:
        site.run(max_batches=1)
    assert plane.hits == {"after table created": TABLES}


@pytest.mark.faults
@pytest.mark.parametrize("action", ["raise", "zombie"])
@pytest.mark.parametrize("nth", list(range(1, TABLES + 1)))
def test_a_fault_in_the_very_first_run_changes_no_result(
    nth: int, action: str, saved_sites: SavedSites, tmp_path: Path
) -> None:
    """Between the creation of two tables: the root is half there."""
    saved_site = saved_sites("sinks")
    site = saved_site.at(tmp_path)
    case = Case(saved_site.workload, Fault("after table created", nth, action))  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        # the first table is that of checkpoints, made before the head is read; the last is made behind the commit
        patch.setattr(Case, "loses", 1 < nth < TABLES)
        broken(site, case)
    saved_site.check_recovery(site)
