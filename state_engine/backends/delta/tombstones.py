"""Files that left a Delta table a short while ago: readers of an older version may still have them open."""

from __future__ import annotations

from urllib.parse import unquote

from pyarrow.fs import FileSelector

from state_engine.backends.delta.log_reader import commit_actions
from state_engine.backends.files import join, open_location


def removed_since(uri: str, since_ms: int) -> set[str]:
    """Paths, relative to the table, of the files whose removal from the log is younger than a time.

    Removals that log clean-up dropped are weeks old. Only commits that were written since then are read.

    Args:
        uri: of the table; where there is none, nothing was removed.
        since_ms: milliseconds since 1970.
    """
    at = open_location(join(uri, "_delta_log"))
    found: set[str] = set()
    for info in at.fs.get_file_info(FileSelector(at.path, allow_not_found=True)):
        if not info.path.endswith(".json") or info.mtime_ns // 1_000_000 < since_ms:
            continue
        removes = [a["remove"] for a in commit_actions(at, info.base_name) if "remove" in a]
        found |= {unquote(r["path"]) for r in removes if r.get("deletionTimestamp", 0) > since_ms}
    return found
