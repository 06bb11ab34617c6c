"""``SourcePositions``: positions of sources as operator state, appended by each batch and folded along the path.

What a checkpoint appended never changes, so it is read once and kept; a later batch reads what is new only. So that a
new process need not read a file for every micro-batch there ever was, compactions state the positions whole. Plays the
part of the state of Flink's ``SourceCoordinator``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow, DataFile
from state_engine.core.checkpoints.state_files import position_files
from state_engine.core.errors import MissingFilesError
from state_engine.core.json_text import parsed_json
from state_engine.sources.base import Element, Source
from state_engine.storage.layout import OPERATOR_STATE_SCHEMA, file_name, partition_path
from state_engine.storage.stores.files import join, write_parquet
from state_engine.storage.stores.in_threads import in_threads
from state_engine.storage.stores.parquet_reading import damaged, open_recorded

POSITIONS = "positions"
"""Name of the operator state that holds a source's position."""
_OF, _SHOWN, _DEEPEST = "source positions", 60, 300


class SourcePositions:
    """Positions of the sources of one job."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._read: dict[str, dict[str, list[Element]]] = {}
        self._checked: set[tuple[str, str]] = set()

    def elements(self, path: Sequence[CheckpointRow], source: str, of: Source | None = None) -> list[Element]:
        """The position of a source: elements appended along the path, oldest first.

        Args:
            of: the source, which then only gets what can be its position.

        Raises:
            DamagedFileError: somebody wrote something else.
        """
        files = position_files(path)
        unread = [file for file in files if file.path not in self._read]
        if unread:
            wrote = {file.path: row.checkpoint_id for row in path for file in row.operator_state_files}
            named = [f"checkpoint {wrote[file.path]}, source positions" for file in unread]
            loaded = in_threads(lambda one: self._load(*one), zip(unread, named, strict=True))
            self._read.update(zip((file.path for file in unread), loaded, strict=True))
        if of is not None:
            self._check(files, source, of)
        return [element for file in files for element in self._read[file.path].get(source, [])]

    def _check(self, files: Sequence[DataFile], source: str, of: Source) -> None:
        for file in files:
            if (file.path, source) in self._checked:
                continue
            for place, element in enumerate(self._read[file.path].get(source, [])):
                if not of.is_element(element):
                    why = f"row {place} of source '{source}', {json.dumps(element)[:_SHOWN]}, is not a position of a "
                    raise damaged(join(self._uri, file.path), why + type(of.inner).__name__, of=_OF)
            self._checked.add((file.path, source))

    def waiting(self, path: Sequence[CheckpointRow], sources: Mapping[str, Source]) -> list[str]:
        """What sources have before them and do not read yet, each with its source and the reason."""
        return [
            f"source '{name}': {text}"
            for name, source in sources.items()
            for text in source.waiting(self.elements(path, name, source))
        ]

    def write(
        self, write_id: str, appended: Mapping[str, Sequence[Element]], *, attempt: int = 0
    ) -> DataFile:
        """Write what a batch appends, by source, as one file that no reader of the table sees yet.

        Args:
            attempt: makes the name unique where one ``write_id`` writes time and again.
        """
        rows = [
            {"operator": source, "state": POSITIONS, "scheme": "even_split", "subtask": 0, "position": i,
             "value": json.dumps(element), "bytes": None}
            for source, elements in appended.items()
            for i, element in enumerate(elements)
        ]  # fmt: skip
        path = partition_path(write_id, file_name(write_id, 0, attempt))
        file = write_parquet(pa.Table.from_pylist(rows, OPERATOR_STATE_SCHEMA), join(self._uri, path))
        self._read[path] = {source: list(elements) for source, elements in appended.items()}
        return DataFile(path=path, bytes=file.bytes, rows=len(rows), subtask=0, footer=file.footer)

    def _load(self, file: DataFile, of: str) -> dict[str, list[Element]]:
        by_source: dict[str, list[Element]] = {}
        uri = join(self._uri, file.path)
        try:
            table = open_recorded(uri, file, of=of).read()
        except FileNotFoundError:
            raise MissingFilesError(
                f"{uri}, the source positions of a micro-batch, is gone: it was collected with its "
                "checkpoint, or somebody deleted it. Replay from a checkpoint that can be restored; if that fails, "
                "restore a savepoint"
            ) from None
        for one in table.sort_by([("operator", "ascending"), ("position", "ascending")]).to_pylist():
            if one["state"] == POSITIONS:
                by_source.setdefault(one["operator"], []).append(_element(one["value"], uri))
        return by_source


def _element(text: str, uri: str) -> Element:
    """An element of a position. Raises DamagedFileError where a text is none: a savepoint may come from anywhere."""
    try:
        element: Element = parsed_json(text, max_depth=_DEEPEST)
        if "position" in element and isinstance(element["split"], str):
            return element
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise damaged(uri, f"{text[:_SHOWN]!r} is not an element of a position", of=_OF)
