"""Wrongly wired jobs are refused while they are built, or by ``check``; wired as the message advises, they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from state_engine import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    CoMapFunction,
    DataStream,
    FileSink,
    FileSource,
    HashMapStateBackend,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListCheckpointed,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    SinkFunction,
    SourceFunction,
    StatefulJob,
    TimePartitions,
    Types,
    WatermarkStrategy,
)
from state_engine.core.errors import (
    ConfigurationError,
    InvalidKeyError,
    InvalidNameError,
    StatelakeError,
    ValueTypeError,
)

SINK = FileSink("/nowhere")


class Buffers(ProcessFunction, CheckpointedFunction):
    pass


class Numbers(MapFunction, ListCheckpointed):
    pass


class Rules(BroadcastProcessFunction):
    pass


RULES = MapStateDescriptor("rules", str, int)


def in_time(job: StatefulJob, name: str) -> DataStream:
    return job.from_collection([], "at timestamp", name=name, event_time="at")


def same(value: Any) -> Any:
    return value


def timed(job: StatefulJob, **time: Any) -> DataStream:
    return job.source("timed", FileSource("/nowhere", schema="at timestamp"), event_time="at", **time)


def mapped(stream: DataStream, uid: str | None = None) -> DataStream:
    return stream.map(same, output_type=int, uid=uid)


LATE = OutputTag("late", Types.LONG())
NAMES = MapStateDescriptor("names", int, str)


def to_late(job: StatefulJob, name: str = "times") -> DataStream:
    """A source with event time whose late elements go to LATE."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(same)
    numbers = job.from_collection([1], Types.LONG(), name=name, late_to=LATE)
    return numbers.assign_timestamps_and_watermarks(strategy)


def stream_of(name: str = "wires") -> tuple[StatefulJob, DataStream]:
    job = StatefulJob(name, max_parallelism=8)
    return job, job.from_collection([1], Types.INT(), name="numbers")


