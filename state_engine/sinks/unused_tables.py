"""A Delta table that a failed first batch left empty: it stands in nobody's way when the job's columns change.

A sink's table is made before the first batch runs, so that subtasks know where to write. Where that batch fails and its
author changes what it puts out, the empty table has columns that nobody ever wrote. Decision 0029.
"""

from __future__ import annotations

from contextlib import suppress

from state_engine.storage.delta.kernel import ENGINE_INFO
from state_engine.storage.delta.locks import table_lock
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.files import join, open_location

_LOG = "_delta_log"
_FIRST = "00000000000000000000"


def drop_unused(uri: str, owner: str) -> bool:
    """Take a table away that the engine made and nobody has used; False, and nothing is done, where it is another.

    Unused means: its log has one entry, which the engine wrote and which lists no file, and all data files that lie in
    its directory are leftovers of the sink itself.

    Args:
        uri: of the table.
        owner: mark of the sink in the names of its files.
    """
    with table_lock(uri):
        log = open_location(join(uri, _LOG))
        names = list(log.files())
        entries = [n for n in names if not n.startswith(".") and n.endswith(".json")]
        if entries != [f"{_FIRST}.json"] or not _made_empty(uri) or _others(uri, owner):
            return False
        log.inside(f"{_FIRST}.json").delete()  # without it, there is no table
        for name in names:
            with suppress(FileNotFoundError):
                log.inside(name).delete()
        return True


def _made_empty(uri: str) -> bool:
    first = DeltaLog(uri).commit(0)
    return ENGINE_INFO in first.maker and not first.added


def _others(uri: str, owner: str) -> bool:
    """Whether files lie there that another sink, or somebody else, has written."""
    paths = [path.split("/") for path in open_location(uri).files()]
    names = [path[-1] for path in paths if _LOG not in path and not path[-1].startswith(".")]
    return any(f"-{owner}-" not in name for name in names)
