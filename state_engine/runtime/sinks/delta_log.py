"""What a Delta log says of one transaction: which of two writers took its version, and with what."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import unquote

from pyarrow.fs import FileSelector

from state_engine.backends.files import join, open_location


@dataclass(frozen=True)
class LogEntry:
    """One commit.

    Attributes:
        added, removed: paths relative to the table.
        note: what the writer noted with it, if anything.
    """

    added: set[str]
    removed: set[str]
    note: str


def find_transaction(uri: str, app: str, version: int) -> LogEntry | None:
    """The commit with this transaction id, searched from the newest; None where the log does not hold it any more."""
    at = open_location(join(uri, "_delta_log"))
    names = sorted(
        (i.path for i in at.fs.get_file_info(FileSelector(at.path)) if i.path.endswith(".json")), reverse=True
    )
    for name in names:
        with at.fs.open_input_stream(name) as stream:
            actions = [json.loads(line) for line in stream.read().decode().splitlines() if line.strip()]
        if any(a.get("txn", {}).get("appId") == app and a["txn"]["version"] == version for a in actions):
            return LogEntry(
                added={unquote(a["add"]["path"]) for a in actions if "add" in a},
                removed={unquote(a["remove"]["path"]) for a in actions if "remove" in a},
                note=next(
                    (a["commitInfo"].get("userMetadata", "") for a in actions if "commitInfo" in a), ""
                ),
            )
    return None
