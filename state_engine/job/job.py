"""``StatefulJob``: sources, operators and sinks, wired into one graph.

A job is configuration: building it reads nothing and starts nothing. Mirrors Flink's ``StreamExecutionEnvironment`` as
far as it makes sense in micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from state_engine.core.checkpoints.clock_jumps import MAX_JUMP
from state_engine.core.checkpoints.compaction_policy import CompactionPolicy
from state_engine.core.checkpoints.dead_letters import LETTERS, DeadLetterLimit, limit_of
from state_engine.core.choices import check_choice
from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.checkpointed import has_operator_state
from state_engine.core.functions.function_calls import takes_broadcast
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.source_function import SourceFunction
from state_engine.core.keys.key_groups import check_parallelism, default_max_parallelism
from state_engine.core.names import check_name, check_text_name
from state_engine.core.time.partitions import TimePartitions
from state_engine.core.types.durations import Span, to_milliseconds
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import to_type
from state_engine.job.changing_streams import check_late_to
from state_engine.job.code_version import code_version
from state_engine.job.connected_streams import check_merged_timers
from state_engine.job.graph import Node, OperatorNode, PublishedNode, SinkNode, SourceNode, upstream
from state_engine.job.late_outputs import check_late_outputs
from state_engine.job.stream import column_names
from state_engine.job.streams import DataStream
from state_engine.job.time_policies import check_time_policies, time_policy, warn_of_outages
from state_engine.machine.defects import guarded_class
from state_engine.sinks.bounds import Bound, ShareOfLast
from state_engine.sources.base import Source
from state_engine.sources.changes.change_format import ChangeFormat
from state_engine.sources.changes.decoded_source import decoded
from state_engine.sources.changes.snapshots import SnapshotFormat, snapshots_of
from state_engine.sources.collection import CollectionSource
from state_engine.sources.function import FunctionSource
from state_engine.sources.output_type import OutputType
from state_engine.sources.partitioned_input import PartitionedSource
from state_engine.state_backends.heap_backend import HashMapStateBackend
from state_engine.state_backends.state_backend import StateBackend
from state_engine.state_tables.base import StateTable

OnError = Literal["fail", "dead_letter"]
OnBreach = Literal["stop", "hold"]
"""What follows where a micro-batch breaks a gate."""


@dataclass(frozen=True)
class Gate:
    """A bound that each micro-batch must meet before readers see it; see ``StatefulJob.gate``."""

    name: str
    bound: Bound
    otherwise: OnBreach


@guarded_class
class StatefulJob:
    """A job: a name, and a graph of sources, operators and sinks.

    Args:
        name: ``[a-z][a-z0-9_]*``; also the directory of its state.
        parallelism: number of subtasks of each operator that has no number of its own.
        max_parallelism: number of key groups, fixed for the life of the state; by default what Flink would take.
        on_error: ``fail``: a bad row or a raising function fails the batch, nothing is committed; ``dead_letter``:
            the row and its error are kept in the table ``dead_letters`` and the batch goes on.
        max_dead_letters: how many rows a micro-batch may refuse under ``dead_letter``: a number, or a
            ``DeadLetterLimit`` with a share; a batch that refuses more is not committed. None for no limit.
        code_version: recorded with every checkpoint; by default a digest of the source of the modules that the job's
            functions are from, as this process loaded them.
        state_backend: where subtasks keep their working state; ``HashMapStateBackend()`` by default.
        compaction: when a run compacts an operator's state, between its micro-batches; None for never, where
            ``engine.compact`` is called, or scheduled, by itself.
        partitions: slices of event time, each of which is one micro-batch; None for a continuous job, which takes
            what comes.
        max_clock_jump: how far ahead of the last checkpoint the clock of a run may be; beyond, it is refused. None:
            however far.

    Example:
        >>> StatefulJob("plane_delays", parallelism=2).max_parallelism
        128
    """

    def __init__(
        self,
        name: str,
        *,
        parallelism: int = 1,
        max_parallelism: int | None = None,
        on_error: OnError | str = "fail",
        code_version: str = "",
        state_backend: StateBackend | None = None,
        compaction: CompactionPolicy | None = CompactionPolicy(),  # noqa: B008 - it is frozen
        partitions: TimePartitions | None = None,
        max_dead_letters: DeadLetterLimit | int | None = None,
        max_clock_jump: Span | None = MAX_JUMP,
    ) -> None:
        self.name = check_name(name, what="job")
        self.parallelism = parallelism
        self.max_parallelism = _max_parallelism(parallelism, max_parallelism, what=f"job '{name}'")
        self.on_error: OnError = check_choice(on_error, get_args(OnError), what="on_error")
        self.max_dead_letters = limit_of(max_dead_letters)
        if self.max_dead_letters is not None and on_error != "dead_letter":
            raise ConfigurationError("max_dead_letters needs on_error='dead_letter'")
        self.max_clock_jump_ms = None if max_clock_jump is None else to_milliseconds(max_clock_jump)
        self._code_version = code_version
        if compaction is not None and not isinstance(compaction, CompactionPolicy):
            raise ConfigurationError(f"compaction must be a CompactionPolicy or None, not {compaction!r}")
        self.compaction = compaction
        if partitions is not None and not isinstance(partitions, TimePartitions):
            raise ConfigurationError(f"partitions must be TimePartitions or None, not {partitions!r}")
        self.partitions = partitions
        self.state_backend = HashMapStateBackend() if state_backend is None else state_backend
        if not isinstance(self.state_backend, StateBackend):
            raise ConfigurationError(
                f"job '{name}': {state_backend!r} is not a state backend; use HashMapStateBackend(), "
                "EmbeddedRocksDBStateBackend() or CustomStateBackend(…)"
            )
        self.sources: dict[str, SourceNode] = {}
        self.operators: dict[str, OperatorNode] = {}
        self.sinks: dict[str, SinkNode] = {}
        self.published: dict[str, PublishedNode] = {}
        self.gates: dict[str, Gate] = {}

    @property
    def code_version(self) -> str:
        """What the job states, or a digest of the code that would run now: see ``job.code_version``."""
        return self._code_version or code_version(self)

    def source(
        self,
        name: str,
        source: Source | SourceFunction,
        *,
        order_by: Sequence[str] = (),
        event_time: str | None = None,
        max_out_of_orderness: Span = 0,
        idle_after: Span | None = None,
        watermark: Literal["rows", "clock"] = "rows",
        clock_delay: Span | None = None,
        stale_after: Span | None = None,
        output_type: TypeLike | None = None,
        max_rows_per_batch: int | None = None,
        late_to: OutputTag | None = None,
        format: ChangeFormat | SnapshotFormat | None = None,
    ) -> DataStream:
        """Add a source.

        Args:
            name: unique among sources and operators.
            source: where rows come from; a ``SourceFunction`` needs the next to last two arguments.
            order_by: columns of the total order of the rows, which must be there where the stream is keyed; ties
                are broken by file and row. Without it, the order of files and their rows.
            event_time: column (timestamp or date) that holds the event time, there where the stream is keyed.
            max_out_of_orderness: how late rows may come: a timedelta, a Duration, milliseconds, or text ("5 min").
            idle_after: after this time without a row, by the clock of the micro-batches, the source is idle: it holds
                back no other one until its next row. None: it never is.
            watermark: ``rows``: only rows move it; ``clock``: at the end of a micro-batch it is at least the clock less
                ``clock_delay``, also where no row came. Time does not pass rows that a bound leaves to a later batch.
            clock_delay: how long after its event time a row may come, beside ``watermark="clock"``.
            stale_after: after this time without a row, by the clock of the micro-batches, the source is not quiet but
                down: event time waits for it. It is not idle then, and its watermark does not follow the clock until
                its rows have caught up. None: silence means nothing.
            output_type: of what a ``SourceFunction`` collects.
            max_rows_per_batch: after this many rows a ``SourceFunction`` must stop.
            late_to: side output that late elements go to: each operator that reads the source, directly or through
                transforms and unions, sends those that its watermark has passed there, and not to its function. Read
                it with ``get_side_output(late_to)`` of that operator; else they are dropped, and counted.
            format: what the rows mean, where they are operations of a feed: the elements are then the rows inserted,
                updated and deleted, and the stream changes. Its ``sequence`` is the last column of ``order_by``.
                Or ``SnapshotFormat``, where files are full copies of a table: the elements are what changed.
        """
        self._new_name(check_name(name, what="source"))
        scalar, declared = False, None
        if isinstance(source, SourceFunction):
            made = OutputType.of(to_type(output_type, parameter=f"output_type of source '{name}'"))
            source, scalar = FunctionSource(name, source, made, max_rows_per_batch), made.scalar
            declared = made
        elif output_type is not None or max_rows_per_batch is not None:
            raise ConfigurationError(
                f"source '{name}': output_type and max_rows_per_batch are for a SourceFunction; other sources take "
                "such things themselves"
            )
        if not isinstance(source, Source):
            raise ConfigurationError(
                f"source '{name}': {source!r} is not a source; use FileSource, DeltaSource, …"
            )
        if isinstance(format, SnapshotFormat):
            source = snapshots_of(name, source, format)
        elif format is not None:
            source, declared, scalar = decoded(name, source, format), None, False
            order_by = [*order_by, *format.order_after(order_by)]
        check_late_to(source, late_to, name=name)
        if self.partitions is not None and isinstance(format, SnapshotFormat):
            raise ConfigurationError(
                f"source '{name}': snapshots are compared one after the other, and a time partition has rows of its "
                "own time alone: leave partitions out of the job"
            )
        if self.partitions is not None:
            keep_refused = self.on_error == "dead_letter"
            source = PartitionedSource(
                name, source, self.partitions, keep_refused=keep_refused, job=self.name
            )
        delay_ms = to_milliseconds(max_out_of_orderness)
        order = column_names(order_by, what=f"source '{name}': order_by")
        if event_time is not None:
            column_names([event_time], what=f"source '{name}': event_time")
        if late_to is not None and not isinstance(late_to, OutputTag):
            raise ConfigurationError(
                f"source '{name}': late_to takes an OutputTag with the type of the elements, not {late_to!r}"
            )
        node = SourceNode(name, source, order, event_time, delay_ms, scalar, declared, late_to=late_to)
        node.time_policy = time_policy(name, idle_after, watermark, clock_delay, stale_after, self.partitions)
        warn_of_outages(node)
        self.sources[name] = node
        return DataStream(self, node)

    def from_collection(
        self,
        elements: Iterable[Any],
        type_info: TypeLike,
        *,
        name: str = "collection",
        changing: bool = False,
        **options: Any,
    ) -> DataStream:
        """Add a source that gives a list of elements, in order; for tests.

        Args:
            elements: values, or rows.
            type_info: their type.
            changing: whether elements have kinds: Rows of a kind, ``Row.of_kind(RowKind.DELETE, id=7)``, or pairs of a
                kind and an element, ``(RowKind.DELETE, 7)``; anything else is an insert.
            name, options: as for ``source``; also ``max_rows_per_batch``.
        """
        made = OutputType.of(to_type(type_info, parameter="type_info of from_collection"))
        source = CollectionSource(
            name,
            list(elements),
            made,
            max_rows_per_batch=options.pop("max_rows_per_batch", None),
            changing=changing,
        )
        stream = self.source(name, source, **options)
        if options.get("format") is None:
            self.sources[name].scalar, self.sources[name].declared = made.scalar, made
        return stream

    def check(self) -> None:
        """Refuse a job that would read something and do nothing with it, or do nothing at all, or lose its state."""
        if not self.operators and not self.sinks:
            raise ConfigurationError(
                f"job '{self.name}' has neither operators nor sinks: there is nothing to run"
            )
        used = {node.name for node in self.nodes() if isinstance(node, SourceNode)}
        unused = sorted(set(self.sources) - used)
        if unused:
            raise ConfigurationError(
                f"job '{self.name}': nothing reads the sources {unused}: connect them to an operator or a sink, or "
                "remove them"
            )
        check_time_policies(self.sources.values())
        for operator in self.operators.values():
            function = operator.function
            stateful = operator.keyed or has_operator_state(function) or takes_broadcast(function)
            if stateful and not operator.explicit_uid:
                raise ConfigurationError(
                    f"job '{self.name}': the operator '{operator.uid}' may hold state, which is found by the "
                    "operator's uid: give it one, for example process(..., uid='averages')"
                )
        check_late_outputs(self.name, self.sources.values(), list(self.operators.values()))
        check_merged_timers(self.name, self.nodes())

    def nodes(self) -> Iterator[Node]:
        """All that operators and sinks are or read, each node once."""
        return upstream(*self.operators.values(), *(s.parent for s in self.sinks.values()))

    def stream(self, node: Node) -> DataStream:
        """The stream that a node of the job makes."""
        return DataStream(self, node)

    def parallelism_of(self, operator: OperatorNode) -> int:
        """Number of subtasks of an operator."""
        return self.parallelism if operator.parallelism is None else operator.parallelism

    def check_parallelism(self, parallelism: int, *, what: str) -> None:
        """Refuse a number of subtasks. Raises ConfigurationError, naming ``what``."""
        _max_parallelism(parallelism, self.max_parallelism, what=what)

    def new_uid(self, method: str) -> str:
        """A uid for an operator whose author gave none: the method and a number."""
        number = 1
        while f"{method}_{number}" in (self.sources | self.operators):
            number += 1
        return f"{method}_{number}"

    def gate(self, name: str, bound: Bound, otherwise: OnBreach = "stop") -> None:
        """Judge each micro-batch by what it has staged for sinks and states, before anything of it is committed.

        Of a published table, of a sink with ``key=`` and of a state, these are the entries that the micro-batch
        changes, as rows of the table. A bound reads staged files on the driver: of ``NoKeyTwice`` and ``SameSum`` the
        columns that they name. While
        the next micro-batch of a run may begin beside the last steps of this one, it does not in a job with gates.

        Args:
            name: of the gate; unique in the job.
            bound: ``RowsBetween``, ``ShareOfLast``, ``NoKeyTwice`` or ``SameSum``; on sinks, published tables or keyed
                states, ``operator.state``, that the job has already. ``ShareOfLast`` is for sinks without ``key=``.
            otherwise: ``stop`` ends the run with ``GateError``, and nothing of the micro-batch is committed. ``hold``
                commits it on a branch ``held_<id>``, which no reader sees, and ends the run with ``GateError``; until
                somebody promotes or drops the branch, or promotes another one, each run ends at once.

        Raises:
            ConfigurationError: the name is taken; a sink is not there, or its files have no columns to read; or
                ``hold`` stands in a job with time partitions.
        """
        where = f"gate '{check_name(name, what='gate')}'"
        check_choice(otherwise, get_args(OnBreach), what=f"otherwise of {where}")
        if name in self.gates:
            raise ConfigurationError(f"job '{self.name}' has two gates named '{name}': rename one")
        if not isinstance(bound, Bound):
            raise ConfigurationError(
                f"{where}: {bound!r} is not a bound; use RowsBetween, ShareOfLast, NoKeyTwice or SameSum"
            )
        if otherwise == "hold" and self.partitions is not None:
            raise ConfigurationError(
                f"{where}: hold is for continuous jobs: a partition that is held would be run again by each backfill. "
                "Use otherwise='stop'"
            )
        for sink, columns in bound.columns.items():
            if judged_state(self, sink) is not None:
                if isinstance(bound, ShareOfLast):
                    raise ConfigurationError(
                        f"{where}: '{sink}' shows a state, and a checkpoint does not count its changed entries: use "
                        "RowsBetween, or ShareOfLast on a sink of the stream before it"
                    )
                continue
            if sink not in self.sinks:
                raise ConfigurationError(
                    f"{where}: job '{self.name}' stages nothing for a sink '{sink}', but for "
                    f"{[*self.sinks, *self.published]}. Declare the sink or table before the gate; a state is named "
                    "operator.state"
                )
            if columns != () and getattr(self.sinks[sink].sink, "format", "parquet") == "csv":
                raise ConfigurationError(
                    f"{where}: sink '{sink}' writes CSV, whose columns a gate does not read: use RowsBetween or "
                    "ShareOfLast, or FileSink(…, format='parquet')"
                )
        self.gates[name] = Gate(name, bound, otherwise)

    def add_operator(self, operator: OperatorNode) -> None:
        """Add an operator under its uid."""
        self._new_name(check_text_name(operator.uid, what="operator"))
        self.operators[operator.uid] = operator

    def rename(self, operator: OperatorNode, uid: str) -> None:
        """Give an operator another uid; the order of operators stays."""
        if uid != operator.uid:
            self._new_name(check_text_name(uid, what="operator"))
        operator.uid, operator.explicit_uid = uid, True
        self.operators = {o.uid: o for o in self.operators.values()}

    def check_output_name(self, name: str, *, what: str) -> None:
        """Refuse a name that another sink or published table of the job has, or that none can have."""
        check_name(name, what=what)
        if name == "dead_letters":
            raise ConfigurationError(
                f"a {what} cannot be named 'dead_letters': that is the job's own; rename it"
            )
        if name in self.sinks or name in self.published:
            raise ConfigurationError(f"job '{self.name}' has two sinks named '{name}': rename one")

    def check_table(self, name: str, table: StateTable) -> None:
        """Refuse a table that shows another state of the job."""
        for other in self.published.values():
            if other.table.shown == table.shown:
                raise ConfigurationError(
                    f"published table '{name}': {table.shown} is the published table '{other.name}' already, and a "
                    "table shows one state: give it a place of its own"
                )

    def _new_name(self, name: str) -> None:
        if name == LETTERS:
            raise ConfigurationError(f"job '{self.name}': '{name}' is the job's own; choose another name")
        if name in self.sources or name in self.operators:
            raise ConfigurationError(
                f"job '{self.name}': '{name}' is taken: sources and operators need different names"
            )

    def __repr__(self) -> str:
        return f"StatefulJob({self.name!r}, operators={list(self.operators)}, sinks={list(self.sinks)})"


def _max_parallelism(parallelism: int, declared: int | None, *, what: str) -> int:
    """The number of key groups that was declared, or the default one; ConfigurationError where it does not fit."""
    try:
        max_parallelism = default_max_parallelism(parallelism) if declared is None else declared
        check_parallelism(max_parallelism=max_parallelism, parallelism=parallelism)
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}") from None
    return max_parallelism


class JudgedState(NamedTuple):
    """A state that a gate looks at; ``map_key`` as in ``publish_state``."""

    operator: str
    state: str
    map_key: str | None = "map_key"


def judged_state(job: StatefulJob, name: str) -> JudgedState | None:
    """The state that a name stands for; None where it is a sink's, or nothing's.

    Example:
        >>> from state_engine import FileSource, StatefulJob
        >>> job = StatefulJob("balances")
        >>> rows = job.source("rows", FileSource("/in", schema="account string, cents bigint"))
        >>> _ = rows.key_by("account").sum("cents", uid="sums")
        >>> judged_state(job, "sums.rolling"), judged_state(job, "gone.rolling")
        (JudgedState(operator='sums', state='rolling', map_key='map_key'), None)
    """
    if name in job.sinks:
        return None
    table = job.published.get(name)
    if table is not None:
        return JudgedState(table.operator.uid, table.state, table.map_key)
    uids = [uid for uid, node in job.operators.items() if node.keyed and name.startswith(f"{uid}.")]
    if not uids:
        return None
    uid = max(uids, key=len)
    return JudgedState(uid, name.removeprefix(f"{uid}."))
