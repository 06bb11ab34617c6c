"""``DeltaLog``: the log of a Delta table, read as the files that it is: no Spark, no Java, in milliseconds.

For whoever only looks: monitoring, sensors, checks, sources and sinks. Guarantees what Delta's own readers do of the
actions that it knows (``add``, ``remove``, ``txn``, ``metaData``), from the newest log checkpoint on; whoever commits
uses ``DeltaKernel``. A newest entry that a power cut left empty or cut was not committed. Tables are read from log
checkpoints of the classic kind, whole or in parts; a table of ours has no other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from pyarrow.fs import FileInfo

from state_engine.core.errors import DamagedFileError, RootError
from state_engine.storage.delta.action_json import Action
from state_engine.storage.delta.log_names import COMMIT, commit_name, log_checkpoints, newest_checkpoint
from state_engine.storage.delta.table_facts import TableFacts
from state_engine.storage.stores import store_clock
from state_engine.storage.stores.files import join, open_location
from state_engine.storage.stores.in_threads import in_threads
from state_engine.storage.stores.parquet_reading import read_parquet

_OF_A_TABLE = ("add", "txn", "metaData")
_OTHER_CHECKPOINT = ".checkpoint."
_FEW_ENTRIES, _FEW_BYTES = 32, 4 << 20
"""Bounds of what is read to list the files of a version: beyond them a log checkpoint is read faster, by Spark."""


@dataclass(frozen=True)
class LogCommit:
    """One entry of a log."""

    actions: list[Action]

    @staticmethod
    def of_bytes(entry: bytes) -> LogCommit:
        """The content of its file; without actions where that is empty or cut."""
        return LogCommit(_actions(entry))

    def of(self, kind: str) -> Iterator[dict[str, Any]]:
        """What the actions of a kind, such as ``add``, hold."""
        return (action[kind] for action in self.actions if action.get(kind))

    @property
    def sizes(self) -> dict[str, int]:
        """Of the files that it added, by path relative to the table."""
        return {unquote(add["path"]): int(add["size"]) for add in self.of("add")}

    @property
    def added(self) -> set[str]:
        """Paths of the files that it added, relative to the table."""
        return {unquote(add["path"]) for add in self.of("add")}

    @property
    def removals_first(self) -> list[Action]:
        """Its actions; a new deletion vector takes its file out of the table and puts it back."""
        return sorted(self.actions, key=lambda action: "remove" not in action)

    @property
    def removed(self) -> set[str]:
        """Paths of the files that it removed, relative to the table."""
        return {unquote(remove["path"]) for remove in self.of("remove")}

    @property
    def transactions(self) -> dict[str, int]:
        return {txn["appId"]: int(txn["version"]) for txn in self.of("txn")}

    @property
    def note(self) -> str:
        """What the writer noted with it, if anything."""
        return next((info.get("userMetadata") or "" for info in self.of("commitInfo")), "")

    @property
    def operation(self) -> str:
        return next((info.get("operation") or "" for info in self.of("commitInfo")), "")

    @property
    def maker(self) -> str:
        """The program that wrote it; empty where that did not say so."""
        return next((str(info.get("engineInfo") or "") for info in self.of("commitInfo")), "")

    @property
    def committed_ms(self) -> int | None:
        """When it was committed by the clock of its writer, since 1970; None where it is not recorded."""
        return next((int(info["timestamp"]) for info in self.of("commitInfo") if info.get("timestamp")), None)

    @property
    def data_added(self) -> list[Action]:
        """What it says of each file that it added, but for those of a mere rearrangement."""
        return [add for add in self.of("add") if add.get("dataChange", True)]

    @property
    def removes_data(self) -> bool:
        """Whether it took rows away."""
        return any(remove.get("dataChange", True) for remove in self.of("remove"))

    @property
    def changes_data(self) -> bool:
        """Whether it did more than to rearrange rows."""
        return bool(self.data_added) or self.removes_data

    @property
    def properties(self) -> Mapping[str, str] | None:
        """The new properties of the table; None where it left them alone."""
        metadata = next(self.of("metaData"), None)
        return None if metadata is None else dict(metadata.get("configuration") or {})

    @property
    def described(self) -> tuple[str, str] | None:
        """Id of the table and its new schema as JSON; None where it left them alone."""
        metadata = next(self.of("metaData"), None)
        return None if metadata is None else (str(metadata["id"]), str(metadata["schemaString"]))


@dataclass(frozen=True)
class TableVersion:
    """A version of a table; paths of its files are relative to the table.

    Attributes:
        plain: whether its files hold its rows and nothing else, under the names of its columns.
    """

    version: int
    files: frozenset[str]
    transactions: Mapping[str, int]
    table_id: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    schema: str = ""
    plain: bool = True


class DeltaLog:
    """The log of one table, as it is when the first question is asked; ask another object for what came since.

    Args:
        uri: of the table; where there is none, the log is empty.
    """

    def __init__(self, uri: str) -> None:
        self._uri, self._at = uri, open_location(join(uri, "_delta_log"))
        self._read: dict[int, LogCommit] = {}

    @cached_property
    def _names(self) -> dict[str, FileInfo]:
        return {info.base_name: info for info in self._at.listing(missing_ok=True)}

    @cached_property
    def versions(self) -> list[int]:
        """Versions of which there is an entry, oldest first."""
        versions = sorted(int(match[1]) for name in self._names if (match := COMMIT.fullmatch(name)))
        if versions:
            try:
                self._read[versions[-1]] = self.commit(versions[-1])
            except DamagedFileError:
                del versions[-1]
        return versions

    def commit(self, version: int) -> LogCommit:
        """An entry.

        Raises:
            FileNotFoundError: it is not there, or not any more.
        """
        if version in self._read:
            return self._read[version]
        commit = LogCommit.of_bytes(self._at.inside(commit_name(version)).read())
        if not commit.actions:
            raise DamagedFileError(
                f"{join(self._at.path, commit_name(version))}, an entry of the log of a table, is empty or cut: "
                "nothing of it was used. Run again; if it stays so, put the file back from a backup, or restore a "
                "savepoint into another root"
            )
        return commit

    def newest(self) -> TableVersion | None:
        """The newest version of the table; None where there is no table."""
        version, *actions = self._actions_of(_OF_A_TABLE)
        return None if version < 0 else _folded(version, *actions)

    def facts(self) -> TableFacts | None:
        """What the newest version says of the table besides its files; None where there is no table."""
        version, before, since = self._actions_of(("metaData", "protocol"))
        if version < 0:
            return None
        described = {kind: fields for action in (*before, *since) for kind, fields in action.items()}
        metadata, protocol = described["metaData"], described["protocol"]
        features = [protocol.get(f"{who}Features") or () for who in ("reader", "writer")]
        return TableFacts(
            version=version,
            identity=str(metadata["id"]),
            schema=json.loads(metadata["schemaString"]),
            properties=dict(metadata.get("configuration") or {}),
            partition_columns=list(metadata.get("partitionColumns") or ()),
            features=frozenset(name for some in features for name in some),
        )

    def _actions_of(self, kinds: Sequence[str]) -> tuple[int, Iterator[Action], Iterator[Action]]:
        """The newest version, -1 for none, and the actions of these kinds: of its log checkpoint, and all since."""
        begin, parts = newest_checkpoint(self._names)
        since = [version for version in self.versions if version > begin]
        newest = max([begin, *since])
        missing = set(range(begin + 1, newest + 1)) - set(since)
        if missing:
            raise RootError(
                f"{self._uri}: version {min(missing)} is not in the table's log, and no log checkpoint stands for it: "
                "restore the directory _delta_log, or look at the table with Spark"
            )
        tail = (action for version in since for action in self.commit(version).removals_first)
        return newest, self._checkpointed(parts, kinds), tail

    def files_at(self, version: int) -> list[Action] | None:
        """What adds each file of a version, as its entry says; None where these are not all there, or not few.

        The reader has made sure that the table asks no more of it than to read deletion vectors.
        """
        names = [commit_name(number) for number in range(version + 1)]
        if len(names) > _FEW_ENTRIES or not set(names) <= set(self._names):
            return None
        if sum(self._names[name].size for name in names) > _FEW_BYTES:
            return None
        files: dict[str, Action] = {}
        try:
            for commit in in_threads(self.commit, range(version + 1)):
                _fold_files(files, commit.removals_first)
        except (FileNotFoundError, DamagedFileError):  # cleaned up this moment; or cut, which Spark explains
            return None
        return list(files.values())

    def transaction(self, app: str, version: int) -> LogCommit | None:
        """The entry with this transaction id, searched from the newest; None where the log does not hold it."""
        for number in reversed(self.versions):
            commit = self.commit(number)
            if commit.transactions.get(app) == version:
                return commit
        return None

    def writers(self) -> set[str]:
        """Applications of all transactions in the table: of its newest log checkpoint of any kind, and since."""
        shortcuts = log_checkpoints(self._names)
        for name in self._names:  # of a newer kind, with a unique name
            if _OTHER_CHECKPOINT in name and len(name.split(".")) == 4 and name[:20].isdigit():
                shortcuts.setdefault(int(name[:20]), []).append(name)
        begin = max(shortcuts, default=-1)
        actions = [action for name in shortcuts.get(begin, []) for action in self._transactions_in(name)]
        actions += [a for version in self.versions if version > begin for a in self.commit(version).actions]
        return {action["txn"]["appId"] for action in actions if action.get("txn")}

    def removals(self) -> dict[str, int]:
        """When each file left the table that the log still knows of, in milliseconds since 1970, by its path in it."""
        _, parts = newest_checkpoint(self._names)
        actions = [action["remove"] for action in self._checkpointed(parts, ["remove"])]
        for version in self.versions:
            with suppress(FileNotFoundError):  # cleaned up this moment: the log checkpoint has it
                actions += self.commit(version).of("remove")
        removed: dict[str, int] = {}
        for action in actions:
            path, at_ms = unquote(action["path"]), int(action.get("deletionTimestamp") or 0)
            removed[path] = max(at_ms, removed.get(path, 0))
        return removed

    def removed_since(self, since_ms: int) -> set[str]:
        """Paths, relative to the table, of the files whose removal is younger than a time: readers may have them open.

        Entries that the storage says were written since then are read; what clock their writers had does not matter.
        So is the newest log checkpoint, which records removals whose entries were cleaned up, for as long as
        ``delta.deletedFileRetentionDuration``: a week, if the table says nothing else. Of these only the time that
        their writer gave them is known.
        """
        _, parts = newest_checkpoint(self._names)
        removals = (action["remove"] for action in self._checkpointed(parts, ["remove"]))
        removed = {unquote(r["path"]) for r in removals if (r.get("deletionTimestamp") or 0) > since_ms}
        for version in self.versions:
            if store_clock.written_ms(self._names[commit_name(version)]) >= since_ms:
                # cleaned up this moment: the log checkpoint has what it removed
                with suppress(FileNotFoundError):
                    removed |= self.commit(version).removed
        return removed

    def _checkpointed(self, parts: Iterable[str], kinds: Iterable[str]) -> Iterator[Action]:
        """The actions of some kinds in the files of a log checkpoint."""
        for part in parts:
            table = read_parquet(join(self._uri, "_delta_log", part))
            for kind in kinds:
                if kind in table.column_names:
                    yield from ({kind: value} for value in table[kind].drop_null().to_pylist())

    def _transactions_in(self, name: str) -> Iterable[Action]:
        at = self._at.inside(name)
        if name.endswith(".json"):
            return _actions(at.read())
        actions: list[Action] = at.parquet().read(columns=["txn.appId"]).to_pylist()
        return actions


def is_whole(entry: bytes) -> bool:
    r"""Whether a log entry is neither empty nor cut: every line of it is a JSON object, and there is one.

    Example:
        >>> is_whole(b'{"commitInfo":{}}'), is_whole(b""), is_whole(b'{"commitInfo":{}}\n{"add":{"pa')
        (True, False, False)
    """
    return bool(_actions(entry))


def _actions(entry: bytes) -> list[Action]:
    """The actions of an entry; none where it is empty or cut."""
    try:
        actions = [json.loads(line) for line in entry.splitlines() if line.strip()]
    except ValueError:
        return []
    return actions if all(isinstance(action, dict) for action in actions) else []


def _fold_files(files: dict[str, Action], actions: Iterable[Action]) -> None:
    """Add and remove the files that actions name, by their paths."""
    for action in actions:
        if fields := action.get("add"):
            files[unquote(fields["path"])] = fields
        elif fields := action.get("remove"):
            files.pop(unquote(fields["path"]), None)


def _folded(version: int, before: Iterable[Action], after: Iterable[Action]) -> TableVersion:
    files: dict[str, Action] = {}
    transactions: dict[str, int] = {}
    metadata: dict[str, Any] = {}
    for actions in (before, after):
        for action in actions:
            _fold_files(files, [action])
            if fields := action.get("txn"):
                transactions[fields["appId"]] = int(fields["version"])
            elif fields := action.get("metaData"):
                metadata = fields
    properties = dict(metadata.get("configuration") or {})  # of Parquet, a map is a list of pairs
    described = str(metadata.get("id", "")), properties, str(metadata.get("schemaString", ""))
    plain = (
        not metadata.get("partitionColumns")
        and properties.get("delta.columnMapping.mode", "none") == "none"
        and not any(add.get("deletionVector") for add in files.values())
    )
    return TableVersion(version, frozenset(files), transactions, *described, plain)
