"""What every sink does: say before the batch where its files go, and publish them after the commit.

Publishing works from the committed row alone (path, identity, schema, files), never from today's code, and may be
repeated: a second time does nothing. A row that moves the head to another path also withdraws what rows on the old
path published. Mirrors the two-phase commit of Flink's ``Sink`` with ``Committer``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pyarrow.fs import FileType

from state_engine.core.checkpoints.checkpoint import DataFile, StagedSink
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import (
    ConfigurationError,
    DamagedOutputError,
    MissingFilesError,
    SinkError,
    SinkIdentityError,
)
from state_engine.sinks.row_rules import RowRule, refused_rows
from state_engine.sinks.staging import Staging
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.layout import file_name
from state_engine.storage.stores.files import join, open_location
from state_engine.storage.stores.in_threads import in_threads
from state_engine.storage.stores.parquet_reading import check_footer

DROP_ROWS = (
    "restore the checkpoint's parent to drop these rows (the first checkpoint has none: give the sink another name, "
    "and these rows are left alone)"
)
"""The way out of rows that a sink can never show, for messages."""

FROM_INPUT = (
    "make it again from the recorded input: `statelake branch create JOB --from 0`, then `statelake branch promote JOB "
    "BRANCH`"
)
"""The way out of a sink that is gone, for messages."""
MAKE_AGAIN = f"where it is gone for good, {FROM_INPUT}"

_LOG = "_delta_log"
WRITE_ID = "_write_id"
"""The optional lineage column of a sink: the attempt that wrote a row."""


@dataclass(frozen=True)
class SinkRequest:
    """What an attempt asks of a sink before it writes.

    Attributes:
        app: application id of its transactions, ``<root id>/<job>/<sink>``.
        schema: columns of the output; the last one is ``ROW_KIND`` where its stream changes.
        known: whether the application published to the sink of this name before.
    """

    kernel: DeltaKernel
    staging: Staging
    name: str
    app: str
    schema: pa.Schema
    write_id: str
    known: bool = False

    def refuse_other_roots(self, writers: Iterable[str], *, where: str) -> None:
        """Refuse a table that the sink of this name and job of another root writes to, too.

        Args:
            writers: application ids of all who wrote to the table.
        """
        _, _, sink = self.app.partition("/")
        others = sorted({app for app in writers if app.partition("/")[2] == sink} - {self.app})
        if others:
            raise SinkIdentityError(
                f"sink '{self.name}': {where} is written to by the same job of another root, '{others[0]}', so "
                "its rows would come twice. Give each root its own table; or, if this root takes over from that "
                "one, or both append to it, set shared=True"
            )


@dataclass(frozen=True)
class SinkTarget:
    """Where subtasks write the files of one sink in one attempt.

    Attributes:
        kind: names the publisher: ``delta``, ``delta_spark`` or ``files``.
        identity: of the table or directory, as it is now.
        schema: columns that the files must have, exactly.
        owner: mark of this sink of this job in the names of its files; others may write to the same table.
        lineage: what the column ``_write_id`` of every row holds; None where the sink has none.
        rules: that each row is held to before it is staged.
        checks: names and SQL texts of rules that only the sink's own engine can judge, see ``Sink.broken_checks``.
        shown: the table or directory, for messages; by default its ``uri``.
    """

    name: str
    kind: str
    uri: str
    identity: str
    schema: pa.Schema
    schema_text: str
    directory: str
    owner: str
    format: Literal["parquet", "csv"] = "parquet"
    lineage: str | None = None
    rules: tuple[RowRule, ...] = ()
    checks: tuple[tuple[str, str], ...] = ()
    shown: str = ""

    def refused(self, rows: pa.Table) -> dict[int, str]:
        """Rows that the sink refuses, in order, and why: for letters and messages."""
        return {row: self.refusal(why) for row, why in refused_rows(self.rules, self.stamped(rows)).items()}

    def refusal(self, why: str) -> str:
        """Why the sink refuses a row, as the error of a letter.

        Args:
            why: the column, its value, and what is wrong with it.
        """
        return f"{SinkError.__name__}: sink '{self.name}', {self.shown or self.uri}: {why}"

    def file_name(self, write_id: str, subtask: int, attempt: int) -> str:
        """A name that no other attempt uses, and no other sink."""
        return file_name(write_id, subtask, attempt, suffix=self.format, owner=self.owner)

    def stamped(self, rows: pa.Table) -> pa.Table:
        if self.lineage is None:
            return rows
        return rows.append_column(WRITE_ID, pa.repeat(pa.scalar(self.lineage, pa.string()), rows.num_rows))

    def staged(self, files: Sequence[DataFile]) -> StagedSink:
        return StagedSink(self.name, self.kind, self.uri, self.identity, self.schema_text, list(files))


class Sink(ABC):
    """Base of all sinks; holds configuration only.

    Attributes:
        kind: names the publisher.
        accepts_changes: whether it knows what to do with updates and deletes. Then the files that are staged for it
            have the column ``ROW_KIND`` behind all others, where its stream changes; building a job refuses any other
            sink there.
    """

    kind: str
    accepts_changes: bool = False

    @abstractmethod
    def place(self, app: str, staging: Staging) -> str:
        """The path under which checkpoints record the sink of an application; looks at nothing but the catalog."""

    def check_columns(self, columns: pa.Schema, *, name: str) -> None:  # noqa: B027 - most kinds take any
        """Refuse columns that no table or directory of this sink could have; looks at none.

        Building a job asks where the stream declares its columns; elsewhere the first run does.

        Args:
            name: of the sink.

        Raises:
            ConfigurationError: says which columns, and the way out.
        """

    def check_target(self, columns: pa.Schema, *, name: str, place: str | None) -> None:  # noqa: B027 - most cannot
        """Refuse the table that is there for these columns, as ``prepare`` does, where that needs no Spark.

        Args:
            place: where the application published to the sink of this name last; None where it never did.

        Raises:
            SinkError: it cannot take them; the message is that of ``prepare``.
            StatelakeError: from here, its table cannot be looked at.
        """

    @abstractmethod
    def prepare(self, request: SinkRequest) -> SinkTarget:
        """Make the sink if there is none, check that it can take these columns, and say where files go.

        Raises:
            SinkError: it cannot take them; the message shows both sides and the way out.
            SinkIdentityError: it is the sink of this name of another root.
        """

    def broken_checks(
        self, kernel: DeltaKernel, target: SinkTarget, files: Sequence[DataFile]
    ) -> dict[str, dict[int, str]]:
        """Rows of staged files that break ``target.checks``: by path, their places, and which check each breaks.

        Only asked where there are any.
        """
        raise NotImplementedError(f"{type(self).__name__} gave checks that nobody judges")


class Publisher(ABC):
    """Publishes staged files of one kind of sink."""

    @abstractmethod
    def seen(self, uri: str, app: str) -> int:
        """The highest checkpoint id that this application published here; 0 where it never did."""

    def publish(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        """Make the staged files visible and take the withdrawn ones out of sight; does nothing where that is done.

        Raises:
            SinkIdentityError: this is not the sink that they were staged for.
            SinkError: it cannot take them, or let go of them, any more.
        """
        if staged.changes_sink:
            self._publish(staged, app, checkpoint_id)

    @abstractmethod
    def _publish(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        """As ``publish``, of what changes the sink."""

    def check_seen(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:  # noqa: B027 - not all sinks can know
        """Refuse where a checkpoint id that the sink has seen stands for other files than these.

        Raises:
            SinkIdentityError: a copy of the root, or a job that was there before, published under this id.
        """

    def check_identity(self, staged: StagedSink) -> None:  # noqa: B027 - the others find out when they publish
        """Refuse, before a row is committed, files that were staged where another application has begun since."""

    def loss(self, staged: StagedSink) -> str:
        """Why the sink is not the one that outputs were staged for, and the ways out; empty where it may be."""
        return ""

    def accept(self, staged: StagedSink, app: str) -> None:
        """Take what is in the place of a sink for that sink.

        Args:
            staged: the last that was published to it.
            app: application id of its transactions.

        Raises:
            SinkError: such sinks are recognised by what they hold.
        """
        raise SinkError(
            f"sink '{staged.name}': only the table of a SqlSink, or one that shows a state, can be accepted as it is"
        )

    def withdraws(self, staged: StagedSink) -> bool:
        """Whether the sink can let go of outputs at all; if not, those off the head's path were kept on purpose."""
        return True

    @abstractmethod
    def check_withdrawable(self, staged: StagedSink) -> None:
        """Refuse, before a row is committed, a change of outputs that could not be published after it.

        Raises:
            SinkIdentityError: this is not the sink that the outputs are in.
            SinkError: it cannot let go of the withdrawn files; names the ways out.
            MissingFilesError: files to be added are gone.
        """


