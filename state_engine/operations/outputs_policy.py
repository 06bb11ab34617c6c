"""What becomes of the outputs of micro-batches that leave the head's path, sink by sink.

A restore, a promotion and a backfill move the head, and the sinks with it. ``withdraw``: what is left goes from the
sink, in the commit in which the new outputs come. ``keep``: it stays, and the new outputs come beside it, for sinks
that cannot let go of anything, such as mails that were sent. A table that shows a state has other policies, see
``TablePolicy``: ``follow``, ``keep`` and ``rebuild``. Flink has no counterpart: its sinks take back nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from state_engine.core.errors import ConfigurationError
from state_engine.state_tables.states import TablePolicy

Policy = Literal["withdraw", "keep", "follow", "rebuild"]
OutputsPolicy = Policy | Mapping[str, Policy]
"""Of all sinks, ``withdraw`` or ``keep``; or by the name of a sink, where those that are not named withdraw."""
_POLICIES, _FOR_ALL, _OF_SINKS = get_args(Policy), ("withdraw", "keep"), ("withdraw", "keep")


@dataclass(frozen=True)
class OutputsOfSinks:
    """The policy of each sink; ``outputs_of`` makes one."""

    named: Mapping[str, Policy]
    others: Policy = "withdraw"

    def keeps(self, sink: str) -> bool:
        """Whether a sink keeps what is left."""
        return self.named.get(sink, self.others) == "keep"

    @property
    def keeps_any(self) -> bool:
        """Whether some sink may keep what is left."""
        return "keep" in (self.others, *self.named.values())

    def of_table(self, name: str) -> TablePolicy:
        policy = self.named.get(name, self.others)
        return "follow" if policy == "withdraw" else policy

    def check_names(self, job: str, sinks: Collection[str], tables: Collection[str] = ()) -> None:
        """Refuse names that there are no sinks of, and policies of the other kind; raises ConfigurationError.

        Args:
            sinks: names of those that the job has or had.
        """
        unknown = sorted(set(self.named) - set(sinks) - set(tables))
        if unknown:
            raise ConfigurationError(
                f"job '{job}': outputs names the sinks {unknown}, which it does not have; its sinks: "
                f"{sorted({*sinks, *tables})}"
            )
        for name, policy in self.named.items():
            if name in tables and policy == "withdraw":
                raise ConfigurationError(
                    f"job '{job}': outputs says 'withdraw' of '{name}', a table that shows a state: it takes 'follow', "
                    "'keep' or 'rebuild'"
                )
            if name not in tables and policy not in _OF_SINKS:
                raise ConfigurationError(
                    f"job '{job}': outputs says '{policy}' of '{name}', to which outputs are appended: it takes "
                    "'withdraw' or 'keep'"
                )


def outputs_of(outputs: OutputsPolicy) -> OutputsOfSinks:
    """The policy of each sink, from what a user says.

    Example:
        >>> outputs_of({"mail": "keep"}).keeps("mail"), outputs_of({"mail": "keep"}).keeps("history")
        (True, False)
    """
    made = OutputsOfSinks(dict(outputs)) if isinstance(outputs, Mapping) else OutputsOfSinks({}, outputs)
    wrong = [policy for policy in (*made.named.values(), made.others) if policy not in _POLICIES]
    wrong += [policy for policy in (made.others,) if policy not in _FOR_ALL]
    if wrong:
        raise ConfigurationError(
            f"outputs must be 'withdraw' or 'keep', or a policy by name of a sink, as in {{'mail': 'keep', 'latest': "
            f"'follow'}}, not {wrong[0]!r}"
        )
    return made
