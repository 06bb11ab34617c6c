"""Which Delta tables outputs can be written to, and how: the allow-list for plain files, columns, and withdrawals."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.errors import SinkError
from state_engine.core.types.ddl import quoted
from state_engine.sinks.base import WRITE_ID
from state_engine.sinks.row_rules import Longest, NameOfDirectory, NotNull, NotThese, RowRule, Without
from state_engine.storage.delta.kernel import TableFacts
from state_engine.storage.stores.files import is_local

_FEATURES = {
    "appendOnly", "invariants", "timestampNtz", "checkConstraints", "generatedColumns", "changeDataFeed",
    "deletionVectors",
}  # fmt: skip
_GENERATED, _INVARIANT, _TEXT = "delta.generationExpression", "delta.invariants", "__CHAR_VARCHAR_TYPE_STRING"
_COLUMN_RULES = (
    _GENERATED,
    "delta.identity.start",
    _INVARIANT,
    "delta.columnMapping.id",
    _TEXT,
)
_FILLED = {_GENERATED, "delta.identity.start", "CURRENT_DEFAULT"}
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def plain_problems(facts: TableFacts) -> list[str]:
    """What plain Parquet files are wrong for in a table; none where Kernel may add them."""
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
    problems += [f"NOT NULL column '{name}'" for name in _not_null(facts.schema)]
    for column in facts.schema["fields"]:
        rules = [r for r in _COLUMN_RULES if r in column.get("metadata", {})]
        if rules:
            problems.append(f"column '{column['name']}' with {', '.join(rules)}")
    return problems


def row_rules(path: str, facts: TableFacts, offered: pa.Schema) -> list[RowRule]:
    """Rules of a table for the rows that it is offered, as far as Arrow can judge them."""
    rules: list[RowRule] = [
        NotNull(name) for name in _not_null(facts.schema) if name.split(".")[0] in offered.names
    ]
    for column in facts.schema["fields"]:
        name, text = column["name"], column.get("metadata", {}).get(_TEXT, "")
        bounded = re.fullmatch(r"(?:var)?char\((\d+)\)", text)
        if bounded and name in offered.names:
            rules.append(Longest(name, int(bounded[1])))
    for name in facts.partition_columns:
        kind = offered.field(name).type if name in offered.names else None
        if kind is not None and (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            rules += [Without(name, "\0"), NotThese(name, ("", _NULL_PARTITION))]
            rules += [NameOfDirectory(name)] if is_local(path) and pa.types.is_string(kind) else []
    return rules


def sql_checks(facts: TableFacts, offered: pa.Schema) -> list[tuple[str, str]]:
    """Rules of a table that are SQL text, with their names: true of each row that the table takes."""
    prefix = "delta.constraints."
    named = (
        (k.removeprefix(prefix), sql) for k, sql in sorted(facts.properties.items()) if k.startswith(prefix)
    )
    checks = [(f"the constraint {name} ({sql})", sql) for name, sql in named]
    for column in facts.schema["fields"]:
        name, rules = column["name"], column.get("metadata", {})
        if _GENERATED in rules and name in offered.names:
            sql = f"{quoted(name)} <=> ({rules[_GENERATED]})"
            checks.append((f"the generated column '{name}' ({rules[_GENERATED]})", sql))
        if _INVARIANT in rules:
            sql = json.loads(rules[_INVARIANT])["expression"]["expression"]
            checks.append((f"the invariant of '{name}' ({sql})", sql))
    return checks


def generated_columns(facts: TableFacts) -> dict[str, str]:
    """Columns that a table fills in itself with the value of an expression over the others."""
    rules = {f["name"]: f.get("metadata", {}) for f in facts.schema["fields"]}
    texts = {name: one.get(_GENERATED) or one.get("CURRENT_DEFAULT") for name, one in rules.items()}
    return {name: text for name, text in texts.items() if text}


def check_remembers(path: str, facts: TableFacts) -> None:
    """Refuse a table that forgets what was published: publishing again would add the rows again."""
    key = "delta.setTransactionRetentionDuration"
    if key in facts.properties:
        raise SinkError(
            f"{path} cannot be a DeltaSink because of {key}={facts.properties[key]}, which forgets what was published. "
            f"Unset it (ALTER TABLE … UNSET TBLPROPERTIES ('{key}'))"
        )


def check_plain(path: str, facts: TableFacts, schema_text: str) -> None:
    """The allow-list: protocol, properties and schema that plain Parquet files are right for."""
    check_remembers(path, facts)
    problems = plain_problems(facts)
    if problems:
        raise SinkError(
            f"{path} no longer takes the staged files because of {'; '.join(problems)}, which came after they "
            "were staged. Take that back until they are published, or restore the checkpoint's parent"
        )
    if canonical(facts.schema) != schema_text:
        raise _other_columns(path, facts, schema_text)


def check_spark_columns(path: str, facts: TableFacts, schema_text: str) -> None:
    """Columns of a table that Spark writes to: only those that it fills in itself may be missing from the output."""
    check_remembers(path, facts)
    offered = {f["name"]: f["type"] for f in json.loads(schema_text)["fields"]}
    columns = {f["name"]: f for f in json.loads(canonical(facts.schema))["fields"]}
    filled = {f["name"] for f in facts.schema["fields"] if _FILLED & f.get("metadata", {}).keys()}
    closed = [f["name"] for f in facts.schema["fields"] if _closed(f) and f["name"] in offered]
    if closed:
        raise SinkError(
            f"{path}: the table itself gives values to its identity column '{closed[0]}'; leave it out of the output"
        )
    fits = all(name in columns and columns[name]["type"] == kind for name, kind in offered.items())
    if not fits or set(columns) - set(offered) - filled:
        raise _other_columns(path, facts, schema_text)


def check_withdrawals(staged: StagedSink, facts: TableFacts) -> None:
    """Refuse to withdraw from a table whose readers were promised that rows stay."""
    for key in ("delta.appendOnly", "delta.enableChangeDataFeed"):
        if staged.withdrawn and facts.properties.get(key) == "true":
            raise SinkError(
                f"sink '{staged.name}': outputs cannot be withdrawn from {staged.path}, which has {key}=true. Keep "
                'them there with outputs="keep" (--outputs keep), or set the property to false'
            )


def has_lineage(schema_text: str) -> bool:
    """Whether rows name the attempt that wrote them."""
    return any(f["name"] == WRITE_ID for f in json.loads(schema_text)["fields"])


def _other_columns(path: str, facts: TableFacts, schema_text: str) -> SinkError:
    listed = ", ".join(repr(f["name"]) for f in facts.schema["fields"])
    return SinkError(
        f"{path} has the columns {short_schema(facts.schema)}, the output has "
        f"{short_schema(json.loads(schema_text))}: names (also their case) and types must be equal. Change "
        "output_type; where no function is before the sink, give it the table's columns by "
        f"transform(lambda rows: rows.select({listed})); or add columns to the table; or write to another table"
        + (
            ""
            if has_lineage(schema_text) == (WRITE_ID in _names(facts))
            else f"; for {WRITE_ID}, see lineage="
        )
    )


def _closed(column: dict[str, Any]) -> bool:
    """Whether a column takes no values but the table's own."""
    rules = column.get("metadata", {})
    return "delta.identity.start" in rules and not rules.get("delta.identity.allowExplicitInsert", False)


def _names(facts: TableFacts) -> set[str]:
    return {f["name"] for f in facts.schema["fields"]}


def _not_null(kind: Any, inside: str = "") -> list[str]:
    """Names of the fields, nested ones included, that must not be null."""
    if isinstance(kind, str):
        return []
    if kind["type"] != "struct":
        parts = (kind[p] for p in ("elementType", "keyType", "valueType") if p in kind)
        return [name for part in parts for name in _not_null(part, inside)]
    names = []
    for field in kind["fields"]:
        name = inside + field["name"]
        names += [] if field["nullable"] else [name]
        names += _not_null(field["type"], f"{name}.")
    return names


def canonical(schema: dict[str, Any]) -> str:
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


def short_schema(schema: dict[str, Any]) -> str:
    """Names and types of columns, for messages."""
    shown = (
        f"{f['name']} {f['type'] if isinstance(f['type'], str) else f['type']['type']}"
        for f in schema["fields"]
    )
    return ", ".join(sorted(shown))