@contextmanager
def naming_damage(sink: str) -> Iterator[None]:
    """Raise what shows that a table is damaged as an error of its sink, with the ways out that work."""
    try:
        yield
    except MissingFilesError as error:
        if _LOG not in str(error):  # staged files: another matter
            raise
        raise MissingFilesError(
            f"sink '{sink}': {error}. Each row is to arrive once, so nothing more is committed until the table can be "
            f"read. Put its log back; or delete the table: {MAKE_AGAIN}; or give the sink another name and another "
            "path, and this one is left alone"
        ) from error


def with_lineage(schema: pa.Schema, *, sink: str) -> pa.Schema:
    """The columns of an output, and the one that names attempts; raises ConfigurationError where that is taken."""
    if WRITE_ID in schema.names:
        raise ConfigurationError(
            f"sink '{sink}': the output has a column {WRITE_ID} already; rename it, or set lineage=False"
        )
    return schema.append(pa.field(WRITE_ID, pa.string()))


def verify_files(directory: str, files: Sequence[DataFile], *, what: str, footers: bool = False) -> None:
    """Check that files exist with their recorded size.

    Args:
        footers: compare also the footers with what was recorded, because the files are read next.
    """
    at = open_location(directory)
    infos = in_threads(lambda f: at.inside(f.path).info(), files)
    for file, info in zip(files, infos, strict=True):
        if info.size != file.bytes:
            actual = "is gone" if info.size is None else f"has {counted(info.size, 'byte')}"
            raise MissingFilesError(
                f"{what}: {join(directory, file.path)} {actual}, "
                f"{counted(file.bytes, 'byte was', 'bytes were')} recorded. Something else "
                "deletes or rewrites files there (VACUUM with a short retention?); stop it, then restore the parent"
            )
    if footers:
        for _ in in_threads(lambda f: _check_footer(directory, f, what), files):
            pass


