"""``OwnRows``: input that each subtask reads for itself, leaving out the rows of others, so that nothing is shuffled.

To read a row of a file on a disk and to hash its key takes a fraction of what it takes to send the row through Spark's
shuffle. So as long as they are few, subtasks all read the same files; of more of them, each row is read once and
shuffled. Plays the part of Flink's local channels, through which rows go without the network. Decision 0040.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from state_engine.microbatch.routing.arrow_router import of_subtask, routed_rows, without_watermarks
from state_engine.microbatch.routing.blocks import gathered, joined
from state_engine.microbatch.routing.routed import RoutedLayout
from state_engine.microbatch.routing.routed_columns import Edge
from state_engine.microbatch.routing.total_order import order_indices
from state_engine.sources.rows import Read


@dataclass(frozen=True)
class OwnInput:
    """One input of an operator.

    Attributes:
        read: gives the rows that a task would read.
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
    """The input of an operator, for its subtasks to read; so many rows are routed at once."""

    inputs: Sequence[OwnInput]
    empty: pa.Table
    layout: RoutedLayout
    parallelism: int
    max_parallelism: int
    at_once: int

    def of(self, subtask: int) -> pa.Table:
        """The routed rows of one subtask; each column is one chunk.

        What tasks would read side by side is put into order by its first rows. So rows that are in order in what each
        task reads are so here, and need not be sorted.
        """
        order = self.layout.whole_order
        parts = [part for part in self._routed(subtask) if part.num_rows]
        firsts = [part.slice(0, 1).select(order) for part in parts]
        places = order_indices(joined(firsts), order) if len(parts) > 1 else range(len(parts))
        return joined([self.empty, *(parts[place] for place in places)])

    def _routed(self, subtask: int) -> Iterator[pa.Table]:
        for one in self.inputs:
            for gathered_rows in gathered(one.batches(), enough=self.at_once):
                for start in range(0, gathered_rows.num_rows, self.at_once):
                    routed = routed_rows(
                        gathered_rows.slice(start, self.at_once),
                        one.edge,
                        parallelism=self.parallelism,
                        max_parallelism=self.max_parallelism,
                    )
                    yield of_subtask(without_watermarks(routed, self.layout), subtask)
