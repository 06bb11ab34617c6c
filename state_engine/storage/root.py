"""The state root: a directory with an id, under which every job keeps its tables.

The id is random and made with the root, so that two roots that write to one sink stay apart: transactions of all
jobs in all sinks stand under it. So it must never change. The marker that holds it bears a digest of itself, the tables
of checkpoints name the id as well, and a root that holds jobs and has no readable marker is refused: with a new id, its
jobs would publish everything again. ``statelake doctor --repair`` (``root_repair``) writes a new marker.

Storage that cannot keep a Delta log safe is refused: network file systems (``file_systems``), and stores whose log
store is not known to keep two runners apart (``delta/log_stores``, ``delta/store_checks``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b
from uuid import uuid4

import pyarrow.fs as pafs

from state_engine.core.checkpoints.format_versions import FORMAT_VERSION, newer, older
from state_engine.core.errors import RootError
from state_engine.core.json_text import parsed_json
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores.files import is_local, join, open_location
from state_engine.storage.stores.locks import table_lock

MARKER = "_statelake.json"
_DIGEST_FORMAT = 6
"""From this format on, markers bear a digest of themselves."""

REPAIR_HINT = (
    "statelake doctor --repair finds the id in the tables of its jobs and writes a new marker; with --dry-run it "
    "only shows what it would do"
)
_DIGEST = "digest"


def open_root(uri: str, *, create: bool, write_new: Callable[[str, str], bool] | None = None) -> str | None:
    """The id of a root; made if asked for, else None where there is no root.

    Args:
        write_new: writes a file unless there is one, and says whether it did; not needed on a local disk, which has
            a lock. Of two runners that make a root both get the id of one.
    """
    marker = _marker_of_a_root(uri)
    if marker is None and create:
        with table_lock(uri):
            marker = _marker_of_a_root(uri) or new_marker(uri, write_new)
    if marker is None:
        return None
    if int(marker["format"]) > FORMAT_VERSION:
        raise newer(uri, int(marker["format"]))
    if int(marker["format"]) < FORMAT_VERSION:
        raise older(uri, int(marker["format"]))
    return str(marker["root_id"])


def jobs_in(uri: str) -> list[str]:
    """Names of the jobs of a root: directories with a table of checkpoints."""
    at = open_location(uri)
    entries = at.listing(missing_ok=True)
    names = sorted(one.base_name for one in entries if one.type == pafs.FileType.Directory)
    logs = (open_location(join(JobLayout(uri, name).checkpoints, "_delta_log")) for name in names)
    return [n for n, log in zip(names, logs, strict=True) if log.is_directory()]


def read_marker(uri: str) -> dict[str, str] | None:
    """What a root says of itself: its id and its format; None where there is no marker."""
    at = open_location(join(uri, MARKER))
    if not at.is_file():
        return None
    try:
        marker: dict[str, str] = parsed_json(at.read())
    except ValueError as error:
        raise RootError(f"{uri}/{MARKER} is damaged ({error}): {REPAIR_HINT}") from None
    if not isinstance(marker, dict) or not {"root_id", "format"} <= set(marker):
        way_out = REPAIR_HINT if jobs_in(uri) else "use another directory as root"
        raise RootError(f"{uri}/{MARKER} was not written by this engine: {way_out}")
    if not _is_whole(marker):
        raise RootError(
            f"{uri}/{MARKER} was altered: its digest is not that of its content. Nothing was run, for under another "
            f"id all outputs would be published again. {REPAIR_HINT}"
        )
    return marker


def write_marker(uri: str, content: dict[str, str]) -> None:
    """Write what a root says of itself, with a digest, whole or not at all."""
    # synced, else a power cut could leave a root whose tables are there, and its id is not
    open_location(join(uri, MARKER)).write_whole(_text(content).encode())


def new_marker(uri: str, write_new: Callable[[str, str], bool] | None = None) -> dict[str, str]:
    """Give a root a new id, unless it just got one; only where no job of it has committed anything.

    Args:
        uri: of the root; the caller holds its lock, where it is on a local disk.
    """
    made = {"root_id": uuid4().hex, "format": str(FORMAT_VERSION)}
    if is_local(uri) or write_new is None:
        write_marker(uri, made)
        return made
    open_location(uri).make_directory()
    if not write_new(join(uri, MARKER), _text(made)):
        other = read_marker(uri)
        assert other is not None, "it was there a moment ago"
        return other
    return made


def _marker_of_a_root(uri: str) -> dict[str, str] | None:
    """The marker; None where there is no root yet."""
    marker = read_marker(uri)
    if marker is None and (jobs := jobs_in(uri)):
        raise RootError(
            f"{uri} holds the jobs {jobs}, and its marker {MARKER} is gone. Nothing was run, for under a new id all "
            f"their outputs would be published again. Put the marker back from a backup; or: {REPAIR_HINT}"
        )
    return marker


def _text(content: dict[str, str]) -> str:
    facts = {key: value for key, value in content.items() if key != _DIGEST}
    return json.dumps(facts | {_DIGEST: _digest(facts)})


def _is_whole(marker: dict[str, str]) -> bool:
    facts = {key: value for key, value in marker.items() if key != _DIGEST}
    if _DIGEST in marker:
        return marker[_DIGEST] == _digest(facts)
    number = str(marker["format"])
    return number.isdigit() and not _DIGEST_FORMAT <= int(number) <= FORMAT_VERSION


def _digest(facts: dict[str, str]) -> str:
    return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()
