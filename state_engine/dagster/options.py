"""``JobOptions``: which operations, checks and automation a job brings into Dagster; few by default (decision 0046)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Self, get_args

from state_engine.core.argument_checks import checked_class
from state_engine.core.errors import ConfigurationError
from state_engine.dagster.external.launch import PipesLaunch
from state_engine.dagster.naming import Operation
from state_engine.monitoring.strains import HealthLimits

Automation = Literal[
    "schedule",
    "new_data",
    "watch",
    "compaction",
    "retention",
    "savepoint_partitions",
    "checks",
    "expectations",
]
"""What starts runs by itself, once it is switched on; the guide on Dagster has a table of them."""
Checks = Literal[
    "moves_on", "dead_letters", "late_rows", "gates", "expectations", "invariants", "tables", "plan"
]
"""``late_rows``, ``gates``, ``expectations`` and ``tables`` exist only where the job has time partitions, has gates,
expects something, or has published tables. Without being named, ``invariants``, ``tables`` and ``plan`` do
not exist: the first two read much, the last opens functions."""

_KNOWN = {
    "operations": get_args(Operation),
    "automation": get_args(Automation),
    "checks": get_args(Checks),
}
_STARTS: dict[str, tuple[str, str]] = {
    "watch": ("checks", "moves_on"),
    "compaction": ("operations", "base"),
    "retention": ("operations", "retention"),
    "savepoint_partitions": ("operations", "savepoints"),
    "expectations": ("checks", "expectations"),
}
"""What an automation has no sense without: it brings that, too."""


@checked_class
@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What a job brings into Dagster beside its assets and the Dagster job that runs them.

    An automation brings the operation or the check that it starts. Nothing runs before somebody switches it on.

    Attributes:
        operations: what is done between micro-batches, an asset and a Dagster job each.
        automation: schedules and sensors.
        checks: asset checks of the checkpoint, and those that the job declares as expectations.
        limits: of lag, growth of state and skew, beyond which ``moves_on`` warns; None for the usual ones, with a lag
            of six intervals of the schedule.
        launch: a process of their own for the micro-batches; None: they run in the process of the run.

    Raises:
        ConfigurationError: a name is not known.

    Example:
        >>> JobOptions(automation=["new_data", "compaction"]).operations
        frozenset({'base'})
    """

    operations: Collection[Operation] = ()
    automation: Collection[Automation] = frozenset[Automation](["schedule"])
    checks: Collection[Checks] = frozenset[Checks](
        ["moves_on", "dead_letters", "late_rows", "gates", "expectations"]
    )
    launch: PipesLaunch | None = None
    limits: HealthLimits | None = None

    def __post_init__(self) -> None:
        for field, known in _KNOWN.items():
            chosen = getattr(self, field)
            unknown = sorted(set(chosen) - set(known))
            if unknown or isinstance(chosen, str):
                raise ConfigurationError(
                    f"JobOptions, {field}: there is no {chosen if isinstance(chosen, str) else unknown[0]!r}. "
                    f"Known are {list(known)}"
                )
            brought = {
                what for name in self.automation for to, what in [_STARTS.get(name, ("", ""))] if to == field
            }
            object.__setattr__(self, field, frozenset({*chosen, *brought}))

    @classmethod
    def everything(cls) -> Self:
        """All operations, checks and automation."""
        return cls(operations=get_args(Operation), automation=get_args(Automation), checks=get_args(Checks))
