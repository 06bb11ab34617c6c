"""Where rows are read, routed and run: one decision (``placement_of``) from one object with all limits (``Limits``).

A scheduled micro-batch is mostly small, and then planning a query takes Spark longer than the work. So the driver reads
and routes a few rows itself, and a few subtasks read files on a disk themselves. Whoever does it, the results are the
same. The page on performance devices has the figures; decision 0040 has the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from sys import maxsize
from typing import Any


@dataclass(frozen=True)
class Limits:
    """Sizes up to which each way is the fastest. A session carries them, see ``limits_of``.

    Attributes:
        stored_bytes: of files that the driver reads.
        rows: that the driver reads, or hands over between operators: columns that repeat take little space in files.
        held_bytes: of rows in the driver's memory: what it sends to tasks goes through one socket.
        readers: of so many subtasks each may read all rows.
        routed_at_once: rows that a reader routes at a time: their columns stay in the cache of a core.
        task_bytes, least_task_bytes: what one task reads at most, and what is worth a task; as for Spark's scans.
        read_at_once: rows that a task has in memory at a time of what it reads.
        chunk_bytes: of text that are decoded at a time.
        batch_files, batch_bytes: that a micro-batch reads of files, where nothing else bounds it: Spark plans many
            small files in seconds, and many bytes are enough.
        cut_files: where rows bound it: the footer of each file that a bound may cut is read.
        in_process: whether this process does the work of tasks that get few rows, or none.
    """

    stored_bytes: int = 2**18
    rows: int = 20_000
    held_bytes: int = 2**23
    readers: int = 4
    routed_at_once: int = 2**16
    task_bytes: int = 2**27
    least_task_bytes: int = 2**22
    read_at_once: int = 2**18
    chunk_bytes: int = 2**22
    batch_files: int = 10_000
    batch_bytes: int = 2**32
    cut_files: int = 1000
    in_process: bool = False

    def bytes_of_a_task(self, total: int, cores: int) -> int:
        """What each task reads of so many bytes."""
        return min(self.task_bytes, max(self.least_task_bytes, -(-total // cores)))


USUAL = Limits()
NO_LIMITS = Limits(stored_bytes=maxsize, rows=maxsize, held_bytes=maxsize, in_process=True)
"""Where there is no Spark: the driver does everything."""


class Placement(Enum):
    """Who works on the rows of one step."""

    DRIVER = auto()
    """The driver has the rows, and works on them or sends each task its part, without a query."""
    READERS = auto()
    """Each task reads all rows and keeps its own, without a query."""
    SHUFFLE = auto()
    """Tasks read the rows once, and Spark shuffles them."""


def placement_of(
    limits: Limits,
    *,
    held: bool = True,
    stored_bytes: int = 0,
    rows: int = 0,
    held_bytes: int = 0,
    readable: bool = False,
    subtasks: int = 1,
) -> Placement:
    """Where a step works on its rows.

    Args:
        held: whether the driver has the rows, or can read them.
        stored_bytes, rows, held_bytes: how much there is, as far as that is known.
        readable: whether every task can read all rows, at the cost of reading them.
        subtasks: how many tasks there would be.

    Example:
        >>> placement_of(Limits(), rows=20_000)
        <Placement.DRIVER: 1>
        >>> placement_of(Limits(), rows=20_001, readable=True, subtasks=4)
        <Placement.READERS: 2>
        >>> placement_of(Limits(readers=3), held=False, readable=True, subtasks=4)
        <Placement.SHUFFLE: 3>
    """
    few = stored_bytes <= limits.stored_bytes and rows <= limits.rows and held_bytes <= limits.held_bytes
    if held and few:
        return Placement.DRIVER
    return Placement.READERS if readable and subtasks <= limits.readers else Placement.SHUFFLE


def limits_of(session: Any) -> Limits:
    """The limits that a session carries; the usual ones where it carries none."""
    limits: Limits = getattr(session, "limits", USUAL)
    return limits
