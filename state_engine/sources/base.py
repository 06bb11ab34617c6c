"""What every source does: plan the next slice from its position, read it, and confirm it before the commit.

A source's position is operator state: elements (split, position) that each batch appends and that are folded along
the path of checkpoints. A source object holds configuration only. Mirrors Flink's ``Source`` with its
``SplitEnumerator``, for slices in place of streams.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.core.incremental_fold import IncrementalFold
from state_engine.core.types.type_information import TypeLike
from state_engine.sources.rows import Given

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_COLUMN = "_statelake_file"
"""Hidden column (int): place of the row's file in the slice."""
ROW_COLUMN = "_statelake_row"
"""Hidden column (bigint): place of the row in its file."""

PLACES = pa.schema([(FILE_COLUMN, pa.int32()), (ROW_COLUMN, pa.int64())])
"""The hidden columns of a slice."""
REFUSED_ROWS = pa.schema([("record", pa.binary()), *PLACES, ("reason", pa.string()), ("shown", pa.string())])
"""Rows that cannot be read: all that it takes to read one again, its place, why, and the row for people where that is
not the record itself."""

Element = dict[str, Any]
"""One element of a position: JSON-able, with the keys ``split`` and ``position``. Nobody changes one that he got."""


@dataclass(frozen=True)
class BadFile:
    """A file that cannot be read, and why."""

    uri: str
    error: str


@dataclass(frozen=True)
class Slice:
    """The input of one micro-batch from one source.

    Attributes:
        elements: what is appended to the source's position when the batch commits.
        position_from, position_to: summaries as JSON; a slice starts where its parent ended.
        labels: names of the files by place, for messages.
        detail: what ``read`` needs; only the source looks inside.
        endless: whether there will always be more: then a run takes one slice, unless the caller says how many.
        more: whether rows are left behind it, which a bound of the source leaves to a later slice, or may be; of one
            that is ``endless`` they always are.
        bad_files: files of it that cannot be read and become dead letters; their rows are none of the slice's.
    """

    elements: list[Element]
    position_from: str
    position_to: str
    labels: list[str]
    detail: Any = None
    endless: bool = False
    bad_files: tuple[BadFile, ...] = ()
    more: bool = False

    @property
    def without_rows(self) -> bool:
        """Whether it has nothing but bad files."""
        return bool(self.bad_files) and not self.labels


@dataclass(frozen=True)
class SourceFrame:
    """The rows of a slice.

    Attributes:
        rows: the rows, with the hidden columns FILE_COLUMN and ROW_COLUMN, wherever they are read.
        refused: the rows that cannot be read, with the columns REFUSED_ROWS; None where there can be none.
    """

    rows: Given
    refused: DataFrame | pa.Table | None = field(default=None)