Build = Callable[[StatefulJob, DataStream], Any]
Refusal = tuple[Build, type[StatelakeError], str]
_TAKEN = "job 'wires': '{}' is taken: sources and operators need different names"
WHILE_BUILDING: dict[str, Refusal] = {
    "set_parallelism above max": (
        lambda j, s: mapped(s, "copies").set_parallelism(9), ConfigurationError,
        "operator 'copies': parallelism 9 is greater than max parallelism 8.*Lower the parallelism",
    ),
    "set_parallelism of nothing": (
        lambda j, s: mapped(s, "copies").set_parallelism(0), ConfigurationError,
        "operator 'copies': parallelism must be at least 1, not 0",
    ),
    "two operators of one uid": (
        lambda j, s: [mapped(s, "copies"), mapped(s, "copies")], ConfigurationError, _TAKEN.format("copies"),
    ),
    "a uid given twice later": (
        lambda j, s: [mapped(s, "copies"), mapped(s).uid("copies")], ConfigurationError, _TAKEN.format("copies"),
    ),
    "a uid of a source": (lambda j, s: mapped(s, "numbers"), ConfigurationError, _TAKEN.format("numbers")),
    "two sources of one name": (
        lambda j, s: j.from_collection([1], int, name="numbers"), ConfigurationError, _TAKEN.format("numbers"),
    ),
    "two sinks of one name": (
        lambda j, s: s.sink("out", SINK).sink("out", SINK), ConfigurationError,
        "job 'wires' has two sinks named 'out': rename one",
    ),
    "the sink of dead letters": (
        lambda j, s: s.sink("dead_letters", SINK), ConfigurationError, "'dead_letters': that is the job's own; rename",
    ),
    "a path as sink": (
        lambda j, s: s.sink("out", "/nowhere"), ConfigurationError,  # type: ignore[arg-type]
        r"sink 'out': '/nowhere' is not a sink; use DeltaSink\(path\)",
    ),
    "a callable as sink function": (
        lambda j, s: s.add_sink(print), ConfigurationError,  # type: ignore[arg-type]
        r"add_sink takes a SinkFunction, not .*; for tables use sink\(name",
    ),
    "a path as source": (
        lambda j, s: j.source("other", "/nowhere"), ConfigurationError,  # type: ignore[arg-type]
        "source 'other': '/nowhere' is not a source; use FileSource",
    ),
    "a source function without an end of its batches": (
        lambda j, s: j.source("other", SourceFunction(), output_type=int), ConfigurationError,
        "source 'other': max_rows_per_batch must say",
    ),
    "a source function without a type": (
        lambda j, s: j.source("other", SourceFunction(), max_rows_per_batch=1), ConfigurationError,
        "output_type of source 'other' is missing: declare a type",
    ),
    "options of another source": (
        lambda j, s: j.source("other", FileSource("/nowhere"), max_rows_per_batch=1), ConfigurationError,
        "source 'other': output_type and max_rows_per_batch are for a SourceFunction",
    ),
    "a watermark that is neither": (
        lambda j, s: timed(j, watermark="wall"), ConfigurationError,
        "source 'timed': watermark must be 'rows' or 'clock', not 'wall'",
    ),
    "the clock without a delay": (
        lambda j, s: timed(j, watermark="clock"), ConfigurationError,
        "source 'timed': watermark='clock' and clock_delay go together.*clock_delay='10 min'",
    ),
    "a delay without the clock": (
        lambda j, s: timed(j, clock_delay=1), ConfigurationError, "watermark='clock' and clock_delay go together",
    ),
    "a delay below zero": (
        lambda j, s: timed(j, watermark="clock", clock_delay=-1), ConfigurationError,
        "source 'timed': clock_delay must not be negative, not -1 ms",
    ),
    "the clock in time partitions": (
        lambda j, s: timed(
            StatefulJob("days", partitions=TimePartitions("at", start="2026-01-01")), watermark="clock", clock_delay=0
        ),
        ConfigurationError, "watermark='clock' is for continuous jobs.*time ends with each partition.*Leave",
    ),
    "idle at once": (
        lambda j, s: timed(j, idle_after=0), ConfigurationError, "source 'timed': idle_after must be above zero",
    ),
    "a span of time without a unit": (
        lambda j, s: timed(j, idle_after="30"), ConfigurationError, "'30' is not a span of time: write.*'30 min'",
    ),
    "a collection without a type": (
        lambda j, s: j.from_collection([1], None, name="other"), ConfigurationError,
        "type_info of from_collection is missing: declare a type",
    ),
    "an operator without a type": (
        lambda j, s: s.process(ProcessFunction(), uid="untyped"), ConfigurationError,
        "operator 'untyped': output_type is missing: declare what process gives",
    ),
    "what is no type": (
        lambda j, s: s.process(ProcessFunction(), uid="untyped", output_type=object), ConfigurationError,
        "output_type of operator 'untyped': <class 'object'> is not a supported type; use int, float",
    ),
    "a key selector without a type": (
        lambda j, s: s.key_by(same), ConfigurationError, "key_type of key_by is missing: declare a type",
    ),
    "a key selector of a list": (
        lambda j, s: mapped(s.key_by(same, key_type=list[int]), "copies"), InvalidKeyError,
        "operator 'copies': key_type of key_by: .*list.* cannot be a key. A key can be an int, float",
    ),
    "a key selector of a part that is a map": (
        lambda j, s: mapped(s.key_by(same, key_type=tuple[int, dict[str, int]]), "copies"), InvalidKeyError,
        r"operator 'copies': key_type of key_by: The field 'key\.f1' has the type map.* cannot be a key",
    ),
    "a second key selector of a list": (
        lambda j, s: s.key_by(same, key_type=int).connect(s.key_by(same, key_type=list[int])).process(
            KeyedCoProcessFunction(), uid="both", output_type=int),
        InvalidKeyError, "operator 'both': key_type of key_by: .*list.* cannot be a key",
    ),
    "a key column that a collection lacks": (
        lambda j, s: mapped(s.key_by("valu"), "copies"), ConfigurationError,
        r"key_by of operator 'copies': there is no column 'valu'; the stream has \['value'\]",
    ),
    "a key column that files lack": (
        lambda j, s: mapped(j.source("f", FileSource("/f", schema="k string")).key_by("K"), "copies"),
        ConfigurationError, r"key_by of operator 'copies': there is no column 'K'; the stream has \['k'\]",
    ),
    "a list as key column": (
        lambda j, s: mapped(j.source("f", FileSource("/f", schema="k array<int>")).key_by("k"), "copies"),
        InvalidKeyError, "operator 'copies': The column 'k' has the type array<int>, which cannot be a key",
    ),
    "a type for a column": (
        lambda j, s: s.key_by("value", key_type=int), ConfigurationError, "a column has its type already",
    ),
    "no key": (
        lambda j, s: s.key_by(), ConfigurationError, r"key_by takes names of columns, or one function.*not \(\)",
    ),
    "a number as key": (
        lambda j, s: s.key_by(5), ConfigurationError, r"key_by takes names of columns.*not \(5,\)",  # type: ignore[arg-type]
    ),
    "a keyed function without keys": (
        lambda j, s: s.process(KeyedProcessFunction(), uid="keyed", output_type=int), ConfigurationError,
        "operator 'keyed': KeyedProcessFunction is a KeyedProcessFunction, which works on keyed streams: call key_by",
    ),
    "a map function in process": (
        lambda j, s: s.process(MapFunction(), uid="maps", output_type=int), ConfigurationError,
        "operator 'maps': process takes a ProcessFunction or a KeyedProcessFunction",
    ),
    "what is no function in process": (
        lambda j, s: s.process(5, uid="five", output_type=int), ConfigurationError,  # type: ignore[arg-type]
        "operator 'five': 5 is not a function of a stream; derive it from one of",
    ),
    "a broadcast function on a keyed stream": (
        lambda j, s: s.key_by("value").connect(s.broadcast()).process(Rules(), uid="rules", output_type=int),
        ConfigurationError, "operator 'rules': Rules is a BroadcastProcessFunction, but the stream is keyed",
    ),
    "connected streams that are to be ordered": (
        lambda j, s: s.connect(s, ordered=True), ConfigurationError,  # type: ignore[call-overload]
        r"connect\(…, ordered=True\) is for a broadcast stream: .*in their total order already: leave it out",
    ),
    "ordered for a function of two": (
        lambda j, s: s.connect(s.broadcast(), ordered=True).map(CoMapFunction(), int), ConfigurationError,
        r"map: ordered=True is for a BroadcastProcessFunction; .*total order already: leave it out",
    ),
    "ordered rules without event time": (
        lambda j, s: in_time(j, "events").connect(s.broadcast(RULES), ordered=True).process(
            Rules(), uid="rules", output_type=int),
        ConfigurationError,
        r"operator 'rules': connect\(…, ordered=True\).*these sources have none: \['numbers'\]. Give each of them one",
    ),
    "ordered rules beside no event time": (
        lambda j, s: mapped(s).union(in_time(j, "events")).connect(in_time(j, "rules").broadcast(RULES), ordered=True)
        .process(Rules(), uid="judge", output_type=int),
        ConfigurationError, r"operator 'judge': .*these sources have none: \['numbers'\]",
    ),
    "what is no transform": (
        lambda j, s: s.transform(5), ConfigurationError,  # type: ignore[arg-type]
        "transform takes a function from DataFrame to DataFrame, not 5",
    ),
    "event time after an operator": (
        lambda j, s: mapped(s).assign_timestamps_and_watermarks("value"), ConfigurationError,
        "event time belongs to sources: declare it before the first operator",
    ),
    "the uid of a source": (
        lambda j, s: s.uid("other"), ConfigurationError, "uid is about the operator.*right after map, process",
    ),
    "one side output of two types": (
        lambda j, s: [stream.get_side_output(OutputTag("late", kind)) for stream in [mapped(s, "copies")]
                      for kind in (Types.INT(), Types.STRING())],
        ConfigurationError, "operator 'copies': the side output 'late' is read as .*; use one tag",
    ),
    "the name of an operator": (
        lambda j, s: mapped(s, "x" * 256), InvalidNameError, "cannot name an operator: use a text of 1 to 255",
    ),
    "the name of a sink": (
        lambda j, s: s.sink("../out", SINK), InvalidNameError, "'../out' cannot name a sink: use lower-case letters",
    ),
    "the name of a source": (
        lambda j, s: j.from_collection([1], int, name="Numbers"), InvalidNameError, "'Numbers' cannot name a source",
    ),
    "the name of a job": (
        lambda j, s: StatefulJob("a/b"), InvalidNameError, "'a/b' cannot name a job: use lower-case letters",
    ),
    "a name as late_to": (
        lambda j, s: j.from_collection([1], int, name="other", late_to="late"), ConfigurationError,
        "source 'other': late_to takes an OutputTag with the type of the elements, not 'late'",
    ),
    "another policy": (
        lambda j, s: StatefulJob("wires", on_error="skip"), ConfigurationError,
        "on_error must be 'fail' or 'dead_letter', not 'skip'",
    ),
    "the name of a backend": (
        lambda j, s: StatefulJob("wires", state_backend="rocksdb"), ConfigurationError,  # type: ignore[arg-type]
        r"job 'wires': 'rocksdb' is not a state backend; use HashMapStateBackend\(\)",
    ),
}  # fmt: skip


