"""The actions of a commit: files that are added to a table, files that are removed, and how to find them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.storage.delta.action_json import Action, add_action
from state_engine.storage.delta.commit_ends import InactiveFilesError
from state_engine.storage.delta.kernel_classes import KernelClasses
from state_engine.storage.delta.kernel_engines import KernelEngines


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

    def append(self, groups: Sequence[FileGroup]) -> Any:
        """Actions that add files which are in place.

        Written as Delta's protocol has them: Kernel's own way to make them takes twenty calls for each partition, and a
        base has a partition for each key group.
        """
        return self.rows([add_action(file, group.partition) for group in groups for file in group.files])

    def remove(self, uri: str, snapshot: Any, remove: Sequence[str]) -> Any:
        """Actions that remove active files; Kernel has only internal ways to make them, which stay in here.

        Args:
            snapshot: that the transaction reads: Kernel compares our removes with every commit since that.
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
        parse, schema = classes.scan_rows.rowFromJson, classes.all_actions
        return classes.iterator(classes.list(parse(json.dumps(one), schema) for one in actions))

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
