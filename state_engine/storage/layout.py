"""Where the tables of a job lie under a root, their schemas, and the names of the files in them.

    <root>/_statelake.json                   id and format of the root
    <root>/<job>/checkpoints                 one row a completed checkpoint: the commit point
    <root>/<job>/operators/<uid>/changelog   one row a change of an entry of keyed state
    <root>/<job>/operators/<uid>/base        one row an entry of keyed state as of a compaction
    <root>/<job>/operator_state              one row an element of operator state, source positions included
    <root>/<job>/dead_letters                one row an input row that was refused
    <root>/<job>/views/<view>                tables that list the files of a registered view, one a registration
    <root>/<job>/exchange                    outputs on their way to a chained operator; no table, emptied after use

A file's name holds the ``write_id`` of the attempt that wrote it and something that no other attempt of the same task
has, so nothing is ever overwritten and an orphan shows whose it is. Uids in paths are spelled by ``names.stored_name``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import ROW_TYPE
from state_engine.core.checkpoints.format_versions import FORMAT_VERSION as FORMAT_VERSION
from state_engine.core.checkpoints.row_outputs import DEAD_LETTERS
from state_engine.core.checkpoints.table_names import OPERATOR_STATE, base_table, changelog_table
from state_engine.storage.stores.files import join

TABLE_PROPERTIES = {
    # our own tables must stay readable by every Delta reader and must never lose a transaction id
    "delta.enableDeletionVectors": "false",
    # history is in the rows of ``checkpoints``; each file of a local log costs every micro-batch 20 µs a table
    "delta.logRetentionDuration": "interval 1 days",
}

STATE_TABLE_PROPERTIES = TABLE_PROPERTIES | {
    # a commit needs the newest checksum of their logs; nobody who opens a job reads the list of their files
    "delta.checkpointInterval": "30",
}
"""Of tables of state: all of a job's own but that of checkpoints."""

ROOT_PROPERTY = "statelake.root"
"""Of tables of checkpoints: the id of the root that they are of."""

CHECKPOINTS_SCHEMA = pa.schema(list(ROW_TYPE.storage))
OPERATOR_STATE_SCHEMA = pa.schema(
    [
        ("operator", pa.string()),
        ("state", pa.string()),
        ("scheme", pa.string()),
        ("subtask", pa.int64()),
        ("position", pa.int64()),
        ("value", pa.string()),
        ("bytes", pa.binary()),
    ]
)
DEAD_LETTERS_SCHEMA = pa.schema(
    [
        ("operator", pa.string()),
        ("subtask", pa.int64()),
        ("key", pa.string()),
        ("position", pa.string()),
        ("error", pa.string()),
        ("traceback", pa.string()),
        ("row", pa.string()),
        ("source", pa.string()),
        ("input", pa.int64()),
        ("event_ms", pa.int64()),
        ("schema", pa.binary()),
        ("data", pa.binary()),
        ("sink", pa.string()),
    ]
)
"""``row`` is for people; the last six are for sending it again: the source that it came straight from, the place of
the operator's input that it was for (null where no operator saw it), its event time, the row itself as an Arrow record
batch with its schema, or as the bytes of a record where the schema is null, and the sink that refused it."""
WRITE_ID = pa.field("write_id", pa.string())


@dataclass(frozen=True)
class JobLayout:
    """URIs of one job's tables."""

    root: str
    job: str

    @property
    def directory(self) -> str:
        return join(self.root, self.job)

    @property
    def checkpoints(self) -> str:
        return self.table("checkpoints")

    @property
    def operator_state(self) -> str:
        return self.table(OPERATOR_STATE)

    @property
    def dead_letters(self) -> str:
        """Refused input rows."""
        return self.table(DEAD_LETTERS)

    @property
    def exchange(self) -> str:
        """Files between chained operators."""
        return join(self.directory, "exchange")

    def view_files(self, view: str) -> str:
        """Tables that list the files of a view in a catalog, one a registration."""
        return join(self.directory, "views", view)

    def changelog(self, uid: str) -> str:
        """Changes of one operator's keyed state."""
        return self.table(changelog_table(uid))

    def base(self, uid: str) -> str:
        """Entries of one operator's keyed state as of compactions."""
        return self.table(base_table(uid))

    def table(self, name: str) -> str:
        return join(self.directory, name)


def changelog_schema(key_type: pa.DataType, states: Mapping[str, pa.DataType]) -> pa.Schema:
    """Columns of a changelog file: one natively typed column a state."""
    return pa.schema(
        [
            ("key_group", pa.int64()),
            ("key_hash", pa.int64()),
            ("key", key_type),
            ("state", pa.string()),
            ("op", pa.string()),
            ("updated_at", pa.timestamp("us", "UTC")),
            *((state_column(name), kind) for name, kind in states.items()),
        ]
    )


def state_column(name: str) -> str:
    return f"v_{name}"


def file_name(write_id: str, subtask: int, attempt: int, *, suffix: str = "parquet", owner: str = "") -> str:
    """A name that no other attempt uses.

    Args:
        owner: mark of the sink that the file is for; none in the job's own tables.
    """
    mark = f"-{owner}" if owner else ""
    return f"part-{subtask:05d}-{write_id}{mark}-{attempt}.{suffix}"


def partition_path(write_id: str, name: str) -> str:
    """Path of a file in a table that is partitioned by ``write_id``."""
    return f"write_id={write_id}/{name}"
