"""``SomeKeys``: the keys of a recorded micro-batch that a sample runs, with all of their rows.

Rows are read and routed as ever, so the watermark before each of them is what it was. Then each operator with keys that
stands behind no other one is given the rows of some keys, by hash, which together have so many rows at most. Behind a
second key, each key would have some of its rows only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from state_engine.core.counted_nouns import counted
from state_engine.core.errors import StatelakeError
from state_engine.core.functions.checkpointed import CheckpointedFunction, ListCheckpointed
from state_engine.job.graph import Node, OperatorNode, upstream
from state_engine.job.job import StatefulJob
from state_engine.microbatch.routing.routed import HASH, RoutedInput
from state_engine.microbatch.routing.routing import Routed, Router
from state_engine.spark.tasks import DriverTables


class SomeKeys(Router):
    """Routes the rows of some keys only.

    Args:
        most: so many rows at most are given to each operator with keys.

    Attributes:
        hashes: of the keys, by the uid of their operator.
    """

    def __init__(self, spark: SparkSession, job: StatefulJob, most: int) -> None:
        super().__init__(spark, max_parallelism=job.max_parallelism)
        self._job, self._most = job, most
        self.hashes: dict[str, set[int]] = {}
        self._rows: dict[str, int] = {}

    @property
    def rows(self) -> int:
        """How many rows the keys have, of the operator that has most."""
        return max(self._rows.values(), default=0)

    @property
    def text(self) -> str:
        """How many there are, for people."""
        parts = [
            f"{counted(len(self.hashes[uid]), 'key')} of {uid} ({counted(n, 'row')})"
            for uid, n in self._rows.items()
        ]
        return ", ".join(parts) or "no key"

    @cached_property
    def sinks(self) -> set[str]:
        """Names of the sinks whose rows come from whole keys."""

        def mixes(node: Node) -> bool:
            if not isinstance(node, OperatorNode) or not _keyed_before(node):
                return False
            return node.keyed or isinstance(node.function, CheckpointedFunction | ListCheckpointed)

        return {name for name, sink in self._job.sinks.items() if not any(map(mixes, upstream(sink.parent)))}

    def route(self, inputs: Sequence[RoutedInput], operator: OperatorNode, **options: Any) -> Routed:
        """As of ``Router``, with the rows of these keys.

        Raises:
            StatelakeError: Spark has the rows.
        """
        routed = super().route(inputs, operator, **options)
        if not operator.keyed or _keyed_before(operator):
            return routed
        if not isinstance(routed.rows, DriverTables):
            raise StatelakeError("Spark has its rows, so no keys can be chosen: take a larger sample")
        tables = routed.rows.tables
        of_rows = np.concatenate([table[HASH].drop_null().to_numpy() for table in tables])
        keys, counts = np.unique(of_rows, return_counts=True)
        fits = counts <= self._most
        chosen = fits & (np.cumsum(np.where(fits, counts, 0)) <= self._most)
        self.hashes[operator.uid] = set(keys[chosen].tolist())
        self._rows[operator.uid] = int(counts[chosen].sum())
        wanted = pa.array(keys[chosen], pa.int64())
        some = [t.filter(pc.or_(pc.is_null(t[HASH]), pc.is_in(t[HASH], wanted))) for t in tables]
        return replace(routed, rows=replace(routed.rows, tables=some))


def _keyed_before(operator: OperatorNode) -> bool:
    before = upstream(*(one.parent for one in operator.inputs))
    return any(isinstance(node, OperatorNode) and node.keyed for node in before)
