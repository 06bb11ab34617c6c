"""The JSON texts of Delta's actions that are handed to readers of a table, and what such texts say.

The names of fields of ``protocol``, ``metaData``, ``add`` and ``commitInfo`` stand here and in ``log`` only. Delta's
protocol defines them: ``PROTOCOL.md``, "Actions".
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote, unquote

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.storage.stores.files import join

Action = dict[str, Any]
"""What an action holds, or the object that names its kind and holds that."""

SCANNED = ("path", "partitionValues", "size", "modificationTime", "dataChange", "deletionVector", "baseRowId",
           "defaultRowCommitVersion")  # fmt: skip
"""The fields of an ``add`` that a scan of its file needs; statistics are not among them."""


def add_text(add: Action) -> str:
    """An ``add`` as a scan needs it.

    Example:
        >>> add_text({"path": "a.parquet", "size": 7, "stats": "{}"})
        '{"add": {"path": "a.parquet", "size": 7}}'
    """
    return json.dumps({"add": {k: v for k, v in add.items() if k in SCANNED}})


def txn_action(app: str, version: int) -> Action:
    """What records that an application has committed a version.

    Example:
        >>> txn_action("root/job/balance", 7)["txn"]["version"]
        7
    """
    return {"txn": {"appId": app, "version": version, "lastUpdated": int(time.time() * 1000)}}


def uri_of(add: Action, table: str) -> str:
    """Where the file of an ``add`` is.

    Example:
        >>> uri_of({"path": "day=1/a%20b.parquet"}, "file:///t"), uri_of({"path": "file:/elsewhere/a"}, "file:///t")
        ('file:///t/day=1/a b.parquet', 'file:///elsewhere/a')
    """
    path = unquote(add["path"])
    if path.startswith("file:/"):
        return "file:///" + path.removeprefix("file:").lstrip("/")
    return path if "://" in path else join(table, path)


def rows_left(add: Action, records: int | None) -> int | None:
    """Rows of a file without those that its deletion vector takes away; None where the file's number is not known."""
    deleted = (add.get("deletionVector") or {}).get("cardinality", 0)
    return None if records is None else int(records) - int(deleted)


def recorded_rows(add: Action) -> int | None:
    """Rows of a file, by its statistics; None where there are none.

    Example:
        >>> recorded_rows({"path": "a", "stats": '{"numRecords": 5}', "deletionVector": {"cardinality": 2}})
        3
    """
    return rows_left(add, json.loads(add["stats"]).get("numRecords") if add.get("stats") else None)


def add_action(file: DataFile, partition: Mapping[str, str | int]) -> Action:
    """What adds a file of ours, which is in place, to a table.

    Args:
        file: its path is relative to the table.
        partition: value of each partition column; these stand in no file.

    Example:
        >>> add = add_action(DataFile("id=a/b c.parquet", 70, 3, 0, 5, 5, -1, 8), {"id": "a", "key_group": 5})["add"]
        >>> add["path"], add["partitionValues"], add["size"]
        ('id=a/b%20c.parquet', {'id': 'a', 'key_group': '5'}, 70)
        >>> add["stats"]
        '{"numRecords": 3, "minValues": {"key_hash": -1}, "maxValues": {"key_hash": 8}}'
    """
    values = {name: str(value) for name, value in partition.items()}
    return added_file(file.path, size=file.bytes, partition=values, stats=_statistics_text(file, partition))


def added_file(path: str, *, size: int, stats: str, partition: Mapping[str, str] | None = None) -> Action:
    """What adds a file to a table as new data; its path is relative to the table."""
    return {
        "add": {
            "path": quote(path, safe="/:=@"),
            "partitionValues": dict(partition or {}),
            "size": size,
            "modificationTime": int(time.time() * 1000),
            "dataChange": True,
            "stats": stats,
        }
    }


def _statistics_text(file: DataFile, partition: Collection[str]) -> str:
    """The ``stats`` of a file of ours, by which readers skip files; ``partition`` are columns that stand in no file."""
    stats: dict[str, Any] = {"numRecords": file.rows}
    if file.key_group_min is not None:
        least = {"key_group": file.key_group_min, "key_hash": file.key_hash_min}
        most = {"key_group": file.key_group_max, "key_hash": file.key_hash_max}
        stats["minValues"] = {k: v for k, v in least.items() if k not in partition}
        stats["maxValues"] = {k: v for k, v in most.items() if k not in partition}
    return json.dumps(stats)


def as_add(action: Action) -> Action:
    """A ``remove`` or ``cdc`` as an ``add`` of the same file, which a scan reads as it was before.

    Example:
        >>> as_add({"path": "a.parquet", "size": 7, "deletionTimestamp": 5})
        {'path': 'a.parquet', 'size': 7, 'partitionValues': {}, 'modificationTime': 0, 'dataChange': True}
    """
    kept = {k: v for k, v in action.items() if k in SCANNED and v is not None}
    partition = action.get("partitionValues") or {}
    return kept | {"partitionValues": partition, "modificationTime": 0, "dataChange": True}


def as_listed(add: Action) -> Action:
    """An ``add`` of an entry as Delta gives it for a file of a version: it says nothing of what its commit changed.

    Example:
        >>> as_listed({"path": "a.parquet", "size": 7, "dataChange": True, "deletionVector": None, "stats": "{}"})
        {'path': 'a.parquet', 'size': 7, 'dataChange': False}
    """
    return {k: v for k, v in add.items() if k in SCANNED and v is not None} | {"dataChange": False}


def reads_deletion_vectors(protocol: str) -> bool:
    """Whether a ``protocol`` allows deletion vectors.

    Example:
        >>> reads_deletion_vectors('{"protocol": {"minReaderVersion": 3, "readerFeatures": ["deletionVectors"]}}')
        True
    """
    return "deletionVectors" in json.loads(protocol)["protocol"].get("readerFeatures", [])


def with_properties(metadata: str, *, kept: tuple[str, ...], added: dict[str, str]) -> str:
    """A ``metaData`` with other table properties.

    Args:
        kept: what the names of those begin with that stay.
    """
    action: Action = json.loads(metadata)
    properties = action["metaData"]["configuration"]
    action["metaData"]["configuration"] = {k: v for k, v in properties.items() if k.startswith(kept)} | added
    return json.dumps(action)


def with_text_column(metadata: str, name: str) -> str:
    """A ``metaData`` whose schema has one more column of text, which is no column of the table."""
    action: Action = json.loads(metadata)
    schema = json.loads(action["metaData"]["schemaString"])
    # where columns are mapped each has an id, and a name in files
    newest = int(action["metaData"]["configuration"].get("delta.columnMapping.maxColumnId", 0)) + 1
    mapped = {"delta.columnMapping.id": newest, "delta.columnMapping.physicalName": name}
    is_mapped = action["metaData"]["configuration"].get("delta.columnMapping.mode", "none") != "none"
    field = {"name": name, "type": "string", "nullable": True, "metadata": mapped if is_mapped else {}}
    schema["fields"].append(field)
    action["metaData"]["schemaString"] = json.dumps(schema)
    return json.dumps(action)