class Source(ABC):
    """Base of all sources."""

    @property
    def changing(self) -> bool:
        """Whether its rows are inserts, updates and deletes; then its frames have the column ``ROW_KIND``.

        The rows of any other source are inserts. A row of kind ``UPDATE_BEFORE`` comes before that of kind
        ``UPDATE_AFTER`` which replaces it, not always directly: a change feed gives all that a commit takes away before
        what it puts in place. Mirrors ``ScanTableSource.getChangelogMode`` of Flink.
        """
        return False

    @property
    def schema_in_code(self) -> TypeLike | None:
        """Columns of its rows, where its configuration gives them."""
        return None

    @property
    def inner(self) -> Source:
        """What reads the input, without what was put around it."""
        return self

    def for_run(self) -> Source:
        """The source that plans the micro-batches of one run; other runs do not see its memory."""
        return self

    @abstractmethod
    def plan(self, spark: SparkSession, elements: Sequence[Element]) -> Slice | None:
        """The next slice after a position; None where there is nothing new."""

    @abstractmethod
    def read(self, spark: SparkSession, part: Slice, *, keep_refused: bool) -> SourceFrame:
        """The rows of a slice; rows that cannot be parsed fail the batch unless ``keep_refused``."""

    def parse(self, spark: SparkSession, records: Sequence[bytes], *, keep_refused: bool) -> SourceFrame:
        """The rows of records that could not be parsed before, each as a file of its own with one row.

        Raises:
            SourceError: such a source has no records of text.
        """
        raise SourceError(f"a {type(self).__name__} has no records of text that could be parsed again")

    def set_aside(self, part: Slice, bad: BadFile) -> Slice | None:
        """The slice without a file that cannot be read; None where that is an error, or no file of the slice."""
        return None

    def confirm(self, part: Slice) -> None:  # noqa: B027 - most sources have nothing to confirm
        """Called before the commit: raise SourceError where the input changed since ``plan``."""

    def replan(self, spark: SparkSession, before: Sequence[Element], appended: Sequence[Element]) -> Slice:
        """The very slice that a checkpoint consumed, to be read again by a replay.

        Args:
            before: the position that the checkpoint began at.
            appended: what it appended; the slice appends the same.

        Raises:
            SourceError: the input is not there unchanged, or such a source cannot be read again.
        """
        raise SourceError(
            f"a {type(self).__name__} cannot be replayed: its rows cannot be read from a position again. Let a "
            "job of its own write its rows to a table or to files, read these with a DeltaSource or a FileSource, and "
            "replay jobs that do"
        )

    def rebatch(
        self, spark: SparkSession, before: Sequence[Element], recorded: Sequence[Element]
    ) -> Slice | None:
        """The next slice, cut by this source's own bounds, of what several checkpoints consumed.

        Args:
            before: the position so far; a replay's begins where the first of the checkpoints did.
            recorded: what the checkpoints appended, oldest first.

        Returns:
            None where the position has reached the end of what was recorded.

        Raises:
            SourceError: as for ``replan``.
        """
        return self.replan(spark, before, recorded)

    def consumed(self, spark: SparkSession, given: Any) -> list[Element]:
        """The position after what a job's first state holds already, from what a user says of it.

        Args:
            given: in the source's own terms, see its class; most take ``"all"`` for all that is there now.

        Raises:
            ConfigurationError: it says nothing to this source, or such a source has no position that could be given.
        """
        raise ConfigurationError(
            f"the position of a {type(self).__name__} cannot be given: leave it out of positions to read it from its "
            "beginning, or let the job read a FileSource or a DeltaSource"
        )

    def is_element(self, element: Element) -> bool:
        """Whether a recorded element fits the position of this source: a savepoint may come from anywhere."""
        return True

    def waiting(self, elements: Sequence[Element]) -> list[str]:
        """What is there after a position and waits for a later batch, each with the reason."""
        return []

    def position_text(self, elements: Sequence[Element]) -> str:
        """The summary of a position."""
        return summary(elements)

    def empty_position(self) -> str:
        """The summary of the position before anything was read."""
        return self.position_text([])


def summary(elements: Sequence[Element], **facts: Any) -> str:
    """A position as short JSON: facts to read, and a digest that a gap or a repeat would change."""
    digest = _DIGEST.of(elements).hexdigest()[:16]
    return json.dumps({**facts, "elements": len(elements), "digest": digest})


def _with_elements(digest: hashlib._Hash, elements: Sequence[Element]) -> hashlib._Hash:
    longer = digest.copy()
    for element in elements:
        longer.update(json.dumps(element, sort_keys=True).encode())
    return longer


_DIGEST: IncrementalFold[Element, hashlib._Hash] = IncrementalFold(_with_elements, hashlib.sha256())


@contextmanager
def naming_source(job: str, source: str, doing: str = "") -> Iterator[None]:
    """Put job and source in front of the error of a source that does not name them.

    Example:
        >>> try:
        ...     with naming_source("sums", "rows", "replay of checkpoint 3"):
        ...         raise SourceError("a.csv vanished")
        ... except SourceError as error:
        ...     print(error.args[0])
        job 'sums', source 'rows', replay of checkpoint 3: a.csv vanished
    """
    try:
        yield
    except SourceError as error:
        text = str(error).removeprefix(f"source '{source}': ")
        if not text.startswith("job '"):
            where = f"job '{job}', source '{source}'" + (f", {doing}" if doing else "")
            error.args = (f"{where}: {text}",)
        raise
