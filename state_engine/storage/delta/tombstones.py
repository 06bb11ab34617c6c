"""Files that left a Delta table a short while ago: readers of an older version may still have them open."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import unquote

from state_engine.storage import store_clock
from state_engine.storage.delta.log_names import COMMIT, newest_checkpoint
from state_engine.storage.delta.log_reader import checkpointed_actions, commit_actions
from state_engine.storage.files import join, open_location


def removed_since(uri: str, since_ms: int) -> set[str]:
    """Paths, relative to the table, of the files whose removal from the log is younger than a time.

    Commits that the storage says were written since then are read; what clock their writers had does not matter. So is
    the newest log checkpoint, which tells of removals whose commits were cleaned up, for as long as
    ``delta.deletedFileRetentionDuration``: a week, if the table says nothing else. Of these only the time that their
    writer gave them is known.

    Args:
        uri: of the table; where there is none, nothing was removed.
        since_ms: milliseconds since 1970.
    """
    at = open_location(join(uri, "_delta_log"))
    infos = at.listing(missing_ok=True)
    _, parts = newest_checkpoint(info.base_name for info in infos)
    removed = (action["remove"] for action in checkpointed_actions(uri, parts, ["remove"]))
    found = {unquote(r["path"]) for r in removed if (r.get("deletionTimestamp") or 0) > since_ms}
    for info in infos:
        if COMMIT.fullmatch(info.base_name) and store_clock.written_ms(info) >= since_ms:
            with suppress(
                FileNotFoundError
            ):  # cleaned up this moment; the log checkpoint has what it removed
                found |= {
                    unquote(a["remove"]["path"]) for a in commit_actions(at, info.base_name) if "remove" in a
                }
    return found
