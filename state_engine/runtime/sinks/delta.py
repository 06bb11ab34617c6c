"""``DeltaSink``: appends outputs to a Delta table, exactly once.

Subtasks write Parquet files straight into the table's directory, where no reader sees them; publishing adds them to
the log in one Kernel commit with transaction id ``<root id>/<job>/<sink>`` and version = checkpoint id. A table with
features that Kernel does not honour for plain files (column mapping, NOT NULL, constraints, generated or identity
columns, …) is refused before anything is written.

Kernel's commits do not claim to be blind appends, so a concurrent MERGE or DELETE of a user with a predicate on
non-partition columns may conflict beside a publish and must be retried by its own writer; publishes themselves never
fail that way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from state_engine.backends.delta.kernel import DeltaKernel, TableFacts, Transaction, TransactionTakenError
from state_engine.backends.files import join, normal_uri, open_location
from state_engine.core.checkpoint import StagedSink
from state_engine.core.errors import CommitUnknownError, SinkError, SinkIdentityError
from state_engine.core.spark_types import spark_schema
from state_engine.runtime.sinks.base import Publisher, Sink, SinkTarget, verify_files

_FEATURES = {
    "appendOnly", "invariants", "timestampNtz", "checkConstraints", "generatedColumns", "changeDataFeed",
    "deletionVectors",
}  # fmt: skip
_COLUMN_RULES = (
    "delta.generationExpression",
    "delta.identity.start",
    "delta.invariants",
    "delta.columnMapping.id",
    "__CHAR_VARCHAR_TYPE_STRING",
)


@dataclass(frozen=True)
class DeltaSink(Sink):
    """A Delta table that outputs are appended to; created on first use, with the columns of the output type.

    Args:
        path: local path or URI of the table.
    """

    path: str
    kind = "delta"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", normal_uri(self.path))

    def prepare(
        self, kernel: DeltaKernel, name: str, app: str, schema: pa.Schema, write_id: str
    ) -> SinkTarget:
        facts = kernel.facts(self.path)
        if facts is None:
            kernel.create_table(self.path, schema)
            facts = kernel.facts(self.path)
            assert facts is not None
        text = _canonical(spark_schema(schema))
        _check(self.path, facts, text)
        return SinkTarget(name, self.kind, self.path, facts.identity, schema, text, self.path)


class DeltaPublisher(Publisher):
    """Publishes to Delta tables through Kernel."""

    def __init__(self, kernel: DeltaKernel) -> None:
        self._kernel = kernel

    def seen(self, uri: str, app: str) -> int:
        return self._kernel.latest_transaction(uri, app) or 0

    def publish(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        if not staged.files:
            return
        found = self._kernel.inspect(staged.path, app)
        if found is None or found[0].identity != staged.identity:
            raise SinkIdentityError(
                f"sink '{staged.name}': {staged.path} "
                f"{'is gone' if found is None else 'was re-created'} since checkpoint {checkpoint_id} staged its rows. "
                "Put the old table back, or restore the checkpoint's parent to drop these rows"
            )
        facts, seen = found
        _check(staged.path, facts, staged.schema)
        if seen < checkpoint_id and add_once(self._kernel, staged, app, checkpoint_id):
            return
        check_published(self._kernel, staged, app, checkpoint_id)


def add_once(
    kernel: DeltaKernel,
    staged: StagedSink,
    app: str,
    checkpoint_id: int,
    *,
    partition: Mapping[str, str] | None = None,
) -> bool:
    """Add staged files in one commit; False where the transaction version is in the log already.

    Raises:
        MissingFilesError: a staged file is gone.
        CommitError: the commit failed, or its outcome is unknown and the log does not show it.
    """
    verify_files(staged.path, staged.files, what=f"sink '{staged.name}', checkpoint {checkpoint_id}")
    try:
        kernel.append(
            staged.path, staged.files, transaction=Transaction(app, checkpoint_id), partition=partition
        )
    except TransactionTakenError:
        return False
    except CommitUnknownError as error:
        if (kernel.latest_transaction(staged.path, app) or 0) < checkpoint_id:
            raise error
        return False
    return True


def check_published(kernel: DeltaKernel, staged: StagedSink, app: str, checkpoint_id: int) -> None:
    """Refuse where the log entry that took this transaction version does not hold this row's files."""
    mine = {f.path for f in staged.files}
    added = _files_of_transaction(staged.path, app, checkpoint_id)
    if added is None:
        added = set(kernel.active_files(staged.path))
    if not mine <= added:
        raise SinkIdentityError(
            f"sink '{staged.name}': {staged.path} already holds other rows of checkpoint {checkpoint_id} by "
            f"'{app}': a copy of this root, or a re-created job, writes to the same table. Give each its own "
            "table, or restore the checkpoint's parent"
        )


