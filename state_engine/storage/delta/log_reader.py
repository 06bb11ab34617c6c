"""Reads the log of a Delta table as the files that it is: no Spark, no Java, in milliseconds.

For those who only look: monitoring, sensors, checks. Guarantees what Delta's own readers do of the actions that it
knows (``add``, ``remove``, ``txn``, ``metaData``), from the newest log checkpoint on; whoever commits uses
``DeltaKernel``. Log checkpoints of the classic kind are read, whole or in parts; a table of ours has no other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from state_engine.core.errors import DamagedFileError, RootError
from state_engine.storage.delta.log_names import COMMIT, newest_checkpoint
from state_engine.storage.files import Location, join, open_location
from state_engine.storage.parquet_reading import read_parquet

_COLUMNS = ("add", "txn", "metaData")


@dataclass(frozen=True)
class TableLog:
    """The newest version of a table.

    Attributes:
        version: its number.
        files: paths, relative to the table, of the files in it.
        transactions: the highest version that each application committed.
        table_id: of the table.
        properties: of the table.
    """

    version: int
    files: frozenset[str]
    transactions: Mapping[str, int]
    table_id: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


def read_log(uri: str) -> TableLog | None:
    """The newest version of a table; None where there is no table.

    Raises:
        RootError: commits are missing from the log, or its checkpoints are of a kind that is not known here.
    """
    at = open_location(join(uri, "_delta_log"))
    names = {info.base_name: info for info in at.listing(missing_ok=True)}
    commits = {int(m[1]): name for name in names if (m := COMMIT.fullmatch(name))}
    if commits and not is_whole(at.inside(commits[max(commits)]).read()):  # a power cut: it was not committed
        del commits[max(commits)]
    begin, parts = newest_checkpoint(names)
    newest = max([begin, *commits])
    if newest < 0:
        return None
    missing = [v for v in range(begin + 1, newest + 1) if v not in commits]
    if missing:
        raise RootError(
            f"{uri}: version {missing[0]} is not in the table's log, and no log checkpoint stands for it: restore "
            "the directory _delta_log, or look at the table with Spark"
        )
    tail = (action for v in range(begin + 1, newest + 1) for action in commit_actions(at, commits[v]))
    return _folded(newest, checkpointed_actions(uri, parts, _COLUMNS), tail)


def is_whole(entry: bytes) -> bool:
    """Whether a log entry is neither empty nor cut: every line of it is a JSON object, and there is one.

    Example:
        >>> is_whole(b'{"commitInfo":{}}'), is_whole(b""), is_whole(b'{"commitInfo":{}}\\n{"add":{"pa')
        (True, False, False)
    """
    lines = [line for line in entry.splitlines() if line.strip()]
    try:
        return bool(lines) and all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        return False


def commit_actions(at: Location, name: str) -> Iterator[dict[str, Any]]:
    """The actions of one commit, in order.

    Args:
        at: of the log.
        name: of the commit's file.
    """
    content = at.inside(name).read()
    try:
        actions = [json.loads(line) for line in content.splitlines() if line.strip()]
    except ValueError:
        actions = []
    if not actions:
        raise DamagedFileError(
            f"{join(at.path, name)}, an entry of the log of a table, is empty or cut: nothing of it was used. Run "
            "again; if it stays so, put the file back from a backup, or restore a savepoint into another root"
        )
    yield from actions


def checkpointed_actions(uri: str, parts: Iterable[str], columns: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The actions of some kinds in a log checkpoint.

    Args:
        uri: of the table.
        parts: names of the checkpoint's files.
        columns: kinds of actions, such as ``add``.
    """
    for part in parts:
        table = read_parquet(join(uri, "_delta_log", part))
        for column in columns:
            if column in table.column_names:
                yield from ({column: found} for found in table[column].drop_null().to_pylist())


def _folded(version: int, before: Iterable[dict[str, Any]], after: Iterable[dict[str, Any]]) -> TableLog:
    files: set[str] = set()
    transactions: dict[str, int] = {}
    metadata: dict[str, Any] = {}
    for actions in (before, after):
        for action in actions:
            if found := action.get("add"):
                files.add(unquote(found["path"]))
            elif found := action.get("remove"):
                files.discard(unquote(found["path"]))
            elif found := action.get("txn"):
                transactions[found["appId"]] = int(found["version"])
            elif found := action.get("metaData"):
                metadata = found
    properties = dict(metadata.get("configuration") or {})  # of Parquet, a map is a list of pairs
    return TableLog(version, frozenset(files), transactions, str(metadata.get("id", "")), properties)
