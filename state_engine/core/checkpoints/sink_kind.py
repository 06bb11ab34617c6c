"""``SinkKind``: how outputs wait and become visible in a sink, as far as checkpoints must know it.

    kind            outputs wait                     publishing                        what it has seen stands in
    delta           in the table's directory         lists the files                   the table's log
    delta_spark     in the table's directory         Spark writes a copy               the table's log
    dead_letters    in the directory of the table    lists the files                   the table's log
    files           beside the directory's files     moves the files                   names of directories
    sql             in the job's root                inserts a copy                    a ledger in the database
    foreach_batch   in the job's root                calls a function with a copy      notes in the root
    kafka           in the job's root                sends a copy in transactions      a topic of markers
    delta_state     nowhere: a state is published    applies what changed by key       the table's log
    sql_state       nowhere: a state is published    applies what changed by key       a ledger in the database

Flink has no counterpart: its sinks keep what they did not commit in their own state.
"""

from __future__ import annotations

from enum import StrEnum


class SinkKind(StrEnum):
    """The kind of a sink; a row stores its value.

    Example:
        >>> SinkKind("sql").holds_copy
        True
    """

    DELTA = "delta"
    DELTA_SPARK = "delta_spark"
    DEAD_LETTERS = "dead_letters"
    FILES = "files"
    SQL = "sql"
    FOREACH_BATCH = "foreach_batch"
    KAFKA = "kafka"
    DELTA_STATE = "delta_state"
    SQL_STATE = "sql_state"

    @property
    def shows_state(self) -> bool:
        """Whether it is a table that shows a keyed state, and follows the head by differences."""
        return self in (SinkKind.DELTA_STATE, SinkKind.SQL_STATE)

    @property
    def has_log(self) -> bool:
        """Whether it is a Delta table: each publication is one commit, whose transaction records what it has seen."""
        return self.is_delta_table or self is SinkKind.DEAD_LETTERS

    @property
    def is_delta_table(self) -> bool:
        """Whether it is a Delta table of the user's, which others may write to and read."""
        return self in (SinkKind.DELTA, SinkKind.DELTA_SPARK)

    @property
    def answers_quickly(self) -> bool:
        """Whether it costs little to ask what it has seen, before each micro-batch."""
        return self.has_log or self in (SinkKind.FILES, SinkKind.SQL)

    @property
    def marks_files(self) -> bool:
        """Whether the names of its files bear its mark, because others may write to the same place."""
        return self.is_delta_table or self is SinkKind.FILES

    @property
    def holds_copy(self) -> bool:
        """Whether it holds a copy of what was staged for it, and not the files themselves."""
        return self is SinkKind.DELTA_SPARK or self.is_staged_in_root

    @property
    def is_staged_in_root(self) -> bool:
        """Whether outputs wait in the job's root, and stay there when they are published."""
        return self in (SinkKind.SQL, SinkKind.FOREACH_BATCH, SinkKind.KAFKA)

    @property
    def shows_every_checkpoint(self) -> bool:
        """Whether checkpoints without rows are published to it, too."""
        return self is SinkKind.KAFKA
