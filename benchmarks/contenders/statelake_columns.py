"""Statelake on the reference workload by a function over columns: the job of ``statelake``, its function replaced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.contenders.statelake import Statelake
from benchmarks.workload import WINDOW
from state_engine import RuntimeContext, ValueStateDescriptor, VectorizedKeyedFunction, VectorizedResult


class CountWindowAverageOverColumns(VectorizedKeyedFunction):
    """Emit (key, average) for every ``WINDOW`` values of a key, by sorting the rows of a batch by key.

    Sorted rows fall into *pieces*, each of one window of one key. The first piece of a key goes on with the window that
    the state holds; the last one, if it is not full, is the new state.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_state(ValueStateDescriptor("window", tuple[int, float]))

    def process_batch(self, rows: pa.Table, state: pa.Table, ctx: Any) -> VectorizedResult:
        before = state["window"].combine_chunks()
        counts, totals = (pc.fill_null(pc.struct_field(before, i), 0).to_numpy() for i in (0, 1))
        keys = rows["_key"].to_numpy()
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        begins = np.diff(keys, prepend=-1) != 0  # the first row of each key
        firsts = np.flatnonzero(begins)
        place = np.arange(len(keys)) - np.repeat(firsts, np.diff(firsts, append=len(keys))) + counts[keys]
        pieces = np.flatnonzero(begins | (place % WINDOW == 0))
        ends, owner = np.append(pieces[1:], len(keys)), keys[pieces]
        goes_on = begins[pieces]
        total = np.add.reduceat(rows["v"].to_numpy()[order], pieces) + np.where(goes_on, totals[owner], 0)
        count = ends - pieces + np.where(goes_on, counts[owner], 0)
        full, last = count == WINDOW, np.append(owner[1:] != owner[:-1], True)
        closing = order[ends[full] - 1]
        outputs = {
            "k": rows["k"].take(closing),
            "a": total[full] / WINDOW,
            "_row": rows["_row"].take(closing),
        }
        window = pa.StructArray.from_arrays(
            [pa.array(count[last]), pa.array(total[last])],
            fields=list(before.type),
            mask=pa.array(full[last]),
        )
        return VectorizedResult(pa.table(outputs), state=pa.table({"_key": owner[last], "window": window}))


class StatelakeColumns(Statelake):
    """This engine, with a function over columns; see the module docstring."""

    name = "statelake_columns"
    function = CountWindowAverageOverColumns
