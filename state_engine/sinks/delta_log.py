"""What a Delta log says of transactions: who wrote to the table, which of two took a version, and with what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from pyarrow.fs import FileType

from state_engine.storage.delta.log_reader import commit_actions
from state_engine.storage.files import Location, join, open_location

_COMMIT = ".json"


@dataclass(frozen=True)
class LogEntry:
    """One commit.

    Attributes:
        added, removed: paths relative to the table.
        note: what the writer noted with it, if anything.
        sizes: of the added files, by path.
    """

    added: set[str]
    removed: set[str]
    note: str
    sizes: Mapping[str, int] = field(default_factory=dict)


def find_transaction(uri: str, app: str, version: int) -> LogEntry | None:
    """The commit with this transaction id, searched from the newest; None where the log does not hold it any more."""
    at = open_location(join(uri, "_delta_log"))
    for name in sorted((name for name in _names(at) if name.endswith(_COMMIT)), reverse=True):
        actions = list(commit_actions(at, name))
        if any(a.get("txn", {}).get("appId") == app and a["txn"]["version"] == version for a in actions):
            return LogEntry(
                added={unquote(a["add"]["path"]) for a in actions if "add" in a},
                removed={unquote(a["remove"]["path"]) for a in actions if "remove" in a},
                note=next(
                    (a["commitInfo"].get("userMetadata", "") for a in actions if "commitInfo" in a), ""
                ),
                sizes={unquote(a["add"]["path"]): int(a["add"]["size"]) for a in actions if "add" in a},
            )
    return None


def writers(uri: str) -> set[str]:
    """Application ids of all transactions in the table: of its newest log checkpoint, and of the commits since."""
    at = open_location(join(uri, "_delta_log"))
    names = _names(at)
    newest = max((_version(name) for name in names if ".checkpoint." in name), default=-1)
    found: set[str] = set()
    for name in names:
        if ".checkpoint." in name and _version(name) == newest:
            found |= _checkpoint_apps(at, name)
        elif name.endswith(_COMMIT) and ".checkpoint." not in name and _version(name) > newest:
            found |= _apps(commit_actions(at, name))
    return found


def _names(at: Location) -> list[str]:
    """Names of the log's files, without those in directories inside."""
    found = at.listing()
    return [i.base_name for i in found if i.type == FileType.File and i.base_name[:20].isdigit()]


def _version(name: str) -> int:
    return int(name[:20])


def _checkpoint_apps(at: Location, name: str) -> set[str]:
    if name.endswith(_COMMIT):
        return _apps(commit_actions(at, name))
    return _apps(at.inside(name).parquet().read(columns=["txn.appId"]).to_pylist())


def _apps(actions: Iterable[dict[str, Any]]) -> set[str]:
    return {a["txn"]["appId"] for a in actions if a.get("txn")}
