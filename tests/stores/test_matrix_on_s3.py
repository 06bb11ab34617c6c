"""The fault matrix of a micro-batch, with the root and Delta sinks in a store: raise, zombie and SIGKILL at every step.

Of two workloads, which together reach every point and have every kind of sink that can withdraw.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.cases import Case, SavedSite, cases, check_fault
from tests.faults.child import CaseOfChild, killed
from tests.faults.plane import Action
from tests.faults.workloads import WORKLOADS
from tests.support.store_proxy import StoreProxy
from tests.support.stores import environment

pytestmark = [pytest.mark.spark_tasks, pytest.mark.servers, pytest.mark.usefixtures("store", "quick_race")]
IN_A_STORE = ("chained", "sinks")


def in_a_store(action: Action) -> list[Case]:
    return [case for case in cases(action) if case.workload.name in IN_A_STORE]


@pytest.fixture(scope="module")
def saved_sites(
    tmp_path_factory: pytest.TempPathFactory, running: StoreProxy, spark: SparkSession
) -> Callable[[str], SavedSite]:
    """The saved site of a workload, prepared at its first use."""
    prepared: dict[str, SavedSite] = {}

    def saved_site(name: str) -> SavedSite:
        if name not in prepared:
            base = tmp_path_factory.mktemp(name)
            store = f"s3a://bucket/{base.name}"
            prepared[name] = SavedSite.prepare(WORKLOADS[name], base, spark, store=store)
        return prepared[name]

    return saved_site


@pytest.mark.parametrize("case", [*in_a_store("raise"), *in_a_store("zombie")], ids=str)
def test_a_fault_changes_no_result(case: Case, saved_sites: Callable[[str], SavedSite]) -> None:
    check_fault(saved_sites(case.workload.name), case)


Dead = Callable[[Case], tuple[Path, str]]


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory, running: StoreProxy) -> Dead:
    """Where a killed process left a case: one process for all cases of a workload."""
    places: dict[str, tuple[Path, str]] = {}

    def place(case: Case) -> tuple[Path, str]:
        if str(case) not in places:
            base = tmp_path_factory.mktemp("killed")
            same = [c for c in in_a_store("sigkill") if c.workload is case.workload]
            of = {str(c): (base / str(i), f"s3a://bucket/{base.name}/{i}") for i, c in enumerate(same)}
            dying = [
                CaseOfChild(c.workload.name, of[str(c)][0], [c.fault], store=of[str(c)][1]) for c in same
            ]
            assert killed(dying, environment(running.endpoint)) == ""
            places.update(of)
        return places[str(case)]

    return place


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=pytest.mark.xdist_group(f"killed {case.workload.name}"))
        for case in in_a_store("sigkill")
    ],
)
def test_a_killed_process_changes_no_result(
    case: Case, saved_sites: Callable[[str], SavedSite], dead: Dead
) -> None:
    saved_site = saved_sites(case.workload.name)
    site = saved_site.at(*dead(case))
    assert len(site.rows()) == (2 if case.committed else 1)
    saved_site.check_recovery(site)
