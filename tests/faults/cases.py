"""The fault matrix as data: the faults that a micro-batch of each workload can meet, and the results after them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from state_engine.core.errors import StaleParentError
from tests.faults.plane import STEPS, Action, Fault, InjectedFault, Plane, installed
from tests.faults.workloads import CUT, TABLES_OF_STATES, WORKLOADS, Seen, Site, Workload

_SEVERAL = ("publish_pending", "commit_changelog")
ONCE = (
    *(f"{when} {step}" for step in STEPS if step not in _SEVERAL for when in ("before", "after")),
    "after file of positions",
    "after file of the row",
    "before entry of checkpoints",
    "after entry of checkpoints",
    "after dropped exchange",
)
"""Points that every micro-batch reaches once."""

COMMITTED = ("after entry of checkpoints", "after commit", "after dropped exchange", "before publish",
             "after sink published", *(f"{when} {table}" for table in TABLES_OF_STATES for when in ("before", "after")),
             "after publish")  # fmt: skip
"""Points that lie behind the commit point."""


@dataclass(frozen=True)
class Case:
    """One fault in the second micro-batch of a workload."""

    workload: Workload
    fault: Fault

    def __str__(self) -> str:
        return f"{self.workload.name}-{self.fault}"

    @property
    def committed(self) -> bool:
        """Whether the micro-batch of the fault is committed when it happens."""
        if self.fault.point == "after table committed":  # changes, operator state, then the row, then sinks
            return self.fault.nth > len(self.workload.keyed) + 1
        return self.fault.point in COMMITTED

    @property
    def loses(self) -> bool:
        """Whether another runner that commits at this moment makes the attempt worthless."""
        head_is_read = "publish_pending" not in self.fault.point or (self.fault.point, self.fault.nth) == (
            "after publish_pending",
            2,
        )
        return not self.committed and head_is_read


def cases(action: Action) -> Iterator[Case]:
    """Every fault point of every workload."""
    for workload in WORKLOADS.values():
        counts = dict.fromkeys(ONCE, 1) | workload.reached()
        for point, count in counts.items():
            for nth in range(1, count + 1):
                yield Case(workload, Fault(point, nth, action))


@dataclass(frozen=True)
class SavedSite:
    """A workload after its first micro-batches, to be broken again and again, and what must be seen."""

    site: Site
    saved: Path
    after: list[Seen]

    @classmethod
    def prepare(
        cls,
        workload: Workload,
        base: Path,
        spark: SparkSession,
        *,
        cut: int = CUT,
        begun: int = 1,
        store: str | None = None,
    ) -> SavedSite:
        site = Site(base / "work", workload, spark, cut=cut, store=store)
        site.directory.mkdir()
        after, saved = [site.seen()], base / "saved"
        while not site.run(max_batches=1).caught_up:
            after.append(site.seen())
            if len(after) == begun + 1:
                site.save(saved)
        return cls(site, saved, after)

    @property
    def workload(self) -> Workload:
        return self.site.workload

    @property
    def batches(self) -> int:
        return len(self.after) - 1

    def fresh(self) -> Site:
        self.site.put_back(self.saved)
        return self.site.again()

    def at(self, directory: Path, store: str | None = None) -> Site:
        """The same workload in another directory."""
        return Site(directory, self.workload, self.site.spark, cut=self.site.cut, store=store)

    def check_recovery(self, site: Site) -> None:
        """Visible outputs are those of checkpoints; then plain runs complete the results of an uninterrupted run."""
        rows = len(site.rows())
        published = site.outputs()
        for sink, rows_of_sink in published.items():
            ends = [self.after[i].outputs[sink] for i in {max(rows - 1, 0), rows}]
            assert rows_of_sink in ends, f"sink {sink} shows rows of no checkpoint, or only some"
        assert site.run().caught_up
        assert [row.checkpoint_id for row in site.rows()] == list(range(1, self.batches + 1))
        assert site.seen() == self.after[-1]


def check_fault(saved_site: SavedSite, case: Case) -> None:
    """A fault in this process loses the attempt, or only its publication, and plain runs bring what was missing."""
    site = saved_site.fresh()
    broken(site, case)
    if case.fault.action == "raise":  # a zombie goes on where it may
        assert len(site.rows()) == (2 if case.committed else 1)
    saved_site.check_recovery(site)


def broken(site: Site, case: Case) -> Plane:
    """Run into the fault of a case in this process, and check the end of that run."""

    def another_runner() -> None:
        ran = site.again().run(max_batches=1)
        assert len(ran.batches) == 1 - case.committed

    with installed([case.fault], meanwhile=another_runner) as plane:
        ended: Exception | None = None
        try:
            site.run()
        except (InjectedFault, StaleParentError) as error:
            ended = error
    wanted = InjectedFault if case.fault.action == "raise" else StaleParentError if case.loses else type(None)
    assert type(ended) is wanted
    assert plane.fired == [case.fault]
    return plane
