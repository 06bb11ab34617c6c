"""``disposals``: what a collector does with each file that it finds in a directory: nothing, or one of two steps.

    remove   out of the log of one of the job's own tables, so that nobody begins to read it
    delete   for good, once no log lists it and those who began to read it have had their time

A file goes only if its name holds a ``write_id``, it was written long enough ago by the clock of its storage (whatever
the clock of its writer was), and no checkpoint needs it; in a sink only if its name bears the mark of this job's sink,
too, and the sink's log does not list it. So nothing of an attempt that is at
work, of another job or of a user is ever touched. Flink leaves such files to its users. Decision 0009.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

from state_engine.core.checkpoints.write_ids import owner_in, write_id_in

EXPIRED = "expired checkpoint"
REMOVED = "removed earlier"


class StoredFile(NamedTuple):
    """A file that is there: its size, and when it was written by the clock of its storage, in ms since 1970."""

    bytes: int
    written_ms: int


@dataclass(frozen=True)
class Place:
    """A directory with files of the job, as a listing shows it.

    Attributes:
        table: as in :mod:`.collection`: name of one of the job's own tables, or path of a sink.
        files: that are there, by path relative to the directory.
        removed_lately: paths that left its log so short ago that somebody may still read them.
        owners: marks of the job's sinks that write here; None where nobody but the job does.
        ours: whether files may be taken out of the log.
    """

    table: str
    files: Mapping[str, StoredFile]
    active: Set[str] = frozenset()
    removed_lately: Set[str] = frozenset()
    owners: frozenset[str] | None = None
    ours: bool = False


@dataclass(frozen=True)
class Disposal:
    """What is to be done with one file.

    Attributes:
        table, path: where it is, see :class:`Place`.
        bytes: its size; 0 where it is gone already.
        why: ``expired checkpoint``, ``orphan of attempt <write_id>`` or ``removed earlier``.
        step: ``remove`` or ``delete``; what is removed now is deleted by a later collection.
    """

    table: str
    path: str
    bytes: int
    why: str
    step: Literal["remove", "delete"]


def disposals(
    place: Place, *, listed: Collection[str], needed: Set[str], written_before_ms: int
) -> list[Disposal]:
    """What to do with the files of a place; those that stay are not in it.

    Args:
        needed: paths that must stay, see ``collection.reachable``.
        written_before_ms: nothing that was written later goes; milliseconds since 1970.
    """
    decisions = []
    for path in sorted(set(place.files) | (set(place.active) if place.ours else set())):
        name = path.rsplit("/", 1)[-1]
        write_id, file = write_id_in(name), place.files.get(path)
        if write_id is None or path in needed:
            continue
        if file is not None and file.written_ms >= written_before_ms:
            continue
        if place.owners is not None and owner_in(name) not in place.owners:
            continue
        active = path in place.active
        if (active and not place.ours) or path in place.removed_lately:
            continue
        why = f"orphan of attempt {write_id}"
        if path in listed:
            why = REMOVED if place.ours and not active else EXPIRED
        size = file.bytes if file else 0
        decisions.append(Disposal(place.table, path, size, why, "remove" if active else "delete"))
    return decisions
