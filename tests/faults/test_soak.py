"""Random histories of runs, operations, raises and zombies: each ends as if nobody had disturbed it.

pytest tests/faults/test_soak.py -k "[17]"      one seed again
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.errors import ConfigurationError, StaleParentError
from tests.faults.cases import ONCE
from tests.faults.operations import REACHED
from tests.faults.plane import Action, Fault, InjectedFault, installed
from tests.faults.workloads import CUT, WORKLOADS, Seen, Site

STEPS_OF_A_HISTORY = (2, 4)
_ACTIONS: tuple[Action, ...] = ("raise", "zombie")
# it holds the lock of the sink there, so nobody can do anything meanwhile
_OPERATIONS = ("restore", "rescale", "compact", "retain", "savepoint")
_UNDER_LOCK = {p for counts in REACHED.values() for p in counts if "move of files" in p}


@dataclass
class History:
    """Runs random operations on a site; see the module docstring."""

    site: Site
    seed: int
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def play(self) -> None:
        """Random steps, each with random faults; then plain runs to the end."""
        for _ in range(self._rng.randint(*STEPS_OF_A_HISTORY)):
            schedule = self._schedule()
            with installed(schedule, meanwhile=self._meanwhile):
                self._do(self._step(), with_faults=bool(schedule))
        assert self.site.run().caught_up
        assert not self.site.run().batches

    # -- what is done ----------------------------------------------------------------------------------------------

    def _step(self) -> str:
        return self._rng.choice(["run"] * 5 + ["restore"] * 2 + ["compact"] * 2 + ["rescale", "retain"])

    def _meanwhile(self) -> None:
        """What another runner does while this one sleeps."""
        self.steps.append("zombie sleeps {")
        self._do(self._step(), with_faults=False)
        self.steps.append("}")

    def _do(self, step: str, *, with_faults: bool) -> None:
        self._cut_anew()
        steps: dict[str, Callable[[Site], object]] = {
            "run": self._run,
            "restore": self._restore,
            "compact": self._compact,
            "rescale": self._rescale,
            "retain": self._retain,
        }
        allowed: tuple[type[Exception], ...] = (InjectedFault, StaleParentError) if with_faults else ()
        if step != "run":  # there is nothing to restore yet, or it was expired
            allowed = (*allowed, ConfigurationError)
        try:
            steps[step](self.site.again())
            self.steps.append(step)
        except allowed as error:
            self.steps.append(f"{step}: {type(error).__name__}: {str(error)[:80]}")

    def _cut_anew(self) -> None:
        """Cut micro-batches at other places, unless the cut decides which rules an element meets."""
        if self.site.workload.name != "broadcast":
            self.site.cut = self._rng.randint(6, 20)

    def _run(self, site: Site) -> None:
        site.run(max_batches=self._rng.choice([1, 2, None]))

    def _restore(self, site: Site) -> None:
        with site.engine() as engine:
            ids = [row.checkpoint_id for row in engine.checkpoints(site.workload.name)]
            engine.restore(site.workload.name, checkpoint_id=self._rng.choice(ids or [1]))

    def _compact(self, site: Site) -> None:
        with site.engine() as engine:
            engine.compact(site.workload.name)

    def _rescale(self, site: Site) -> None:
        with site.engine() as engine:
            engine.rescale(site.job(), parallelism=self._rng.randint(1, 4))

    def _retain(self, site: Site) -> None:
        with site.engine() as engine:
            engine.expire_checkpoints(site.workload.name, RetentionPolicy(keep_last=self._rng.randint(1, 3)))

    # -- faults ----------------------------------------------------------------------------------------------------

    def _schedule(self) -> list[Fault]:
        counts = dict.fromkeys(ONCE, 2) | {p: 2 * n for p, n in self.site.workload.reached().items()}
        for operation in _OPERATIONS:
            counts |= {p: max(n, counts.get(p, 0)) for p, n in REACHED[operation].items()}
        schedule = []
        for point in self._rng.sample(sorted(counts), self._rng.choice([0, 3, 6, 9])):
            action = "raise" if point in _UNDER_LOCK else self._rng.choice(_ACTIONS)
            schedule.append(Fault(point, self._rng.randint(1, counts[point]), action))
        self.steps.append(f"with {', '.join(map(str, schedule)) or 'no fault'}")
        return schedule


pytestmark = [pytest.mark.spark, pytest.mark.faults]
SEEDS = 200
Expected = Callable[[str], Seen]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Expected:
    """The results of an uninterrupted run of a workload."""
    seen_by_name: dict[str, Seen] = {}

    def seen(name: str) -> Seen:
        if name not in seen_by_name:
            site = Site(tmp_path_factory.mktemp(name), WORKLOADS[name], spark, cut=CUT)
            site.run()
            seen_by_name[name] = site.seen()
        return seen_by_name[name]

    return seen


@pytest.mark.parametrize("seed", list(range(SEEDS)))
def test_a_random_history_changes_no_result(
    seed: int, tmp_path: Path, spark: SparkSession, expected: Expected
) -> None:
    restorable = [workload for workload in WORKLOADS.values() if workload.withdraws]
    workload = restorable[seed % len(restorable)]
    history = History(Site(tmp_path, workload, spark, cut=CUT), seed)
    try:
        history.play()
        assert history.site.seen() == expected(workload.name)
    except BaseException:
        print(f"seed {seed}, workload {workload.name}:", *history.steps, sep="\n  ")
        raise
