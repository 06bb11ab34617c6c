"""The actions of a commit: files that are added to a table, files that are removed, and how to find them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.storage.delta.action_json import Action, statistics_text
from state_engine.storage.delta.commit_ends import InactiveFilesError
from state_engine.storage.delta.kernel_classes import KernelClasses
from state_engine.storage.delta.kernel_engines import KernelEngines
from state_engine.storage.files import join


@dataclass(frozen=True)
class FileGroup:
    """Files of one partition that are added to a table.

    Attributes:
        files: paths relative to the table.
        partition: value of each partition column; none where the table is not partitioned.
    """

    files: Sequence[DataFile]
    partition: Mapping[str, str | int] = field(default_factory=dict)


class CommitActions:
    """Makes actions with Kernel's engine, as iterators inside the JVM."""

    def __init__(self, classes: KernelClasses, engines: KernelEngines) -> None:
        self._classes, self._engines = classes, engines

    def append(self, uri: str, txn: Any, group: FileGroup) -> Any:
        """Actions that add files which are in place."""
        classes, engine = self._classes, self._engines.of(uri)
        state = txn.getTransactionState(engine)
        literal = classes.literal
        literals = {
            k: literal.ofLong(v) if isinstance(v, int) else literal.ofString(v)
            for k, v in group.partition.items()
        }
        context = classes.transaction.getWriteContext(engine, state, classes.map(literals))
        schema, now_ms = txn.getSchema(engine), int(time.time() * 1000)
        statuses = classes.array_list()
        for file in group.files:
            stats = classes.statistics.deserializeFromJson(statistics_text(file, group.partition), schema)
            statuses.add(classes.file_status(join(uri, file.path), file.bytes, now_ms, stats))
        return classes.transaction.generateAppendActions(engine, state, classes.iterator(statuses), context)

    def remove(self, uri: str, snapshot: Any, remove: Sequence[str]) -> Any:
        """Actions that remove active files; Kernel has only internal ways to make them, which stay in here.

        Args:
            snapshot: that the transaction reads: Kernel compares our removes with every commit since that.

        Raises:
            InactiveFilesError: some are not in the table.
        """
        classes = self._classes
        wanted, now = set(remove), classes.optional.of(classes.long.valueOf(int(time.time() * 1000)))
        rows = classes.array_list()
        for path, scanned in self.scan(uri, snapshot):
            if path in wanted:
                wanted.remove(path)
                added = classes.add_file(scanned.getStruct(classes.scan_files.ADD_FILE_ORDINAL))
                rows.add(classes.single_action.createRemoveFileSingleAction(added.toRemoveFileRow(True, now)))
        if wanted:
            raise InactiveFilesError(uri, sorted(wanted))
        return classes.iterator(rows)

    def adds(self, uri: str, snapshot: Any) -> list[Action]:
        """What the log says of every active file, statistics and deletion vector included."""
        classes = self._classes
        batches = snapshot.getScanBuilder().build().getScanFiles(self._engines.of(uri), True)
        adds: list[Action] = []
        while batches.hasNext():
            rows = batches.next().getRows()
            while rows.hasNext():
                adds.append(json.loads(classes.scan_rows.rowToJson(rows.next()))["add"])
        return adds

    def rows(self, actions: Sequence[Action]) -> Any:
        """Actions as Kernel commits them.

        Args:
            actions: each names its kind, ``add`` or ``remove``, and holds what Delta's protocol says.
        """
        classes = self._classes
        schema = classes.single_action.FULL_SCHEMA
        return classes.iterator(
            classes.list(classes.scan_rows.rowFromJson(json.dumps(one), schema) for one in actions)
        )

    def scan(self, uri: str, snapshot: Any) -> Iterator[tuple[str, Any]]:
        """Path, relative to the table, and scan row of every active file."""
        utils = self._classes.scan_files
        prefix = uri if "://" in uri else f"file://{uri}"
        batches = snapshot.getScanBuilder().build().getScanFiles(self._engines.of(uri))
        while batches.hasNext():
            rows = batches.next().getRows()
            while rows.hasNext():
                row = rows.next()
                yield _relative(str(utils.getAddFileStatus(row).getPath()), prefix), row


def _relative(absolute: str, prefix: str) -> str:
    path = unquote(absolute)
    for start in (prefix, prefix.replace("file://", "file:"), prefix.removeprefix("file://")):
        if path.startswith(start + "/"):
            return path[len(start) + 1 :]
    return path
