"""What the code declares of inputs and time partitions, and what a plan says of another declaration."""

from __future__ import annotations

from typing import Any

import pytest

from state_engine import (
    FileSource,
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    StatefulJob,
    TimePartitions,
    Types,
)
from state_engine.code_changes.part_changes import changed
from state_engine.microbatch.declared_parts import DeclaredParts
from state_engine.microbatch.findings import Part
from state_engine.testing import CollectSink

SCHEMA = "k string, at timestamp, born timestamp"
RULES = MapStateDescriptor("rules", Types.STRING(), Types.STRING())


class Follow(KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield (value.k,)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None: ...


def with_rules(**options: Any) -> StatefulJob:
    job = StatefulJob("ruled")
    rows, rules = (
        job.source(name, FileSource(f"/{name}", schema=SCHEMA), event_time="at") for name in ("rows", "rules")
    )
    both = rows.key_by("k").connect(rules.broadcast(RULES), **options)
    both.process(Follow(), "k string", uid="follow").sink("out", CollectSink())
    return job


def in_partitions(**options: Any) -> StatefulJob:
    given = {"column": "at", "start": "2026-01-01", **options}
    job = StatefulJob("daily", partitions=TimePartitions(**given))
    job.source("rows", FileSource("/rows", schema=SCHEMA)).sink("out", CollectSink())
    return job


@pytest.mark.parametrize(
    ("part", "before", "after", "verdict", "text"),
    [
        (
            Part("operator", "follow"), with_rules(), with_rules(ordered=True), "replay",
            "way of its inputs to subtasks: none, broadcast, before others → none, broadcast, in order",
        ),
        (
            Part("job", "daily"), in_partitions(), in_partitions(every="hour"), "continues",
            "time partitions: every: day → hour, from the next partition on; those that were run stay as they are",
        ),
        (
            Part("job", "daily"), in_partitions(), in_partitions(timezone="Europe/Rome", late="next"), "continues",
            "time partitions: late: warn → next, timezone: UTC → Europe/Rome, from the next partition on; "
            "those that were run stay as they are",
        ),
        (Part("source", "rows"), in_partitions(), in_partitions(late="next"), "same", ""),
        (
            Part("source", "rows"), in_partitions(), in_partitions(column="born"), "replay",
            "event time: at → born",
        ),
        (Part("operator", "follow"), with_rules(), with_rules(), "same", ""),
        (Part("job", "daily"), in_partitions(), in_partitions(), "same", ""),
    ],
)  # fmt: skip
def test_another_declaration(
    part: Part, before: StatefulJob, after: StatefulJob, verdict: str, text: str
) -> None:
    was, now = (DeclaredParts.of_text(DeclaredParts.of(job).text()) for job in (before, after))
    plan = changed(part, was.parts[part], now.parts[part], comparable=True)
    assert (plan.verdict, plan.text) == (verdict, text)


def test_what_was_not_recorded_is_not_compared() -> None:
    part, now = Part("operator", "follow"), DeclaredParts.of(with_rules(ordered=True)).parts
    older = {name: value for name, value in now[part].items() if name != "sent"}
    assert changed(part, older, now[part], comparable=True).verdict == "same"