def _check(path: str, facts: TableFacts, schema_text: str) -> None:
    """The allow-list: protocol, properties and schema that plain Parquet files are right for."""
    problems = []
    unknown = sorted(facts.features - _FEATURES)
    if unknown:
        problems.append(f"table features {unknown}")
    if facts.partition_columns:
        problems.append(f"partition columns {facts.partition_columns}")
    for key, value in facts.properties.items():
        if key == "delta.columnMapping.mode" and value != "none":
            problems.append(f"column mapping ({key}={value})")
        if key.startswith("delta.constraints."):
            problems.append(f"the constraint {key.removeprefix('delta.constraints.')}")
        if key == "delta.setTransactionRetentionDuration":
            problems.append(f"{key}={value}, which forgets what was published")
    problems += [f"NOT NULL column '{name}'" for name in _not_null(facts.schema)]
    for column in facts.schema["fields"]:
        rules = [r for r in _COLUMN_RULES if r in column.get("metadata", {})]
        if rules:
            problems.append(f"column '{column['name']}' with {', '.join(rules)}")
    if problems:
        raise SinkError(
            f"{path} cannot be a DeltaSink because of {'; '.join(problems)}. Write to a plain table instead, and "
            "feed that one from it"
        )
    if _canonical(facts.schema) != schema_text:
        raise SinkError(
            f"{path} has the columns {_short(facts.schema)}, the output has {_short(json.loads(schema_text))}: names "
            "(also their case) and types must be equal. Change output_type, or write to another table"
        )


def _not_null(kind: Any, inside: str = "") -> list[str]:
    """Names of the fields, nested ones included, that must not be null."""
    if isinstance(kind, str):
        return []
    if kind["type"] != "struct":
        parts = (kind[p] for p in ("elementType", "keyType", "valueType") if p in kind)
        return [name for part in parts for name in _not_null(part, inside)]
    found = []
    for field in kind["fields"]:
        name = inside + field["name"]
        found += [] if field["nullable"] else [name]
        found += _not_null(field["type"], f"{name}.")
    return found


def _canonical(schema: dict[str, Any]) -> str:
    """A schema as text in which order of columns, nullability and metadata do not count."""
    columns = sorted(
        ({"name": f["name"], "type": _bare(f["type"])} for f in schema["fields"]), key=lambda f: f["name"]
    )
    return json.dumps({"type": "struct", "fields": columns}, sort_keys=True)


def _bare(kind: Any) -> Any:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return {
            "type": "struct",
            "fields": [{"name": f["name"], "type": _bare(f["type"])} for f in kind["fields"]],
        }
    return {k: _bare(v) for k, v in kind.items() if k in ("type", "elementType", "keyType", "valueType")}


def _short(schema: dict[str, Any]) -> str:
    shown = (
        f"{f['name']} {f['type'] if isinstance(f['type'], str) else f['type']['type']}"
        for f in schema["fields"]
    )
    return ", ".join(sorted(shown))


def _files_of_transaction(uri: str, app: str, version: int) -> set[str] | None:
    """Paths added by the log entry with this transaction id, searched from the newest; None where it is not there."""
    at = open_location(join(uri, "_delta_log"))
    from pyarrow.fs import FileSelector

    names = sorted(
        (i.path for i in at.fs.get_file_info(FileSelector(at.path)) if i.path.endswith(".json")), reverse=True
    )
    for name in names:
        with at.fs.open_input_stream(name) as stream:
            actions = [json.loads(line) for line in stream.read().decode().splitlines() if line.strip()]
        if any(a.get("txn", {}).get("appId") == app and a["txn"]["version"] == version for a in actions):
            return {a["add"]["path"] for a in actions if "add" in a}
    return None
