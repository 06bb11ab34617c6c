"""What a job declares, found out without Spark and without data: states, columns, version of the code.

States are declared in ``open``, so a copy of every function is opened on an empty store and asked what it registered.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa

from state_engine.core.errors import ConfigurationError, StatelakeError
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.operator.trial_open import trial_open
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.evolution import recorded_schema
from state_engine.core.types.ddl import ddl_text
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_parsing import arrow_type
from state_engine.job.graph import (
    Node,
    OperatorNode,
    PublishedNode,
    SinkNode,
    declared_key,
    declared_type,
    function_for,
    type_in_code,
)
from state_engine.job.job import StatefulJob
from state_engine.sources.output_type import OutputType
from state_engine.state_tables.table_form import TableForm

logger = logging.getLogger(__name__)

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "dagster.md"


def states_of(job: StatefulJob, operator: OperatorNode) -> list[StateDescriptor]:
    """The keyed states that an operator registers when it is opened.

    A function that cannot be opened here (it wants a model file, say) costs its states their assets, not the whole
    code location its life: that is logged.
    """
    try:
        function = function_for(operator, type_in_code)
    except StatelakeError:  # what the code says wrongly, the run refuses
        return []
    if function is None:
        return []
    info = TaskInfo(operator.uid, parallelism=job.parallelism, max_parallelism=job.max_parallelism)
    trial = trial_open(function, info)
    if trial.problem is not None:
        logger.warning(
            "job '%s', operator '%s': its states are not shown, because opening it outside of a run failed: %r",
            job.name,
            operator.uid,
            trial.problem,
        )
    return trial.states


def columns_of(sink: SinkNode) -> dg.TableSchema | None:
    """The columns of a sink; None where only rows, or running the DataFrame code before it, would show them."""
    kind = _type_of(sink.parent)
    return None if kind is None else table_schema(kind.columns)


def columns_of_table(job: StatefulJob, node: PublishedNode) -> dg.TableSchema | None:
    """The columns of a published table; None where only rows would show them, or its state is not declared."""
    key = declared_key(node.operator, type_in_code)
    state = next((s for s in states_of(job, node.operator) if s.name == node.state), None)
    if key is None or state is None:
        return None
    try:
        form = TableForm(key.schema, recorded_schema(state), node.map_key).checked(node.operator.uid)
    except ConfigurationError as error:  # the run says so
        logger.warning("job '%s', table '%s': its columns are not shown: %s", job.name, node.name, error)
        return None
    columns = arrow_type(pa.struct(list(form.columns.schema)))
    return table_schema(columns) if isinstance(columns, StructType) else None


def _type_of(node: Node) -> OutputType | None:
    """The type of a stream as far as code shows it; what the code says wrongly, the run refuses."""
    try:
        return declared_type(node, type_in_code)
    except StatelakeError:
        return None


def table_schema(columns: StructType) -> dg.TableSchema:
    return dg.TableSchema(
        [
            dg.TableColumn(name, ddl_text(kind.storage))
            for name, kind in zip(columns.names, columns.types, strict=True)
        ]
    )


def text_of(thing: Any) -> str:
    """The first paragraph of a docstring, on one line."""
    text = thing if isinstance(thing, str) else inspect.getdoc(type(thing)) or ""
    return " ".join(text.strip().split("\n\n")[0].split())


def code_references(functions: Iterable[Any]) -> dict[str, Any]:
    """Where to read on, as Dagster links it: the code of functions, and the guide where this is a checkout."""
    kinds: dict[Any, None] = dict.fromkeys(type(function) for function in functions)
    references = [_code_of(kind) for kind in kinds]
    places = [one for one in references if one is not None]
    if GUIDE.exists():
        places.append((GUIDE, 1, "Guide: Statelake in Dagster"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # the version of Dagster is pinned
        files = [
            dg.LocalFileCodeReference(file_path=str(file), line_number=line, label=label)
            for file, line, label in places
        ]
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=list(files))}


@cache  # finding a class parses its whole file, and each state of an operator asks
def _code_of(kind: type) -> tuple[Path, int, str] | None:
    try:
        return Path(inspect.getfile(kind)), inspect.getsourcelines(kind)[1], kind.__qualname__
    except (OSError, TypeError):  # typed into a notebook
        return None
