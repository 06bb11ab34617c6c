"""Finds the id of a root whose marker is lost or was altered, in the tables of its jobs, and writes a new marker.

Every row of ``checkpoints`` was committed in a transaction of the application ``<root id>/<job>``, and the table names
the root in a property. All jobs must agree; where they do not, a person has to decide. Read from the logs as the files
that they are: neither Spark nor Java is needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from time import strftime

from state_engine.core.checkpoints.format_versions import FORMAT_VERSION
from state_engine.core.errors import RootError, StatelakeError
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.layout import ROOT_PROPERTY, JobLayout
from state_engine.storage.root import MARKER, jobs_in, new_marker, read_marker, write_marker
from state_engine.storage.stores.files import join, open_location
from state_engine.storage.stores.locks import table_lock


@dataclass(frozen=True)
class Damage:
    """Something that is wrong in a root.

    Attributes:
        repair: what the repair will do, or, where there is none, what the user must do.
        apply: does it, and returns what was done; may be called again. None where only the user can.
    """

    name: str
    problem: str
    repair: str
    apply: Callable[[], str] | None = None


_ROOT_ID = re.compile(r"[0-9a-f]{32}")
_NAME = "Marker of the root"


@dataclass(frozen=True)
class RootOfJob:
    """What the table of checkpoints of a job says of its root.

    Attributes:
        ids: the id that its newest row was committed under, first, and then all others; none where it has no row.
        problem: why the table cannot be read; empty where it can.
    """

    ids: tuple[str, ...] = ()
    format: int | None = None
    problem: str = ""


def root_of_job(uri: str, job: str) -> RootOfJob:
    """What the table of checkpoints of a job says of its root."""
    try:
        log = DeltaLog(JobLayout(uri, job).checkpoints).newest()
    except (StatelakeError, OSError, ValueError, KeyError) as error:
        return RootOfJob(problem=f"{type(error).__name__}: {error}")
    if log is None:
        return RootOfJob()
    newest_by_id = {}
    for app, newest in log.transactions.items():
        root_id, _, name = app.partition("/")
        if name == job and _ROOT_ID.fullmatch(root_id):
            newest_by_id[root_id] = newest
    ids = sorted(newest_by_id, key=lambda one: newest_by_id[one], reverse=True)
    named = log.properties.get(ROOT_PROPERTY)
    if not ids and named:
        ids = [named]
    number = log.properties.get("statelake.format", "")
    return RootOfJob(tuple(ids), int(number) if number.isdigit() else None)


def check_transactions(uri: str, job: str, root_id: str) -> None:
    """Refuse a root id under which no row of a job was committed; raises RootError. For tables that name no root."""
    said = root_of_job(uri, job)
    if said.ids and root_id not in said.ids:
        raise RootError(
            f"job '{job}': its checkpoints were committed under the root id {said.ids[0]}, and the marker {uri}/"
            f"{MARKER} says {root_id}: it was altered. Nothing was done. statelake doctor --repair finds the id in the "
            "tables and writes a new marker"
        )


def marker_damages(uri: str) -> list[Damage]:
    """What is wrong with the marker of a root; nothing where it is right, or there is no root. For ``repairs``."""
    marker, problem = _looked_at(uri)
    jobs = jobs_in(uri)
    if marker is None and not problem and not jobs:
        return []
    said = {job: root_of_job(uri, job) for job in jobs}
    if marker is not None and all(marker["root_id"] in one.ids for one in said.values() if one.ids):
        return []
    newest = {job: one.ids[0] for job, one in said.items() if one.ids}
    unread = {job: one.problem for job, one in said.items() if one.problem}
    if not problem and marker is None:
        problem = f"{uri}/{MARKER} is gone, and there are the jobs {jobs}"
    elif not problem and marker is not None:
        problem = f"{uri}/{MARKER} says {marker['root_id']}, and {_ids_by_job(newest)}"
    if len(set(newest.values())) > 1 or (unread and not newest):
        return [Damage(_NAME, problem, _for_a_person(newest, unread))]
    number = min((one.format for one in said.values() if one.format is not None), default=FORMAT_VERSION)
    if not newest:
        what = "no job of the root has committed a checkpoint, so no sink knows its id: give it a new one"
        return [Damage(_NAME, problem, what, lambda: _written(uri, None, FORMAT_VERSION))]
    root_id = next(iter(newest.values()))
    what = f"write a new marker, with the id {root_id} and format {number}, for {_ids_by_job(newest)}"
    return [Damage(_NAME, problem, what, lambda: _written(uri, root_id, number))]


def _looked_at(uri: str) -> tuple[dict[str, str] | None, str]:
    try:
        return read_marker(uri), ""
    except RootError as error:
        return None, str(error).split(". Nothing was run")[0].split(": statelake doctor")[0]


def _ids_by_job(ids: dict[str, str]) -> str:
    jobs = ", ".join(f"{job} under {root_id}" for job, root_id in ids.items())
    return f"checkpoints were committed under an id of the root: {jobs}"


def _for_a_person(newest: dict[str, str], unread: dict[str, str]) -> str:
    if unread and not newest:
        return f"the tables of checkpoints cannot be read ({unread}): put the marker back from a backup of the root"
    return (
        f"nothing can be repaired by itself: {_ids_by_job(newest)}. Either jobs were brought here from other roots: "
        "take them away, and bring them over with savepoints. Or the marker was lost before, and a run made a new id: "
        "restore the root from a backup, for some outputs were published twice"
    )


def _written(uri: str, root_id: str | None, number: int) -> str:
    with table_lock(uri):
        aside = _kept(uri)
        if root_id is None:
            root_id = new_marker(uri)["root_id"]
        else:
            write_marker(uri, {"root_id": root_id, "format": str(number)})
    kept = f"; the one before is {aside}" if aside else ""
    more = "; upgrade the root next: statelake upgrade" if number < FORMAT_VERSION else ""
    return f"{uri}/{MARKER} says {root_id}, format {number}{kept}{more}"


def _kept(uri: str) -> str:
    at = open_location(join(uri, MARKER))
    if not at.is_file():
        return ""
    name = f"{MARKER}.{strftime('%Y%m%dT%H%M%S')}"
    open_location(join(uri, name)).write_whole(at.read())
    return name
