"""The fault matrix of a micro-batch, with the root and Delta sinks in a store: raise, zombie and SIGKILL at every step.

Of two workloads, which together reach every point and have every kind of sink that can withdraw.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.cases import Case, SavedSite, cases, check_fault
from tests.faults.child import CaseOfChild, KilledCases
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


Killed = KilledCases[Case]


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory, running: StoreProxy) -> Killed:
    """What a killed process left of a case: one process for all cases of a workload."""

    def together(case: Case) -> list[Case]:
        return [c for c in in_a_store("sigkill") if c.workload is case.workload]

    def shown(case: Case, directory: Path) -> CaseOfChild:
        store = f"s3a://bucket/{directory.parent.name}/{directory.name}"
        return CaseOfChild(case.workload.name, directory, [case.fault], store=store)

    return KilledCases(
        together, shown, lambda: tmp_path_factory.mktemp("killed"), environment(running.endpoint)
    )


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=pytest.mark.xdist_group(f"killed {case.workload.name}"))
        for case in in_a_store("sigkill")
    ],
)
def test_a_killed_process_changes_no_result(
    case: Case, saved_sites: Callable[[str], SavedSite], dead: Killed
) -> None:
    saved_site = saved_sites(case.workload.name)
    left = dead(case)
    site = saved_site.at(left.directory, left.store)
    assert len(site.rows()) == (2 if case.committed else 1)
    saved_site.check_recovery(site)
