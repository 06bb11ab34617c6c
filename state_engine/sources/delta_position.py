"""``Position`` of a ``DeltaSource``, and the files that lie between two recorded ones: what a replay reads again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from state_engine.core.counted_nouns import counted
from state_engine.core.errors import SourceError
from state_engine.core.json_text import has_form
from state_engine.sources.base import Element
from state_engine.sources.delta_table import SourceTable, TableFile

SCHEMA = "#schema"
"""Ends the name of the element that holds a schema of the table."""
CHANGES = "#changes"
"""Ends the name of the element that holds a position among changes: files of a commit are then others."""


_FORM = {"table": str, "version": int, "files": (int, None), "snapshot?": bool}
_SCHEMA_FORM = {"version": int, "schema": (str, None)}


@dataclass(frozen=True)
class Position:
    """How far a table was read.

    Attributes:
        files: how many files of it were read; None: all.
        snapshot: whether it was read whole, not as what its commit added.
    """

    table: str
    version: int
    files: int | None
    snapshot: bool = False


@dataclass(frozen=True)
class Stop:
    """A place where a slice may end.

    Attributes:
        file: what was taken last; None for a version without rows.
        new_schema: whether its version changed the schema: no slice reaches over that.
    """

    file: TableFile | None
    position: Position
    new_schema: bool = False


def is_position(element: Element) -> bool:
    """Whether an element is a position in a table, or a schema of it."""
    schema = element["split"].endswith(SCHEMA)
    return has_form(element["position"], _SCHEMA_FORM if schema else _FORM)


def positions_in(elements: Sequence[Element]) -> list[Position]:
    """Positions that checkpoints recorded, oldest first."""
    return [Position(**e["position"]) for e in elements if not e["split"].endswith(SCHEMA)]


def location_in(elements: Sequence[Element]) -> str:
    """Where the table was when positions were recorded last.

    Example:
        >>> location_in([{"split": "file:///lake/t#changes", "position": {}}])
        'file:///lake/t'
    """
    return str(elements[-1]["split"]).removesuffix(SCHEMA).removesuffix(CHANGES)


def goes_on(before: Sequence[Element], *, changes: bool, path: str) -> bool:
    """Whether a source goes on with what it did before; else it begins, with changes or with what is added."""
    if not before:
        return False
    if before[-1]["split"].endswith(CHANGES) == changes:
        return True
    at = Position(**before[-1]["position"])
    if at.files is not None:
        raise SourceError(
            f"{path}: version {at.version} was begun with changes={not changes}, and its rest cannot be read "
            "otherwise: let one run with that setting reach the end of the version, then change it"
        )
    return False


def check_recorded_alike(recorded: Sequence[Element], *, changes: bool, path: str) -> None:
    """Refuse to read again what was read as changes, and is not now, or the other way round. Raises SourceError."""
    own = [e["split"].endswith(CHANGES) for e in recorded if not e["split"].endswith(SCHEMA)]
    if any(one != changes for one in own):
        raise SourceError(
            f"{path} was read with changes={not changes}, so it cannot be read again with changes={changes}: replay "
            "with the setting that it had"
        )


def begin_of(before: Sequence[Element], end: Position, first: Position | None) -> Position:
    """Where the recorded slice that ends at ``end`` began.

    Args:
        first: where a source begins that does not begin with a snapshot.
    """
    known = positions_in(before)
    start = known[-1] if known else first
    if end.snapshot and not (known and _same_snapshot(known[-1], end)):
        return Position(end.table, end.version, 0, snapshot=True)
    if start is None:
        raise SourceError(
            "the recorded run did not begin with a snapshot: give the source the starting_version that it had"
        )
    return start


def stops(log: SourceTable, start: Position, end: Position) -> Iterator[Stop]:
    """All files that were read between two positions of one table, in order.

    Commits that take rows away were passed over, or the recorded run would not have gone on.
    """
    if end.table != log.table_id:
        raise SourceError(
            f"{log.uri} was dropped and created again since version {end.version} was read, so that cannot be read "
            "again"
        )
    at = start
    if not (at.version <= end.version <= log.version):
        raise SourceError(
            f"{log.uri} has the versions up to {log.version}, and {at.version} to {end.version} are to be read again: "
            "an older table was put back, or the recorded position is of another one. Put back the table, or replay "
            "from a later checkpoint"
        )
    if at.snapshot and at.files is not None:
        yield from _of_version(log, log.snapshot_files(at.version), at, end)
    elif at.files is not None:
        yield from _of_version(log, log.commit(at.version).files, at, end)
    for version in range(at.version + 1, end.version + 1):
        commit = log.commit(version)
        began = Position(end.table, version, 0)
        files = [] if commit.removes else commit.files
        yield from _of_version(log, files, began, end, new_schema=commit.schema is not None)


def bounded(
    stops: Iterable[Stop], end: Position, *, max_files: int, max_rows: int | None
) -> tuple[list[TableFile], Position]:
    """The files of one slice, at least one where there are any, and the position after it.

    Args:
        stops: where the slice may end, in order.
    """
    files: list[TableFile] = []
    position, rows = end, 0
    for stop in stops:
        count = stop.file.row_count() if stop.file is not None and max_rows is not None else 0
        full = stop.file is not None and (
            len(files) >= max_files
            or (max_rows is not None and rows + count > max_rows)
            or stop.file.repeats(files)
        )
        if files and (full or stop.new_schema):
            return files, position
        if stop.file is not None:
            files.append(stop.file)
        position, rows = stop.position, rows + count
    return files, end


def schemas_up_to(elements: Sequence[Element], version: int) -> list[Element]:
    return [e for e in elements if e["split"].endswith(SCHEMA) and e["position"]["version"] <= version]


def check_read_once(positions: Sequence[Position], *, path: str) -> None:
    """Refuse positions of a table that was read again on the way: only the recorded cuts say where."""
    for snapshot in {p for p in positions if p.snapshot}:
        if any(p.version <= snapshot.version and not _same_snapshot(p, snapshot) for p in positions):
            raise SourceError(
                f"{path} was read again, from the snapshot of version {snapshot.version}, which has its place among "
                "the recorded cuts only: replay with these (rebatch=False)"
            )


def check_number(at: Position, files: Sequence[TableFile], shown: str) -> None:
    """Raises SourceError where a position is behind the last file of its version."""
    if at.files and at.files >= len(files):
        raise SourceError(
            f"{counted(at.files, 'file')} of version {at.version} of {shown} were read, and it has {len(files)}: the "
            "recorded position is not one of this table. Restore a checkpoint from before it"
        )


def _of_version(
    log: SourceTable, files: Sequence[TableFile], at: Position, end: Position, *, new_schema: bool = False
) -> Iterator[Stop]:
    start = at.files or 0
    is_last = (at.version, at.snapshot) == (end.version, end.snapshot)
    for one in (at, end) if is_last else (at,):
        check_number(one, files, log.uri)
    stop = end.files if is_last and end.files is not None else len(files)
    if start >= len(files):
        yield Stop(None, Position(at.table, at.version, None, at.snapshot), new_schema)
    for index in range(start, stop):
        after = index + 1 if index + 1 < len(files) else None
        yield Stop(
            files[index],
            Position(at.table, at.version, after, at.snapshot),
            new_schema=new_schema and index == start,
        )


def _same_snapshot(a: Position, b: Position) -> bool:
    return a.snapshot and (a.table, a.version) == (b.table, b.version)
