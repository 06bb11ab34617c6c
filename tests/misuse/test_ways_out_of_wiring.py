"""For each job that is refused while it is built or checked: built as the message advises, it is taken."""

from __future__ import annotations

import pytest

from state_engine import (
    CoMapFunction,
    DataStream,
    FileSink,
    FileSource,
    HashMapStateBackend,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    SinkFunction,
    SourceFunction,
    StatefulJob,
    TimePartitions,
    Types,
)
from state_engine.core.errors import ConfigurationError
from tests.misuse.test_wiring import (
    BY_CHECK,
    LATE,
    NAMES,
    RULES,
    SINK,
    WHILE_BUILDING,
    Buffers,
    Build,
    Numbers,
    Rules,
    in_time,
    mapped,
    same,
    stream_of,
    timed,
    to_late,
)


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
def test_what_is_refused_is_taken_when_it_is_wired_as_advised(what: str) -> None:
    build, kind, message = REFUSED[what]
    with pytest.raises(kind, match=f"(?s){message}"):
        build(*stream_of())
    checked(ADVISED[what])(*stream_of())
