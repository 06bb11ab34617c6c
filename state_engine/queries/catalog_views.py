"""What a job remembers in a catalog: published tables by name, and a view for every other keyed state.

A view is the fold of ``fold_sql`` over a table that lists the files of one checkpoint: a Delta table without files of
its own, whose log names bases and changelogs where they lie, each with its place in the fold. So any session with Delta
reads it, without this engine. Nothing is pinned: when the checkpoint has expired and its files are gone, a query of the
view fails and names a missing file. Plays the part of the tables that Flink's ``Catalog`` lists. Decision 0077.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.checkpoints.time_travel import DeclaredState, declared_states, expiry_of
from state_engine.core.errors import ConfigurationError
from state_engine.core.state.descriptors import TIMERS
from state_engine.queries.fold_sql import ORDER, state_sql
from state_engine.queries.state_views import full_names
from state_engine.spark.catalog import create_view, described, kind_of, register_table, table_location
from state_engine.state_tables.delta_files import now_ms
from state_engine.state_tables.states import published_on
from state_engine.storage.delta.action_json import Action
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.layout import TABLE_PROPERTIES, JobLayout, changelog_schema
from state_engine.storage.state.listed_files import check_files
from state_engine.storage.state.located_files import StateFile, state_files
from state_engine.storage.stores.files import join, open_location

OWNER, FILES, CHECKPOINT = "statelake.view", "statelake.files", "statelake.checkpoint_id"
"""Properties of a view: whose it is, the table that lists its files, and the checkpoint."""


@dataclass(frozen=True)
class RegisteredName:
    """A name in a catalog.

    Attributes:
        name: with catalog and schema.
        kind: ``table``, of a published table, which follows the head; or ``view``, of a state as of a checkpoint.
        job: whose it is.
        of: the published table; or operator and state.
        checkpoint_id: of a view; None of a table.
    """

    name: str
    kind: Literal["table", "view"]
    job: str
    of: str
    checkpoint_id: int | None = None


@dataclass(frozen=True)
class RegistrationReport:
    """What a catalog has of the jobs of a root.

    Attributes:
        names: all of them, in order.
    """

    names: tuple[RegisteredName, ...]


@dataclass(frozen=True)
class _Table:
    name: str
    table: str
    location: str

    def is_there(self, kernel: DeltaKernel) -> bool:
        """Whether anything was published yet."""
        return kernel.exists(self.location)

    def check(self, kernel: DeltaKernel) -> str:
        known = described(kernel.spark, self.name)
        if known is None:
            return ""
        if kind_of(known) == "delta" and table_location(kernel.spark, self.name) == self.location:
            return ""
        return f"{self.name} exists, and is not the published table '{self.table}' at {self.location}"

    def named(self, job: str) -> RegisteredName:
        return RegisteredName(self.name, "table", job, self.table)

    def register(self, kernel: DeltaKernel, job: str) -> None:
        register_table(kernel.spark, self.name, self.location)


@dataclass(frozen=True)
class _View:
    name: str
    owner: str
    directory: str
    declared: DeclaredState
    files: Sequence[StateFile]

    def is_there(self, kernel: DeltaKernel) -> bool:
        return True

    def check(self, kernel: DeltaKernel) -> str:
        known = described(kernel.spark, self.name)
        if known is None or known.get(OWNER) == self.owner:
            return ""
        if OWNER in known:
            return f"{self.name} is the view of another state, {known[OWNER]}"
        return f"{self.name} exists, and was not made by a registration ({kind_of(known)})"

    def named(self, job: str) -> RegisteredName:
        of = f"{self.declared.operator.uid}, {self.declared.schema.name}"
        return RegisteredName(self.name, "view", job, of, self.declared.row.checkpoint_id)

    def register(self, kernel: DeltaKernel, job: str) -> None:
        known = described(kernel.spark, self.name) or {}
        former = known.get(FILES) if known.get(OWNER) == self.owner else None
        at = join(self.directory, uuid4().hex)
        list_files(kernel, at, self.declared, self.files)
        row = self.declared.row
        about = f"{self.declared.schema.kind} state as of checkpoint {row.checkpoint_id} of the job {job}"
        text = state_sql(
            self.declared,
            self.files,
            expiry_of(self.declared, include_expired=False),
            source=f"delta.`{at}`",
            metadata=True,
        )
        properties = {OWNER: self.owner, FILES: at, CHECKPOINT: str(row.checkpoint_id)}
        create_view(kernel.spark, self.name, text, properties, comment=about, anew=former is not None)
        self._drop(kernel, former)

    def _drop(self, kernel: DeltaKernel, former: str | None) -> None:
        """Delete the list of files that a view had before; catalogs may say anything, so only where lists are."""
        above, _, name = (former or "").rpartition("/")
        if above == self.directory and name.isalnum():
            kernel.join_hooks()
            kernel.forget(join(above, name))
            with suppress(FileNotFoundError):
                open_location(join(above, name)).delete_directory()


def names_of(
    layout: JobLayout, app: str, path: Sequence[CheckpointRow], *, catalog: str, schema: str
) -> list[_Table | _View]:
    """What a catalog gets of a job: its published Delta tables, and views of all other keyed states, without timers."""
    shown = [one for one in published_on(path) if one.kind == SinkKind.DELTA_STATE]
    given: list[_Table | _View] = [
        _Table(f"{catalog}.{schema}.{one.name}", one.name, one.place) for one in shown
    ]
    states = declared_states(path)
    for declared, name in zip(states, full_names(states), strict=True):
        uid, state = declared.operator.uid, declared.schema.name
        if state == TIMERS or any((one.operator, one.state) == (uid, state) for one in shown):
            continue
        files = state_files(layout, path, uid)
        directory = layout.view_files(name)
        given.append(_View(f"{catalog}.{schema}.{name}", f"{app}/{name}", directory, declared, files))
    return given


def register(
    kernel: DeltaKernel, given: Mapping[str, Sequence[_Table | _View]], *, dry_run: bool = False
) -> RegistrationReport:
    """Give names, or none of them."""
    every = [(job, one) for job, names in given.items() for one in names if one.is_there(kernel)]
    _check_apart(one.name for _, one in every)
    refused = [problem for _, one in every if (problem := one.check(kernel))]
    if refused:
        raise ConfigurationError(
            f"nothing was registered: {'; '.join(refused)}. Drop or rename these, or register in another schema"
        )
    for job, one in every if not dry_run else ():
        one.register(kernel, job)
    return RegistrationReport(tuple(one.named(job) for job, one in every))


def list_files(kernel: DeltaKernel, at: str, declared: DeclaredState, files: Sequence[StateFile]) -> None:
    """Make a table whose log lists files of a state where they are, each with its place in the fold."""
    check_files([f.listed for f in files])
    columns = changelog_schema(declared.key_type, {declared.schema.column_name: declared.column_type})
    schema = columns.append(pa.field(ORDER, pa.int32()))
    kernel.create_table(at, schema, partition_by=[ORDER], properties=TABLE_PROPERTIES)
    empty = kernel.files_of(at)
    assert empty is not None
    kernel.commit_upon(empty, [_listed(file) for file in files])


def _listed(file: StateFile) -> Action:
    size = file.listed.bytes
    return {
        "add": {
            "path": quote(file.listed.uri, safe="/:=@"),
            "partitionValues": {ORDER: str(file.order)},
            "size": open_location(file.listed.uri).info().size if size is None else size,
            "modificationTime": now_ms(),
            "dataChange": True,
            "stats": f'{{"numRecords": {file.listed.rows}}}',
        }
    }


def _check_apart(names: Iterable[str]) -> None:
    """Refuse names that are the same in a catalog, which ignores case."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise ConfigurationError(
                f"nothing was registered: {name} would be the name of two things: register the jobs in "
                "schemas of their own"
            )
        seen.add(name.lower())
