"""``OwnRows``: input that each subtask reads for itself, leaving out the rows of others, so that nothing is shuffled.

To read a row of a file on a disk and to hash its key takes a fraction of what it takes to send the row through Spark's
shuffle. So as long as they are few, subtasks all read the same files; of more of them, each row is read once and
shuffled. Plays the part of Flink's local channels, through which rows go without the network. Decision 0087.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from state_engine.microbatch.routing.arrow_router import of_subtask, routed_rows, without_watermarks
from state_engine.microbatch.routing.blocks import gathered, joined
from state_engine.microbatch.routing.routed import RoutedLayout
from state_engine.microbatch.routing.routed_columns import Edge
from state_engine.sources.base import Read

MOST_READERS = 4
"""Of so many subtasks each reads all rows. Decision 0087 has the figures."""


@dataclass(frozen=True)
class OwnInput:
    """One input of an operator.

    Attributes:
        read: gives the rows that a task would read.
        tasks: how many there would be.
        edge: how the rows are routed.
    """

    read: Read
    tasks: int
    edge: Edge

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, with the columns that routing needs."""
        for task in range(self.tasks):
            yield from self.read(task, self.edge.needs)


@dataclass(frozen=True)
class OwnRows:
    """The input of an operator, for its subtasks to read.

    Attributes:
        inputs: at least one.
        empty: no rows, with the columns that routed rows have.
        layout: of routed rows.
        parallelism, max_parallelism: of the operator.
    """

    inputs: Sequence[OwnInput]
    empty: pa.Table
    layout: RoutedLayout
    parallelism: int
    max_parallelism: int

    def of(self, subtask: int) -> pa.Table:
        """The routed rows of one subtask, in the order in which they were read; each column is one chunk."""
        return joined([self.empty, *self._routed(subtask)])

    def _routed(self, subtask: int) -> Iterator[pa.Table]:
        for one in self.inputs:
            for rows in gathered(one.batches()):
                routed = routed_rows(
                    rows, one.edge, parallelism=self.parallelism, max_parallelism=self.max_parallelism
                )
                yield of_subtask(without_watermarks(routed, self.layout), subtask)
