"""``planned``: the plan of a job, from its code and from the rows of a root; starts neither Spark nor Java.

Refusals come from the very checks of the run (``microbatch.findings``). Other differences come from the code that
each micro-batch recorded (``microbatch.declared_parts``) and from the states that a trial of ``open`` asks for. Some
things only rows show: they are notes of the plan, and the run judges them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
from pyspark.sql import SparkSession

from state_engine.code_changes.job_plan import JobPlan, PartPlan, PlannedReplay
from state_engine.code_changes.part_changes import GONE, NEW, changed
from state_engine.code_changes.replay_needed import planned_replay
from state_engine.code_changes.state_changes import state_plans
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.history import History
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import SinkError, StatelakeError
from state_engine.core.types.ddl import ddl_text
from state_engine.job.changing_streams import is_changing
from state_engine.job.graph import (
    OperatorNode,
    PublishedNode,
    declared_columns,
    function_for,
    type_in_code,
)
from state_engine.job.job import StatefulJob
from state_engine.job.parallelism import parallelism_in_force
from state_engine.microbatch.declarations import Declarations, gone_operators
from state_engine.microbatch.declared_parts import DeclaredParts, Facts
from state_engine.microbatch.findings import Finding, Part
from state_engine.microbatch.gates import held_findings
from state_engine.microbatch.partition_runs import partition_findings
from state_engine.microbatch.unasked_states import UnaskedStates
from state_engine.replay.sample import sample_of
from state_engine.sources.source_positions import SourcePositions
from state_engine.sources.stream_columns import KIND_FIELD
from state_engine.state_tables.states import PublishedState, last_knowing, published_on, state_of
from state_engine.state_tables.table_form import TableForm
from state_engine.storage.committed_rows import committed_rows
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores.files import normal_uri


def plan_of(
    root: str,
    job: StatefulJob,
    *,
    clock: Callable[[], int],
    parameters: Mapping[str, str],
    sample: int | None = None,
    session: Callable[[], SparkSession] | None = None,
) -> JobPlan:
    """The plan of a job, beside what a root holds of it now; arguments as for ``planned``.

    Args:
        sample: also run today's code over so many recorded rows, unless a run is refused.
        session: gives a session with Spark, for a sample that needs it.
    """
    committed = committed_rows(root, job.name)
    history = History(committed.rows if committed else ())
    layout = committed.layout if committed else JobLayout(normal_uri(root), job.name)
    plan = planned(job, history, layout, clock=clock, parameters=parameters)
    if sample is None or plan.head_id is None or plan.verdict == "refused":
        return plan
    made = sample_of(job, history, layout, rows=sample, parameters=parameters, session=session)
    return replace(plan, sample=made)


def planned(
    job: StatefulJob,
    history: History,
    layout: JobLayout,
    *,
    clock: Callable[[], int],
    parameters: Mapping[str, str],
) -> JobPlan:
    """The plan of a job.

    Args:
        history: all rows of the job; none where it never ran.
        clock: gives the processing time in milliseconds, by which entries of states expire.
        parameters: those of the run.
    """
    return _Planning(job, history, layout, clock, parameters).plan()


@dataclass
class _Planning:
    job: StatefulJob
    history: History
    layout: JobLayout
    clock: Callable[[], int]
    parameters: Mapping[str, str]
    notes: list[str] = field(default_factory=list)

    def plan(self) -> JobPlan:
        refused = self._refused()
        parts = [_with_refusals(one, refused.pop(one.part, [])) for one in self._parts()]
        parts += [PartPlan(part, "refused", tuple(texts)) for part, texts in refused.items()]
        made_otherwise = [one.part for one in parts if one.verdict == "replay"]
        replay: PlannedReplay | None = None
        if made_otherwise:
            positions = SourcePositions(self.layout.operator_state)
            replay = planned_replay(self.job, self.history, self._now, made_otherwise, positions)
        head_id = self._head.checkpoint_id if self._head else None
        ordered = sorted(parts, key=lambda one: _ORDER.index(one.part.kind))
        return JobPlan(self.job.name, head_id, tuple(_beside_operators(ordered)), replay, tuple(self.notes))

    # -- what a run refuses ----------------------------------------------------------------------------------------

    def _refused(self) -> dict[Part, list[str]]:
        """The errors that a run would end with, by part."""
        texts: dict[Part, list[str]] = {}
        for one in self._findings():
            if str(one.error) not in (known := texts.setdefault(one.part, [])):
                known.append(str(one.error))
        return texts

    def _findings(self) -> Iterator[Finding]:
        try:
            self.job.check()
        except StatelakeError as error:
            yield Finding(Part("job", self.job.name), error)
        yield from partition_findings(self.job, self._head)
        yield from held_findings(self.job.name, self.history)
        yield from gone_operators(self.job, self._path)
        yield from self._declarations.findings()
        yield from self._targets()

    def _targets(self) -> Iterator[Finding]:
        """Tables of sinks that do not take the columns that the code declares."""
        places = {sink.name: sink.path for row in self._path for sink in row.sinks}
        for node in self.job.sinks.values():
            declared = declared_columns(node.parent, type_in_code)
            if declared is None:
                continue
            changes = [KIND_FIELD] if is_changing(node.parent) and node.sink.accepts_changes else []
            columns = pa.schema([*declared.arrow, *changes])
            try:
                node.sink.check_target(columns, name=node.name, place=places.get(node.name))
            except SinkError as error:
                yield Finding(Part("sink", node.name), error)
            except StatelakeError as error:  # from here, the table cannot be looked at
                self.notes.append(f"whether the table of sink {node.name} takes its rows: {error.args[0]}")

    @cached_property
    def _declarations(self) -> Declarations:
        unasked = UnaskedStates(self.job, self._path, self.layout, self.clock)
        return Declarations(self.job, self._path, unasked, parameters=self.parameters)

    # -- what differs ----------------------------------------------------------------------------------------------

    @property
    def _head(self) -> CheckpointRow | None:
        return self.history.head

    @cached_property
    def _path(self) -> list[CheckpointRow]:
        return self.history.main_path

    @cached_property
    def _now(self) -> DeclaredParts:
        return DeclaredParts.of(self.job)

    @cached_property
    def _was(self) -> DeclaredParts:
        return DeclaredParts.of_text(self._head.declared if self._head else "")

    def _parts(self) -> Iterator[PartPlan]:
        if self._head is not None and not self._was.parts:
            self.notes.append(
                f"checkpoint {self._head.checkpoint_id} does not record what its code declared: whether functions, "
                "sources and sinks changed is known after the next micro-batch"
            )
        elif self._head is not None and not self._comparable and not self._same_text:
            self.notes.append(
                f"whether functions changed: {self._was.made_by} ran checkpoint {self._head.checkpoint_id}, and its "
                f"digests of code are not compared with those of {self._now.made_by}"
            )
        yield from self._job_itself()
        for part, facts in self._now.parts.items():
            if part.kind != "job":
                yield self._declared(part, facts)
        for part in self._was.parts:
            if part not in self._now.parts and part.kind != "job":
                yield PartPlan(part, "continues", (GONE[part.kind],))
        for operator in self.job.operators.values():
            yield from self._states(operator)
        yield from self._tables()

    @property
    def _comparable(self) -> bool:
        """Whether the same versions made the digests of code."""
        return self._was.made_by == self._now.made_by

    @property
    def _same_text(self) -> bool:
        """True where the text of all modules of the job is the recorded one."""
        return self._head is not None and self._head.code_version == self.job.code_version

    def _job_itself(self) -> Iterator[PartPlan]:
        part, head = Part("job", self.job.name), self._head
        if head is None:
            yield PartPlan(part, "continues", ("new: the first run begins with nothing",))
            return
        was, now = (declared.parts.get(part, {}) for declared in (self._was, self._now))
        texts = [*changed(part, was, now, comparable=self._comparable).texts, *self._parallelism(head)]
        yield PartPlan(part, "continues" if texts else "same", tuple(texts))

    def _parallelism(self, head: CheckpointRow) -> Iterator[str]:
        in_force = parallelism_in_force(self.job, head)
        for recorded in head.operators:
            now = in_force.get(recorded.uid, recorded.parallelism)
            if now != recorded.parallelism:
                yield (
                    f"operator {recorded.uid} runs in {counted(now, 'subtask')} instead of {recorded.parallelism} from "
                    "the next micro-batch on; results stay the same"
                )

    def _declared(self, part: Part, facts: Facts) -> PartPlan:
        was = self._was.parts.get(part)
        if was is not None:
            return changed(part, was, facts, comparable=self._comparable)
        if self._head is not None and (not self._was.parts or self._is_recorded(part)):
            return PartPlan(part, "same")
        return PartPlan(part, "continues", (NEW[part.kind],))

    def _is_recorded(self, part: Part) -> bool:
        """Whether the head holds a part that its code did not declare: state from a bootstrap, say."""
        assert self._head is not None
        if part.kind == "operator":
            return bool(self._head.operator(part.name) or self._head.state_names(part.name))
        return part.kind == "source" and self._head.source(part.name) is not None

    def _states(self, operator: OperatorNode) -> Iterator[PartPlan]:
        opened = self._declarations.opened.get(operator.uid)
        if self._head is None or not self._head.state_names(operator.uid):
            return
        if operator.uid in self._declarations.not_opened or opened is None:
            why = (
                "its rows show which function it is"
                if function_for(operator, type_in_code) is None
                else _NEEDS_A_TASK
            )
            self.notes.append(f"the states of operator {operator.uid}: {why}")
            return
        yield from state_plans(operator, self._head, opened)

    # -- tables that show states -----------------------------------------------------------------------------------

    def _tables(self) -> Iterator[PartPlan]:
        recorded = {one.name: one for one in published_on(self._path)}
        for node in self.job.published.values():
            part, was = Part("table", node.name), recorded.pop(node.name, None)
            if was is None:
                self._begins_empty(node)
                yield PartPlan(part, "continues", (NEW["table"],))
            else:
                texts = (*_table_changes(was, node.recorded), *self._column_changes(was))
                yield PartPlan(part, "continues" if texts else "same", texts)
        for name in recorded:
            yield PartPlan(Part("table", name), "continues", (GONE["table"],))

    def _column_changes(self, was: PublishedState) -> Iterator[str]:
        """What differs in the columns of a table, by the state of the head and the one that code declares."""
        assert self._head is not None
        recorded, now = (
            state_of(self._head, was.operator, was.state),
            self._declarations.table_columns.get(was.name),
        )
        if recorded is None or now is None:
            return
        before = TableForm.of(*recorded, map_key=was.map_key).columns.schema
        texts = []
        for name in dict.fromkeys([*before.names, *now.names]):
            old, new = (ddl_text(of.field(name).type) if name in of.names else "none" for of in (before, now))
            texts += [f"{name}: {old} → {new}"] if old != new else []
        if texts:
            yield f"columns: {', '.join(texts)}; the next publish gives the table these, or says how to rebuild it"

    def _begins_empty(self, node: PublishedNode) -> None:
        """Note a keyed sink whose state begins empty beside a table: only a run looks into that."""
        state = node.recorded
        begins = node.sink_key and state_of(self._head, state.operator, state.state) is None
        if begins and last_knowing(self.history, state) is not None:
            self.notes.append(f"table {node.name}: whether {state.place} still holds rows of before")


_NEEDS_A_TASK = "a trial of open failed here, and only a subtask has what it needs"
_ORDER = ("job", "source", "operator", "state", "sink", "table", "gate")


def _with_refusals(plan: PartPlan, errors: Sequence[str]) -> PartPlan:
    return PartPlan(plan.part, "refused", tuple(errors)) if errors else plan


def _beside_operators(parts: Sequence[PartPlan]) -> Iterator[PartPlan]:
    states = [one for one in parts if one.part.kind == "state"]
    for one in parts:
        if one.part.kind != "state":
            yield one
        if one.part.kind == "operator":
            yield from (state for state in states if state.part.operator == one.part.name)


def _table_changes(was: PublishedState, now: PublishedState) -> Iterator[str]:
    if was.place != now.place:
        yield f"{was.place} was its place, and stays as it is; {now.place} shows the whole state from now on"
    if (was.operator, was.state) != (now.operator, now.state):
        yield (
            f"it showed state {was.operator}.{was.state}, and shows {now.operator}.{now.state}: its rows are compared "
            "with those of the state as a whole"
        )
    if was.options != now.options or was.map_key != now.map_key:
        yield "its options changed: they hold from the next publish on"