_UID = r"job 'wires': the operator '{}' may hold state.*give it one, for example process\(\.\.\., uid="
BY_CHECK: dict[str, tuple[Build, str]] = {
    "nothing to run": (
        lambda j, s: s, "job 'wires' has neither operators nor sinks: there is nothing to run",
    ),
    "a source that nothing reads": (
        lambda j, s: [mapped(s), j.from_collection([1], int, name="idle")],
        r"job 'wires': nothing reads the sources \['idle'\]: connect them.*or remove them",
    ),
    "an idle source without event time": (
        lambda j, s: mapped(j.from_collection([1], int, name="quiet", idle_after="1 h")).union(mapped(s)),
        "source 'quiet': idle_after, stale_after and watermark='clock' need event time: name its column, event_time=",
    ),
    "a keyed operator without uid": (
        lambda j, s: s.key_by("value").process(KeyedProcessFunction(), output_type=int), _UID.format("process_1"),
    ),
    "a CheckpointedFunction without uid": (
        lambda j, s: s.process(Buffers(), output_type=int), _UID.format("process_1"),
    ),
    "a ListCheckpointed without uid": (lambda j, s: s.map(Numbers(), output_type=int), _UID.format("map_1")),
    "a broadcast function without uid": (
        lambda j, s: s.connect(s.broadcast()).process(Rules(), output_type=int), _UID.format("process_1"),
    ),
    "late_to without event time": (
        lambda j, s: [s.map(same, int), j.from_collection([1], int, name="other", late_to=LATE).map(same, int)],
        r"job 'wires', source 'other': late_to needs event time.*source\(event_time=…\), or assign_timestamps",
    ),
    "late_to of a broadcast stream": (
        lambda j, s: s.connect(to_late(j).broadcast(NAMES)).process(Rules(), output_type=int, uid="rules"),
        "operator 'rules': it gets the source 'times' by broadcast.*remove late_to and ask ctx.is_late()",
    ),
    "late_to of a stream that every subtask gets": (
        lambda j, s: [mapped(s), to_late(j).union(to_late(j, "other")).broadcast().map(same, int, uid="all")],
        "operator 'all': it gets the source 'times' by broadcast.*or read the source twice, under two names",
    ),
    "late_to of another type than is read": (
        lambda j, s: [mapped(s), mapped(to_late(j), "copies").get_side_output(OutputTag("late", str))],
        "operator 'copies': the side output 'late' is read as string, and late_to of source 'times' gives int64",
    ),
    "late_to that is read too late": (
        lambda j, s: [mapped(s), mapped(mapped(to_late(j), "first"), "second").get_side_output(LATE)],
        "operator 'second': its side output 'late' gets no late elements of source 'times', because 'first' reads that "
        r"first: call get_side_output there, or use another tag",
    ),
}  # fmt: skip


