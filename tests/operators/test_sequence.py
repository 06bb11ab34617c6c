"""Sequences of rows: examples of Flink's pattern tests, and random streams beside a model that knows all rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from state_engine import (
    ChangeFormat,
    DeltaStateTable,
    FileSource,
    OutputTag,
    StatefulJob,
    Tumbling,
    count,
    step,
)
from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.operators.lateness import Lateness
from state_engine.operators.sequence import Sequences, SequenceSettings
from state_engine.testing import CollectSink, KeyedHarness, run_in_memory
from tests.operators.any_cut import CUTS, EVERYWHERE, at_any_cut
from tests.operators.test_over import accepted_rows

ROW = "k string, v string, at bigint"
LATE = OutputTag("late", ROW)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Given = tuple[str, str | None, int]


def sequences(*steps: Any, within: int = 1000, lateness: int = 0, **more: Any) -> Sequences:
    by = {"by": "v"} if any(isinstance(one, str) for one in steps) else {}
    return Sequences(ROW, SequenceSettings.of(steps, within, **by, **more), Lateness(lateness, LATE))


def options(parallelism: int = 1, backend: Any = None, **given: Any) -> dict[str, Any]:
    by: dict[str, Any] = {"key_by": lambda row: row[0], "timestamp_of": lambda row: row[2]}
    return {**by, "parallelism": parallelism, "backend": backend, **given}


def plain(output: Any) -> tuple[Any, ...]:
    """An output with times in milliseconds, without its key."""
    return tuple(
        (one - EPOCH) // timedelta(milliseconds=1) if isinstance(one, datetime) else one for one in output[1:]
    )


A_B = ("a", "b")
VECTORS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str, list[Any]]] = {
    "strict": (A_B, {"strict": True}, "a3 b5", [(3, 5)]),
    "strict, another row": (A_B, {"strict": True}, "a3 c4 b5", []),
    "strict, later": (A_B, {"strict": True}, "a1 c2 a3 b4", [(3, 4)]),
    "relaxed": (A_B, {}, "a3 c4 b5", [(3, 5)]),
    "one after the other": (A_B, {}, "a1 b2 a3 b4", [(1, 2), (3, 4)]),
    "the first wins": (A_B, {}, "a1 a2 b3", [(1, 3)]),
    "overlapping": (A_B, {"overlapping": True}, "a1 a2 b3", [(1, 3), (2, 3)]),
    "times": (("a",) * 3, {"strict": True}, "a1 a2 a3 a4 a5 a6", [(1, 2, 3), (4, 5, 6)]),
    "times, overlapping": (
        ("a",) * 3, {"strict": True, "overlapping": True}, "a1 a2 a3 a4 a5 a6",
        [(1, 2, 3), (2, 3, 4), (3, 4, 5), (4, 5, 6)],
    ),
    "any arrival": (("view", "cart", "buy"), {}, "view10 buy30 cart20", [(10, 20, 30)]),
    "the end is excluded": (A_B, {"within": 10}, "a1 b11 a20 b29", [(20, 29)]),
    "incomplete": (
        ("start", "middle", "end"), {"within": 10, "incomplete": True},
        "start1 start2 middle3 foobar4 end11 end13", [(1, 3, None, 2), (2, 3, 11, 3)],
    ),
    "incomplete, without another row": (A_B, {"within": 10, "incomplete": True}, "a1", [(1, None, 1)]),
    "ties in the total order": (A_B, {}, "b5 a5 b5", [(5, 5)]),
    "times before 1970": (A_B, {}, "b-3 a-9", [(-9, -3)]),
    "chosen by a function": (
        (step("low", lambda row: row.at < 5), step("b", lambda row: row.v == "b")), {}, "b7 a6 a4", [(4, 7)],
    ),
    "a column of the last row": (A_B, {"take": ("v",), "incomplete": True, "within": 5}, "a1 b2 a3", [
        (1, 2, 2, "b"), (3, None, 1, "a")]),
}  # fmt: skip


def rows_of(text: str) -> list[Given]:
    parts = [word.replace("-", " -") if "-" in word else word for word in text.split()]
    return [
        ("k", part.rstrip("-0123456789 "), int(part[len(part.rstrip("-0123456789 ")) :])) for part in parts
    ]


@EVERYWHERE
@CUTS
@pytest.mark.parametrize("name", VECTORS)
def test_examples_with_a_restore_between_every_two_batches(
    name: str, size: int, backend: Any, parallelism: int
) -> None:
    steps, more, text, expected = VECTORS[name]
    given, outputs = options(parallelism=parallelism, backend=backend), []
    run, rows = KeyedHarness(sequences(*steps, **more), **given), rows_of(text)
    for at in range(0, len(rows), size):
        outputs += run.process(rows[at : at + size])
        run = KeyedHarness.restored(sequences(*steps, **more), run.snapshot(), **given)
    outputs += run.drain()
    assert [plain(output) for output in outputs] == expected
    assert run.state("waiting") == run.state("partial") == {}


def test_an_incomplete_sequence_has_the_time_at_which_it_runs_out() -> None:
    run = KeyedHarness(sequences("a", "b", within=10, incomplete=True, lateness=5), **options())
    run.process([("k", "a", 1)])
    run.set_watermark(15)
    assert run.process([]) == []
    run.set_watermark(16)
    assert [plain(one) for one in run.process([])] == [(1, None, 1)]
    assert run.output_timestamps == [11]


def test_a_late_row_is_of_no_sequence() -> None:
    run = KeyedHarness(sequences("a", "b", lateness=3), **options())
    run.process([("k", "b", 9)])
    run.set_watermark(8)
    run.process([("k", "a", 5), ("k", "a", 6)])
    assert [tuple(row) for row in run.side_output(LATE)] == [("k", "a", 5)]
    assert run.metrics["too_late"] == 1
    assert [plain(one) for one in run.drain()] == [(6, 9)]


# -- random streams ------------------------------------------------------------------------------------------------

BOUND = 3


def stream(seed: int) -> list[Given]:
    chance = random.Random(seed)
    newest, rows = chance.choice([-30, 0, 10_000]), []
    for _ in range(45):
        newest += chance.choice([0, 0, 1, 2, 4, 15])
        behind = chance.choice([0, 0, 1, BOUND, BOUND + 1, 8])
        rows.append((chance.choice("xy"), chance.choice(["a", "a", "b", "c", None]), newest - behind))
    return rows


def model(
    rows: list[Given], steps: str, within: int, *, strict: bool, overlapping: bool
) -> tuple[list[Any], list[Any]]:
    """Complete sequences in the order of their ends, and incomplete ones, from all rows of a key in order.

    For each start on its own: which rows it would take. Then the earliest start of each end wins, and hides what began
    before that end.
    """
    paths = []
    for start, row in enumerate(rows):
        if row[1] != steps[0]:
            continue
        path, at, broken = [start], start + 1, False
        while at < len(rows) and len(path) < len(steps) and rows[at][2] - row[2] < within and not broken:
            if rows[at][1] == steps[len(path)]:
                path.append(at)
            elif strict:
                broken = True
            at += 1
        paths.append((path, broken))
    complete, incomplete, hidden_until = [], [], -1
    ends = sorted(path[-1] for path, _ in paths if len(path) == len(steps))
    taken = []
    for end in dict.fromkeys(ends):
        of_end = [
            p
            for p, _ in paths
            if len(p) == len(steps) and p[-1] == end and (overlapping or p[0] > hidden_until)
        ]
        taken += of_end if overlapping else of_end[:1]
        if of_end and not overlapping:
            hidden_until = end
    cuts = [path[-1] for path in taken]
    for path, broken in paths:
        if len(path) == len(steps) or broken:
            continue
        out = rows[path[0]][2] + within
        if not overlapping and any(path[0] <= cut and rows[cut][2] < out for cut in cuts):
            continue  # a complete one ended before it ran out
        incomplete.append((out, path))
    complete = [tuple(rows[at][2] for at in path) for path in taken]
    return complete, [(out, *(rows[at][2] for at in path)) for out, path in sorted(incomplete)]


SEEDS = [
    range(3),
    pytest.param(range(3, 20), marks=pytest.mark.more),
    pytest.param(range(20, 270), marks=pytest.mark.long),
]


@pytest.mark.parametrize("seeds", SEEDS, ids=["few", "more", "many"])
@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_any_stream_gives_the_sequences_of_the_model(strict: bool, overlapping: bool, seeds: range) -> None:
    for seed in seeds:
        chance, rows = random.Random(seed), stream(seed)
        lateness, steps, within = (
            chance.choice([0, 5]),
            chance.choice(["ab", "abc", "aab"]),
            chance.choice([3, 12, 60]),
        )
        make = partial(
            sequences, *steps, within=within, lateness=lateness, strict=strict, overlapping=overlapping, incomplete=True
        )  # fmt: skip
        by = partial(options, max_out_of_orderness_ms=BOUND)
        ran = at_any_cut(make, rows, chance, by, late=LATE, sizes=(1, 3, 10, 45))
        accepted = accepted_rows(rows, lateness, BOUND)
        assert len(ran.late) == len(rows) - len(accepted)
        for key in "xy":
            mine = [
                row
                for _, row in sorted(
                    (one for one in accepted if one[1][0] == key), key=lambda one: (one[1][2], one[0])
                )
            ]
            complete, incomplete = model(mine, steps, within, strict=strict, overlapping=overlapping)
            results = [plain(one) for one in ran.outputs if one[0] == key]
            assert [one[:-1] for one in results if one[-1] == len(steps)] == complete, seed
            left = sorted((one[0] + within, *one[: one[-1]]) for one in results if one[-1] < len(steps))
            assert left == sorted(incomplete), seed
        assert ran.run.state("waiting") == ran.run.state("partial") == {}


# -- jobs ----------------------------------------------------------------------------------------------------------

TYPED = "k string, v string, at timestamp, n bigint"
NOWHERE = FileSource("/nowhere", schema=TYPED)


def keyed_rows(job: StatefulJob, source: Any = NOWHERE, **given: Any) -> Any:
    return job.source("rows", source, **{"event_time": "at", "max_out_of_orderness": 3, **given}).key_by("k")


def at(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def test_a_job_has_typed_results_and_a_window_behind_takes_each_in_time() -> None:
    job = StatefulJob("funnel", parallelism=2)
    results = keyed_rows(job).sequence(
        "a", "b", by="v", within=10, incomplete=True, take=["n"], lateness=4, uid="funnel"
    )
    results.key_by("k").window(Tumbling(1000)).aggregate(uid="windows", n=count("b_at")).sink(
        "windows", CollectSink()
    )
    results.sink("results", CollectSink())
    given = [
        ("k", "a", at(1), 7),
        ("k", "b", at(9), 8),
        ("k", "a", at(30), 9),
        ("l", "a", at(900), 1),
        ("k", "c", at(2500), 0),
    ]
    with run_in_memory(job) as run:
        for row in given:
            run.process({"rows": [row]})
        run.process(drain=True)
        results = [row.as_dict() for row in run.sink("results")]
        assert results == [
            {"k": "k", "a_at": at(1), "b_at": at(9), "steps": 2, "n": 8},
            {"k": "k", "a_at": at(30), "b_at": None, "steps": 1, "n": 9},
            {"k": "l", "a_at": at(900), "b_at": None, "steps": 1, "n": 1},
        ]
        assert sorted((k, n) for k, _, _, n in run.sink("windows")) == [("k", 1), ("l", 0)]
        assert sum(row.metrics.get("windows.too_late", 0) for row in run.checkpoints()) == 0


def test_a_table_shows_the_sequences_that_have_begun() -> None:
    job = StatefulJob("funnel")
    funnel = keyed_rows(job).sequence("a", "b", "c", by="v", within=10, take=["n"], uid="funnel")
    funnel.publish(DeltaStateTable("/begun"))
    given = [("k", "a", at(1), 7), ("k", "a", at(1), 8), ("k", "b", at(2), 9), ("l", "a", at(3), 1)]
    with run_in_memory(job) as run:
        run.process({"rows": [*given, ("m", "c", at(8), 0)]})
        shown = sorted(tuple(row) for row in run.table("partial"))
        assert shown == [("k", 1, 0, [1, 2], 9), ("k", 1, 1, [1, 2], 9), ("l", 3, 0, [3], 1)]
        run.process({"rows": [("k", "c", at(9), 5), ("l", "b", at(13), 2), ("m", "c", at(20), 0)]})
        assert run.table("partial") == []


def test_a_taken_column_that_is_called_as_one_of_the_table_is_refused() -> None:
    job, source = (
        StatefulJob("funnel"),
        FileSource("/nowhere", schema=TYPED.replace("n bigint", "began_n bigint")),
    )
    funnel = keyed_rows(job, source).sequence("a", "b", by="v", within=10, take=["began_n"], uid="funnel")
    funnel.publish(DeltaStateTable("/begun"))
    refused = pytest.raises(ConfigurationError, match=r"two columns \['began_n'\]. Rename the field")
    with run_in_memory(job) as run, refused:
        run.process({"rows": [("k", "a", at(1), 7)]})


def test_rows_without_a_time_or_with_one_that_no_timestamp_has_are_refused() -> None:
    with pytest.raises(ValueTypeError, match="no event time, which its operator needs"):
        KeyedHarness(sequences("a", "b"), **options()).process([("k", "a", None)])
    with pytest.raises(ValueTypeError, match="not in the years 1 to 9999: filter such rows"):
        KeyedHarness(sequences("a", "b"), **options()).process([("k", "a", 2**62)])


def changing(job: StatefulJob) -> Any:
    kinds = ChangeFormat.columns(op="op", insert=["I"], update=["U"], delete=["D"])
    feed = FileSource("/nowhere", schema=f"{TYPED}, op string")
    return job.source("feed", feed, format=kinds, event_time="at").key_by("k")


BY_V: dict[str, Any] = {"by": "v", "within": 5}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda job: keyed_rows(job).sequence("a", **BY_V), "takes two steps or more"),
        (lambda job: keyed_rows(job).sequence("a", "b", within=5), "the step 'a' is a value of a column: say which"),
        (lambda job: keyed_rows(job).sequence("a", None, **BY_V), "a step cannot be null"),
        (lambda job: keyed_rows(job).sequence("a", "b", by="w", within=5), r"there is no column \['w'\]"),
        (lambda job: keyed_rows(job).sequence("a", "b", by="n", within=5),
         "the step 'a' does not fit the column 'n'"),
        (lambda job: keyed_rows(job).sequence("a", "b", by="v", within=0),
         "within of sequence must be longer than nothing"),
        (lambda job: keyed_rows(job).sequence(step("a", bool), step("b", bool), **BY_V), "leave by out"),
        (lambda job: keyed_rows(job).sequence("a", "b", **BY_V, take=["w"]), "take of sequence"),
        (lambda job: keyed_rows(job).sequence("a", "b", **BY_V, take=["k"]), "two columns would be called 'k'"),
        (lambda job: keyed_rows(job).sequence("a", "b", **BY_V, lateness=-1), "lateness must be 0 or more"),
        (lambda job: keyed_rows(job, late_to=OutputTag("late", TYPED)).sequence("a", "b", **BY_V, lateness=1),
         r"diverts late rows before sequence\(…\).*move late_to"),
        (lambda job: keyed_rows(job, event_time=None, max_out_of_orderness=0).sequence("a", "b", **BY_V),
         r"sequence\(…\) needs event time"),
        (lambda job: changing(job).sequence("a", "b", **BY_V), "updates and deletes"),
        (lambda job: step("", bool), "step takes a name"),
        (lambda job: step("a", "b"), "step 'a': where takes a function"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_while_the_job_is_built(
    build: Callable[[StatefulJob], Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build(StatefulJob("refused"))
