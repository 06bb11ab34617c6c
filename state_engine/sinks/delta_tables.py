"""Which Delta tables outputs can be written to, and how: the allow-list for plain files, columns, and withdrawals."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
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


def plain_problems(facts: TableFacts, *, judged: bool = False) -> list[str]:
    """What plain Parquet files are wrong for in a table; none where Kernel may add them.

    Args:
        judged: whether the rows of the files are held to ``column_rules``.
    """
    problems = []
    unknown = sorted(facts.features - _FEATURES)
    if unknown:
        problems.append(f"table features {unknown}")
    if facts.partition_columns:
        problems.append(f"partition columns {facts.partition_columns}")
    mapping = facts.properties.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        problems.append(f"column mapping (delta.columnMapping.mode={mapping})")
    return problems + rules_in(facts.schema, facts.properties, judged=judged)


def rules_in(schema: dict[str, Any], properties: Mapping[str, str], *, judged: bool) -> list[str]:
    """The rules of a table for its rows, for messages; arguments as ``plain_problems``."""
    problems = [f"the constraint {name} ({sql})" for name, sql in constraints(properties).items()]
    if not judged:
        problems += [f"NOT NULL column '{'.'.join(path)}'" for path in _not_null(schema)]
    for column in schema["fields"]:
        rules = [r for r in _COLUMN_RULES if r in column.get("metadata", {}) and not (judged and r == _TEXT)]
        if rules:
            problems.append(f"column '{column['name']}' with {', '.join(rules)}")
    return problems


def constraints(properties: Mapping[str, str]) -> dict[str, str]:
    """CHECK constraints of a table: their conditions by name."""
    prefix = "delta.constraints."
    return {k.removeprefix(prefix): sql for k, sql in sorted(properties.items()) if k.startswith(prefix)}


def as_expectations(schema: dict[str, Any], properties: Mapping[str, str]) -> dict[str, str]:
    """Rules of a table that are SQL text as rules of a stream, see ``DataStream.expect``: their conditions by name."""
    generated = {
        f["name"]: f["metadata"][_GENERATED] for f in schema["fields"] if _GENERATED in f.get("metadata", {})
    }
    same = {name: f"{name} IS NOT DISTINCT FROM ({sql})" for name, sql in generated.items()}
    return constraints(properties) | same


def row_rules(path: str, facts: TableFacts, offered: pa.Schema) -> list[RowRule]:
    """Rules of a table for the rows that it is offered, as far as Arrow can judge them."""
    rules = column_rules(facts.schema, offered)
    for name in facts.partition_columns:
        kind = offered.field(name).type if name in offered.names else None
        if kind is not None and (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            rules += [Without(name, "\0"), NotThese(name, ("", _NULL_PARTITION))]
            rules += [NameOfDirectory(name)] if is_local(path) and pa.types.is_string(kind) else []
    return rules


def column_rules(schema: dict[str, Any], offered: pa.Schema) -> list[RowRule]:
    """What the columns of a table must not hold: null, and texts that are too long; also inside of them."""
    needed = _not_null(schema, elements=True)
    rules: list[RowRule] = [
        NotNull(name, inside=tuple(inside)) for name, *inside in needed if name in offered.names
    ]
    for column in schema["fields"]:
        name, text = column["name"], column.get("metadata", {}).get(_TEXT)
        if text and name in offered.names:
            lengths, _ = _lengths(column["type"], text)
            rules += [Longest(name, most, inside=inside) for inside, most in lengths]
    return rules


def sql_checks(facts: TableFacts, offered: pa.Schema) -> list[tuple[str, str]]:
    """Rules of a table that are SQL text, with their names: true of each row that the table takes."""
    checks = [(f"the constraint {name} ({sql})", sql) for name, sql in constraints(facts.properties).items()]
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


Path = tuple[str, ...]
"""The way to values inside of a table or column: names of fields, ``element``, ``key`` and ``value``."""
_INSIDE = {
    "array": {"element": ("elementType", "containsNull")},
    "map": {"key": ("keyType", ""), "value": ("valueType", "valueContainsNull")},
}
"""By type: its parts, each with the names of its type and of what says whether it may be null."""


def _not_null(kind: Any, inside: Path = (), *, elements: bool = False) -> list[Path]:
    """What must not be null: fields, nested ones included.

    Args:
        kind: in the JSON form of Spark.
        inside: the way to it.
        elements: also elements of lists and values of maps.
    """
    if isinstance(kind, str):
        return []
    if kind["type"] == "struct":
        parts = [(field["name"], field["type"], not field["nullable"]) for field in kind["fields"]]
    else:
        given = _INSIDE[kind["type"]].items()
        parts = [
            (step, kind[type_of], elements and not kind.get(may, True)) for step, (type_of, may) in given
        ]
    paths = []
    for step, part, is_needed in parts:
        path = (*inside, step)
        paths += [*([path] if is_needed else []), *_not_null(part, path, elements=elements)]
    return paths


def _lengths(kind: Any, text: str) -> tuple[list[tuple[Path, int]], str]:
    """The texts inside of a type that have so many characters at most, and what follows the type in a text.

    Args:
        kind: in the JSON form of Spark, which has no lengths.
        text: begins with the type as SQL, with lengths.

    Example:
        >>> _lengths({"type": "array", "elementType": "string"}, "array<varchar(3)>")
        ([(('element',), 3)], '')
    """
    if isinstance(kind, str):
        bounded, whole = re.match(r"(?:var)?char\((\d+)\)", text), re.match(r"[\w ]+(\([\d, ]+\))?", text)
        assert whole is not None
        return [((), int(bounded[1]))] if bounded else [], text[whole.end() :]
    if kind["type"] == "struct":
        parts = [(f["name"], f["type"], f["name"]) for f in kind["fields"]]
    else:
        parts = [(step, kind[type_of], "") for step, (type_of, _) in _INSIDE[kind["type"]].items()]
    lengths, rest = [], text[text.index("<") :]
    for step, part, name in parts:
        rest = rest[1:]  # "<" or ","
        for spelled in (f"{quoted(name)}:", f"{name}:") if name else ():
            rest = rest.removeprefix(spelled)
        inner, rest = _lengths(part, rest)
        lengths += [((step, *path), most) for path, most in inner]
    return lengths, rest[1:]


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