def test_a_side_output_that_late_elements_go_to_may_be_read_elsewhere_too() -> None:
    """As long as it is read where they go, or as another operator's own."""
    job, stream = stream_of()
    first = mapped(to_late(job), "first")
    mapped(first, "second").get_side_output(LATE)
    first.get_side_output(LATE)
    mapped(stream, "other").get_side_output(LATE)
    behind = mapped(to_late(job, "a")).union(to_late(job, "b"))
    mapped(behind, "both").get_side_output(LATE)  # gets those of b
    job.check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parallelism": 9, "max_parallelism": 8}, "job 'wires': parallelism 9 is greater than max parallelism 8"),
        ({"parallelism": 0}, "job 'wires': parallelism must be 1 … 32768, got 0"),
        ({"parallelism": 0, "max_parallelism": 8}, "job 'wires': parallelism must be at least 1, not 0"),
        ({"max_parallelism": 0}, "job 'wires': max_parallelism must be 1 … 32768, got 0"),
        ({"max_parallelism": 32769}, "job 'wires': max_parallelism must be 1 … 32768, got 32769"),
    ],
)  # fmt: skip
def test_numbers_of_a_job_that_cannot_be_are_refused_with_its_name(
    options: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        StatefulJob("wires", **options)  # type: ignore[arg-type]


def test_an_element_of_a_collection_of_the_wrong_type_is_reported_with_its_source() -> None:
    with pytest.raises(ValueTypeError, match=r"source 'letters': 'a' .* is not a value of type int64"):
        stream_of()[0].from_collection([1, "a"], int, name="letters")
    with pytest.raises(
        ValueTypeError, match=r"source 'letters': field 'v': 'a' .* is not a value of type int32"
    ):
        stream_of()[0].from_collection([("a", "a")], "k string, v int", name="letters")


class KeyedRules(KeyedBroadcastProcessFunction):
    pass


ADVISED: dict[str, Build] = {
    "set_parallelism above max": lambda j, s: mapped(s, "copies").set_parallelism(8),
    "set_parallelism of nothing": lambda j, s: mapped(s, "copies").set_parallelism(1),
    "two operators of one uid": lambda j, s: [mapped(s, "copies"), mapped(s, "more")],
    "a uid given twice later": lambda j, s: [mapped(s, "copies"), mapped(s).uid("more")],
    "a uid of a source": lambda j, s: mapped(s, "copies"),
    "two sources of one name": lambda j, s: mapped(j.from_collection([1], int, name="more").union(s)),
    "two sinks of one name": lambda j, s: s.sink("out", SINK).sink("again", FileSink("/elsewhere")),
    "the sink of dead letters": lambda j, s: s.sink("letters", SINK),
    "a path as sink": lambda j, s: s.sink("out", FileSink("/nowhere")),
    "a callable as sink function": lambda j, s: s.add_sink(SinkFunction()),
    "a path as source": lambda j, s: mapped(j.source("other", FileSource("/nowhere", schema="v int")).union(s)),
    "a source function without an end of its batches": lambda j, s: mapped(
        j.source("other", SourceFunction(), output_type=int, max_rows_per_batch=1).union(s)
    ),
    "a source function without a type": lambda j, s: mapped(
        j.source("other", SourceFunction(), output_type=int, max_rows_per_batch=1).union(s)
    ),
    "options of another source": lambda j, s: mapped(
        j.source("other", FileSource("/nowhere", max_rows_per_batch=1)).union(s)
    ),
    "a watermark that is neither": lambda j, s: mapped(timed(j, watermark="rows").union(s)),
    "the clock without a delay": lambda j, s: mapped(
        timed(j, watermark="clock", clock_delay="10 min").union(s)
    ),
    "a delay without the clock": lambda j, s: mapped(
        timed(j, watermark="clock", clock_delay="10 min").union(s)
    ),
    "a delay below zero": lambda j, s: mapped(timed(j, watermark="clock", clock_delay=0).union(s)),
    "the clock in time partitions": lambda j, s: [
        mapped(s), timed(StatefulJob("days", partitions=TimePartitions("at", start="2026-01-01")))
    ],
    "idle at once": lambda j, s: mapped(timed(j, idle_after="1 ms").union(s)),
    "a span of time without a unit": lambda j, s: mapped(timed(j, idle_after="30 min").union(s)),
    "a collection without a type": lambda j, s: mapped(j.from_collection([1], int, name="other").union(s)),
    "an operator without a type": lambda j, s: s.process(ProcessFunction(), uid="typed", output_type=int),
    "what is no type": lambda j, s: s.process(ProcessFunction(), uid="typed", output_type=float),
    "a key selector without a type": lambda j, s: mapped(s.key_by(same, key_type=int), "copies"),
    "a key selector of a list": lambda j, s: mapped(s.key_by(same, key_type=float), "copies"),
    "a key selector of a part that is a map": lambda j, s: mapped(s.key_by(same, key_type=tuple[int, str]), "copies"),
    "a second key selector of a list": lambda j, s: s.key_by(same, key_type=int).connect(
        s.key_by(same, key_type=int)
    ).process(KeyedCoProcessFunction(), uid="both", output_type=int),
    "a key column that a collection lacks": lambda j, s: mapped(s.key_by("value"), "copies"),
    "a key column that files lack": lambda j, s: [
        mapped(s), mapped(j.source("f", FileSource("/f", schema="k string")).key_by("k"), "copies")
    ],
    "a list as key column": lambda j, s: [
        mapped(s), mapped(j.source("f", FileSource("/f", schema="k struct<a: int>")).key_by("k"), "copies")
    ],
    "a type for a column": lambda j, s: mapped(s.key_by("value"), "copies"),
    "no key": lambda j, s: mapped(s.key_by("value"), "copies"),
    "a number as key": lambda j, s: mapped(s.key_by(same, key_type=int), "copies"),
    "a keyed function without keys": lambda j, s: s.key_by("value").process(
        KeyedProcessFunction(), uid="keyed", output_type=int
    ),
    "a map function in process": lambda j, s: s.map(MapFunction(), uid="maps", output_type=int),
    "what is no function in process": lambda j, s: s.process(ProcessFunction(), uid="five", output_type=int),
    "a broadcast function on a keyed stream": lambda j, s: s.key_by("value").connect(
        s.broadcast(RULES)
    ).process(KeyedRules(), uid="rules", output_type=int),
    "connected streams that are to be ordered": lambda j, s: s.connect(s).map(CoMapFunction(), int),
    "ordered for a function of two": lambda j, s: s.connect(s.broadcast()).map(CoMapFunction(), int),
    "ordered rules without event time": lambda j, s: [
        mapped(s),
        in_time(j, "events").connect(in_time(j, "rules").broadcast(RULES), ordered=True).process(
            Rules(), uid="judge", output_type=int)
    ],
    "ordered rules beside no event time": lambda j, s: mapped(s).union(in_time(j, "events")).connect(
        in_time(j, "rules").broadcast(RULES)
    ).process(Rules(), uid="judge", output_type=int),
    "what is no transform": lambda j, s: mapped(s.transform(same)),
    "event time after an operator": lambda j, s: mapped(s.assign_timestamps_and_watermarks("value")),
    "the uid of a source": lambda j, s: mapped(s).uid("other"),
    "one side output of two types": lambda j, s: [
        mapped(s, "copies").get_side_output(OutputTag("late", Types.INT()))
    ],
    "the name of an operator": lambda j, s: mapped(s, "x" * 255),
    "the name of a sink": lambda j, s: s.sink("out", SINK),
    "the name of a source": lambda j, s: mapped(j.from_collection([1], int, name="more").union(s)),
    "the name of a job": lambda j, s: [StatefulJob("a_b"), mapped(s)],
    "a name as late_to": lambda j, s: mapped(to_late(j).union(s)),
    "another policy": lambda j, s: [StatefulJob("wires", on_error="dead_letter"), mapped(s)],
    "the name of a backend": lambda j, s: [
        StatefulJob("wires", state_backend=HashMapStateBackend()), mapped(s)
    ],
    "nothing to run": lambda j, s: s.sink("out", SINK),
    "a source that nothing reads": lambda j, s: mapped(j.from_collection([1], int, name="idle").union(s)),
    "an idle source without event time": lambda j, s: [
        mapped(s), mapped(timed(j, idle_after="1 h"))
    ],
    "a keyed operator without uid": lambda j, s: s.key_by("value").process(
        KeyedProcessFunction(), output_type=int, uid="averages"
    ),
    "a CheckpointedFunction without uid": lambda j, s: s.process(Buffers(), output_type=int, uid="averages"),
    "a ListCheckpointed without uid": lambda j, s: s.map(Numbers(), output_type=int).uid("averages"),
    "a broadcast function without uid": lambda j, s: s.connect(s.broadcast(RULES)).process(
        Rules(), output_type=int, uid="averages"
    ),
    "late_to without event time": lambda j, s: [mapped(s), mapped(to_late(j))],
    "late_to of a broadcast stream": lambda j, s: s.connect(
        in_time(j, "times").broadcast(NAMES)
    ).process(Rules(), output_type=int, uid="rules"),
    "late_to of a stream that every subtask gets": lambda j, s: [
        mapped(s), mapped(to_late(j)), in_time(j, "times_again").broadcast().map(same, int, uid="all")
    ],
    "late_to of another type than is read": lambda j, s: [
        mapped(s), mapped(to_late(j), "copies").get_side_output(LATE)
    ],
    "late_to that is read too late": lambda j, s: [
        mapped(s),
        [first := mapped(to_late(j), "first"), first.get_side_output(LATE), mapped(first, "second")],
    ],
}  # fmt: skip


def checked(build: Build) -> Build:
    def built(job: StatefulJob, stream: DataStream) -> None:
        build(job, stream)
        job.check()

    return built


REFUSED = WHILE_BUILDING | {
    what: (checked(build), ConfigurationError, message) for what, (build, message) in BY_CHECK.items()
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_and_its_advice(what: str) -> None:
    build, kind, message = REFUSED[what]
    with pytest.raises(kind, match=f"(?s){message}"):
        build(*stream_of())
    checked(ADVISED[what])(*stream_of())
