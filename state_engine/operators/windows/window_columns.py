"""Results of windows and sessions over columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from state_engine.core.functions.vectorized_functions import EVENT_TIME
from state_engine.operators.aggregates.column_plan import PlanOverColumns
from state_engine.operators.aggregates.segments import Column
from state_engine.operators.windows.window_results import BOUNDS

_INSTANT = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class WindowColumns:
    """Windows that are shown: keys and bounds."""

    keys: Column
    starts: Column
    ends: Column

    def table(
        self, keys: pa.Table, plan: PlanOverColumns, results: Sequence[pa.Array], **marks: Any
    ) -> pa.Table:
        """Their outputs.

        Args:
            keys: by number.
            results: the columns of the plan's results.
            marks: columns of origins and kinds.
        """
        return self.with_columns(keys, dict(zip(plan.names, results, strict=True)), **marks)

    def with_columns(self, keys: pa.Table, results: Mapping[str, Any], **marks: Any) -> pa.Table:
        columns = {name: keys[name].take(pa.array(self.keys)) for name in keys.column_names}
        for name, at in zip(BOUNDS, (self.starts, self.ends), strict=True):
            columns[name] = pa.array(at * 1000).cast(_INSTANT)
        return pa.table({**columns, **results, EVENT_TIME: self.ends - 1, **marks})
