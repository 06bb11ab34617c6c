"""``Execution``: what the subtasks of all operators of one attempt did, on its way into a checkpoint.

``check_limit`` stops a micro-batch that refused more rows than its job allows, before anything is committed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from state_engine.core.checkpoints.checkpoint import ExpectationCount, GateVerdict
from state_engine.core.errors import DeadLetterLimitError
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.state.state_schema import StateSchema
from state_engine.job.job import StatefulJob
from state_engine.microbatch.attempt_outputs import AttemptSinks
from state_engine.microbatch.reports import OperatorReport
from state_engine.microbatch.subtask.subtask_spec import SubtaskReport
from state_engine.storage.stores.files import join
from state_engine.storage.stores.parquet_reading import open_recorded


@dataclass
class Execution:
    """What the subtasks of one attempt did.

    Attributes:
        key_schemas, states: of keyed operators: their keys, and the states that the functions asked for.
        asked_in_open, asked_late: names of the states that each function asked for, by the end of ``open`` and later.
        behind_watermark: late rows of each source, by the first operator that judged them.
        watermarks_ms: of the sources with event time, after the batch.
        input_types: columns of the elements, as DDL, of operators that need them where no row comes.
        expectations: what was counted of each rule by row.
        gates: what the gates of the job said of what is staged.
        letters_from: sources whose bad rows a sink without an operator set aside.
    """

    outputs: AttemptSinks
    operators: dict[str, OperatorReport] = field(default_factory=dict)
    key_schemas: dict[str, KeySchema] = field(default_factory=dict)
    states: dict[str, list[StateSchema]] = field(default_factory=dict)
    asked_in_open: dict[str, set[str]] = field(default_factory=dict)
    asked_late: dict[str, set[str]] = field(default_factory=dict)
    rows_by_source: dict[str, int] = field(default_factory=dict)
    max_event_ms: dict[str, int] = field(default_factory=dict)
    behind_watermark: dict[str, int] = field(default_factory=dict)
    watermarks_ms: dict[str, int | None] = field(default_factory=dict)
    refused: int = 0
    letters_from: set[str] = field(default_factory=set)
    input_types: dict[str, str] = field(default_factory=dict)
    expectations: list[ExpectationCount] = field(default_factory=list)
    gates: list[GateVerdict] = field(default_factory=list)

    def add(self, uid: str, reports: list[SubtaskReport]) -> None:
        self.operators[uid] = OperatorReport.of(uid, reports)
        self.states[uid] = list({s.name: s for one in reports for s in one.states}.values())
        self.asked_in_open[uid] = {name for one in reports for name in one.asked_in_open}
        self.asked_late[uid] = {name for one in reports for name in one.asked_late} - self.asked_in_open[uid]
        self.take(reports)

    def take(self, reports: list[SubtaskReport]) -> None:
        """Take over what subtasks wrote, and what they counted of sources."""
        rows, late = Counter[str](), Counter[str]()
        for one in reports:
            for name, files in one.sinks.items():
                self.outputs.add(name, files)
            self.outputs.dead_letters.extend(one.dead_letters)
            self.refused += one.rows_refused
            rows.update(one.rows_by_source)
            late.update(one.behind_watermark)
            for source, newest in one.max_event_ms.items():
                self.max_event_ms[source] = max(newest, self.max_event_ms.get(source, newest))
        # several operators and sinks may read one source
        self.rows_by_source = {**rows, **self.rows_by_source}
        self.behind_watermark = {**late, **self.behind_watermark}


def check_limit(job: StatefulJob, done: Execution, *, uri: str) -> None:
    """Refuse to go on with what the subtasks did.

    Args:
        uri: table of dead letters; the files are in place, and no reader sees them yet.
    """
    if job.max_dead_letters is None or not done.refused:
        return
    exceeded = job.max_dead_letters.exceeded(refused=done.refused, rows_in=sum(done.rows_by_source.values()))
    if not exceeded:
        return
    file = done.outputs.dead_letters[0]
    first = open_recorded(join(uri, file.path), file, of="dead letters").read().slice(0, 1).to_pylist()[0]
    raise DeadLetterLimitError(
        f"job '{job.name}': {exceeded}. The first one: operator '{first['operator']}', {first['position']}: "
        f"{first['error']} (row {first['row']}). Nothing of this micro-batch was committed. Repair the input or the "
        "function and run again, or raise max_dead_letters"
    )
