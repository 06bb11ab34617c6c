"""What the code of a job declares, part by part; each micro-batch records it, for those who plan a change of the code.

A part is a source, an operator or a sink. Each has the facts that its results depend on, as plain values, and
a digest of its code: of the functions and classes that it reaches, and of the data that they were made with. Digests
that two versions of Python or of Statelake made are not compared: the same code may have another one there. There,
``code_version`` decides, by the text of modules. Nothing here holds a secret:
options of sources and sinks are in digests only.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

from state_engine.core.json_text import parsed_json
from state_engine.core.types.type_text import type_to_text
from state_engine.job.code_version import code_of
from state_engine.job.graph import (
    Node,
    OperatorInput,
    OperatorNode,
    SelectedKey,
    SideOutputNode,
    SinkNode,
    SourceNode,
    TransformNode,
    UnionNode,
    declared_type,
    parents,
    type_in_code,
)
from state_engine.job.job import StatefulJob
from state_engine.job.stream import Stream
from state_engine.microbatch.findings import Part
from state_engine.operators.row_expectation import RowExpectation
from state_engine.sources.partitioned_input import PartitionedSource
from state_engine.spark.code_digests import ENGINE, CodeDigests, closure_values, value_text
from state_engine.spark.loaded_modules import is_own, modules_of

Facts = Mapping[str, Any]
"""Of one part, by name; plain values."""
CODE, SETTINGS, COLUMNS, BOUNDS, PLACE = "code", "settings", "columns", "bounds", "place"
PARTITIONS = "partitions"
"""Of the job itself: its time partitions."""
RULE, JUDGES = "rule", "judges"
"""Of a rule by row: its text, and a digest of its code; of a gate its text."""
_DIGITS = 12
_GRAPH = (
    StatefulJob,
    Stream,
    SourceNode,
    TransformNode,
    UnionNode,
    OperatorNode,
    SideOutputNode,
    SinkNode,
)
"""A function of a ready-made operator may hold the stream that it was declared on, and with it the rest of the job."""


@dataclass(frozen=True)
class DeclaredParts:
    """The parts of a job, as its code declares them.

    Attributes:
        made_by: the versions of Python and Statelake; digests that others made are not compared.
    """

    parts: Mapping[Part, Facts]
    made_by: str = ""

    def text(self) -> str:
        """As a row of ``checkpoints`` records it."""
        parts = [[*part[:2], facts] for part, facts in self.parts.items()]
        return json.dumps({"made_by": self.made_by, "parts": parts}, sort_keys=True)

    @classmethod
    def of_text(cls, text: str) -> DeclaredParts:
        """What a row records; nothing where it records none.

        Example:
            >>> one = DeclaredParts({Part("source", "rows"): {"columns": ""}}, "3.11")
            >>> DeclaredParts.of_text(one.text()) == one
            True
        """
        if not text:
            return cls({})
        recorded = parsed_json(text)
        parts = {Part(kind, name): facts for kind, name, facts in recorded["parts"]}
        return cls(parts, recorded["made_by"])

    @classmethod
    def of(cls, job: StatefulJob) -> DeclaredParts:
        digests = _Digests(functools.partial(is_own, named=modules_of(code_of(job))))
        parts: dict[Part, Facts] = {}
        if job.partitions is not None:
            parts[Part("job", job.name)] = {PARTITIONS: asdict(job.partitions)}
        for source in job.sources.values():
            parts[Part("source", source.name)] = _source(source, digests)
        for operator in job.operators.values():
            parts[Part("operator", operator.uid)] = _operator(operator, digests)
        for sink in job.sinks.values():
            parts[Part("sink", sink.name)] = _sink(sink, digests)
        for gate in job.gates.values():
            parts[Part("gate", gate.name)] = {RULE: f"{gate.bound.text}, otherwise {gate.otherwise}"}
        return cls(parts, made_by())


def made_by() -> str:
    """The versions that decide what a digest of code is."""
    python = ".".join(map(str, sys.version_info[:2]))
    return f"Python {python}, Statelake {metadata.version('statelake')}"


def _source(node: SourceNode, digests: _Digests) -> Facts:
    source, settings = node.source.inner, _settings(node.source.inner)
    cut = node.source if isinstance(node.source, PartitionedSource) else None
    whole = node.source if cut is None else cut.source
    schema = type_in_code(node)
    return {
        "kind": type(source).__name__,
        PLACE: str(settings.pop("path", "") or settings.pop("table", "") or ""),
        COLUMNS: "" if schema is None else type_to_text(schema.columns),
        "order_by": list(node.order_by),
        "event_time": node.event_time or ("" if cut is None else cut.column),
        "out_of_orderness_ms": node.max_out_of_orderness_ms,
        "late_to": "" if node.late_to is None else node.late_to.tag_id,
        "silence": {k: v for k, v in asdict(node.time_policy).items() if v is not None},
        BOUNDS: {
            name: settings.pop(name)
            for name in sorted(settings)
            if name.startswith("max_") and isinstance(settings[name], int | None)
        },
        SETTINGS: digests.of({n: v for n, v in settings.items() if n != "schema"}),
        CODE: digests.of(node.timestamps, whole if whole is not source else None),
    }


def _operator(node: OperatorNode, digests: _Digests) -> Facts:
    selectors = [
        (one.key.selector, one.key.key_type) for one in node.inputs if isinstance(one.key, SelectedKey)
    ]
    function = node.function
    facts = {
        "kind": type(function).__name__,
        "reads": [_reads(one.parent) for one in node.inputs],
        "steps": digests.of(*(list(_steps(one.parent)) for one in node.inputs)),
        "keys": [list(one.key_columns) for one in node.inputs],
        "sent": [_sent(one) for one in node.inputs],
        COLUMNS: _columns(node),
        CODE: digests.of(function if _makes_results(node) else None, selectors),
    }
    if isinstance(function, RowExpectation):
        facts |= {RULE: f"{function.text}, otherwise {function.otherwise}", JUDGES: digests.of(function)}
    return facts


def _sent(one: OperatorInput) -> str:
    """How the elements of an input reach subtasks; empty where each goes to one of them."""
    if one.broadcast:
        return "broadcast, in order" if one.ordered else "broadcast, before others"
    return "to every subtask" if one.everywhere else ""


def _makes_results(node: OperatorNode) -> bool:
    """Whether results behind an operator depend on its function: not on a rule whose rows all go on."""
    return not isinstance(node.function, RowExpectation) or node.function.removes


def _sink(node: SinkNode, digests: _Digests) -> Facts:
    settings = _settings(node.sink)
    return {
        "kind": type(node.sink).__name__,
        PLACE: str(settings.pop("path", "") or settings.pop("table", "") or ""),
        "reads": [_reads(node.parent)],
        "steps": digests.of(list(_steps(node.parent))),
        COLUMNS: _columns(node.parent),
        SETTINGS: digests.of(settings),
    }


def _settings(thing: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(thing).items() if not name.startswith("_")}


def _columns(node: Node) -> str:
    declared = declared_type(node, type_in_code)
    return "" if declared is None else type_to_text(declared.columns)


def _reads(node: Node) -> list[str]:
    """The sources and outputs of operators that a stream consists of, by name."""
    if isinstance(node, SourceNode):
        return [node.name]
    if isinstance(node, OperatorNode):
        return [node.uid] if _makes_results(node) else _reads(node.inputs[0].parent)
    if isinstance(node, SideOutputNode):
        return [f"{node.operator.uid}, side output {node.tag.tag_id}"]
    return [name for parent in parents(node) for name in _reads(parent)]


def _steps(node: Node) -> Iterator[Any]:
    """DataFrame code before a stream, since its sources and operators."""
    if isinstance(node, TransformNode):
        yield from _steps(node.parent)
        yield node.function, node.order_by
    elif isinstance(node, UnionNode):
        for parent in node.parents:
            yield list(_steps(parent))
    elif isinstance(node, OperatorNode) and not _makes_results(node):
        yield from _steps(node.inputs[0].parent)


@dataclass
class _Digests:
    """Digests of code with the data that it was made with."""

    owns: Any
    _known: dict[int, Any] = field(default_factory=dict)

    def of(self, *things: Any) -> str:
        code, total = CodeDigests(self.owns, _GRAPH), hashlib.sha256()
        for thing in things:
            code.visit(thing)
            total.update(value_text(thing, self._holds_data, _GRAPH).encode())
        held = [
            value_text(closure_values(one), self._holds_data, _GRAPH)
            for one in code.reached
            if isinstance(one, types.FunctionType)
        ]
        total.update(repr([sorted(code.by_name.items()), sorted(held)]).encode())
        return total.hexdigest()[:_DIGITS]

    def _holds_data(self, module: str) -> bool:
        """Whether attributes of objects of a module count: of the user's, and of those that the engine makes of his."""
        return self.owns(module) or module.partition(".")[0] == ENGINE