def _check_footer(directory: str, file: DataFile, what: str) -> None:
    check_footer(join(directory, file.path), size=file.bytes, footer=file.footer, of=what)


def check_shown(staged: StagedSink, sizes: Mapping[str, int], *, checkpoint_id: int) -> None:
    """Refuse where files that a sink shows are not what was published; those that are gone are their owner's matter.

    Args:
        sizes: that were recorded, by path below the sink's directory.
    """
    at = open_location(staged.path)
    for path, size in sizes.items():
        info = at.inside(path).info()
        if info.type == FileType.File and info.size != size:
            raise DamagedOutputError(
                f"sink '{staged.name}', checkpoint {checkpoint_id}: {join(staged.path, path)} has "
                f"{counted(info.size, 'byte')}, "
                f"{size:,} were published: a power cut, or the disk, lost the rest. Nothing was done. Restore the "
                "checkpoint's parent: that withdraws these outputs, and the next run makes them again",
                checkpoint_id=checkpoint_id,
            )


def write_ids(files: Sequence[DataFile]) -> list[str]:
    """The attempts that wrote files, from the names that ``layout.file_name`` gave them.

    Example:
        >>> write_ids([DataFile("x/part-00000-0199aa-0.parquet", bytes=1, rows=1, subtask=0)])
        ['0199aa']
    """
    ids = {f.path.rsplit("/", 1)[-1].split("-")[2] for f in files}
    return sorted(ids)
