"""``SuiteBound``: a suite of expectations as the bound of a gate, judged by what a micro-batch has staged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.columns import one_chunk
from state_engine.expectations.suites import OfSink, OfState, Suite
from state_engine.job.job import OnBreach, StatefulJob
from state_engine.sinks.bounds import MOST_SHOWN, Bound, Breach, StagedRows
from state_engine.state_tables.table_form import VALUE


@dataclass(frozen=True)
class SuiteBound(Bound):
    """The expectations of severity ``error`` of a suite; Great Expectations is imported when it judges."""

    suite: Suite

    @property
    def sink(self) -> str:
        of = self.suite.of
        return of.sink if isinstance(of, OfSink) else f"{of.operator}.{of.state}"

    @property
    def text(self) -> str:
        return f"{self.sink} meets {', '.join(self._names)}"

    @property
    def columns(self) -> Mapping[str, tuple[str, ...] | None]:
        return {self.sink: None}

    @property
    def _names(self) -> list[str]:
        return [one.name for one in self.suite.expectations if one.severity == "error"]

    def breach(self, staged: StagedRows) -> Breach | None:
        """The expectations that staged rows do not meet, and some of these rows; not judged if there are none."""
        from state_engine.expectations.validation import judged  # it takes seconds to import what this needs

        of = self.suite.of
        rows = (
            flat(staged.entries(of.operator, of.state))
            if isinstance(of, OfState)
            else staged.table(self.sink, None)
        )
        if not rows.num_rows:
            return None
        outcomes = judged(self.suite, rows)
        for name, one in outcomes.items():
            if one.error:
                raise ConfigurationError(f"suite '{self.suite.name}', expectation '{name}': {one.summary}")
        broken = [name for name in self._names if not outcomes[name].met]
        if not broken:
            return None
        sample = [row for name in broken for row in outcomes[name].sample]
        shown = tuple(row if isinstance(row, Mapping) else {"value": row} for row in sample[:MOST_SHOWN])
        return Breach("; ".join(f"{name}: {outcomes[name].summary}" for name in broken), shown)


def flat(entries: pa.Table) -> pa.Table:
    """Entries with a column ``value_<field>`` for each field of a record, as suites of states name them.

    Example:
        >>> flat(pa.table({"k": [1], "value": [{"n": 2}]})).column_names
        ['k', 'value_n']
    """
    kind = entries.schema.field(VALUE).type if VALUE in entries.column_names else None
    if kind is None or not pa.types.is_struct(kind):
        return entries
    value = one_chunk(entries[VALUE])
    fields = dict(zip((f"{VALUE}_{name}" for name in kind.names), value.flatten(), strict=True))
    others = [name for name in entries.column_names if name != VALUE]
    return pa.table({name: entries[name] for name in others} | fields)


def add_gates(job: StatefulJob, suites: tuple[Suite, ...]) -> None:
    """Give a job the gates that its suites ask for, each once. Raises ConfigurationError as ``StatefulJob.gate``."""
    for suite in suites:
        known, bound = job.gates.get(suite.name), SuiteBound(suite)
        if suite.gate and not (known is not None and known.bound == bound):
            otherwise: OnBreach = "stop" if suite.gate is True else suite.gate
            job.gate(suite.name, bound, otherwise)
