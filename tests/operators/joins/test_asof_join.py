"""As-of joins against a model, and examples of Flink, pandas and polars with a restore between any two steps.

``l5`` is a left row of 5 ms, ``r5`` a version, ``r5:7`` one of the value 7, ``r5-`` its end. ``W 9`` sets the
watermark. Behind ``→`` stands what has come out since the arrow before: the time of the row, and that of its version or
``–``, with the value of the version; and ``=3 =10``, the times of all versions that are kept.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from state_engine import (
    ChangeFormat,
    DeltaStateTable,
    FileSource,
    OutputTag,
    RowKind,
    StatefulJob,
    Tumbling,
    count,
)
from state_engine.core.errors import ConfigurationError
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.joins.asof_join import AsOfJoin, AsOfSettings
from state_engine.operators.joins.joined_rows import JoinedRows
from state_engine.operators.lateness import Lateness
from state_engine.testing import CollectSink, run_in_memory
from tests.operators.any_cut import CUTS, EVERYWHERE, at_any_cut, together
from tests.operators.joins import models
from tests.operators.joins.models import Version
from tests.operators.joins.test_joins_in_jobs import LATE, ROW, pair_of, row_of, stream_of
from tests.operators.mixed import Mixed, forms_of, types_of_join

COLUMNS = "side int, k string, part int, n bigint, at bigint, kind string"
LATE_ROWS = OutputTag("late", COLUMNS)
BOUND = 4
KINDS = {str(kind): kind for kind in RowKind}
VECTORS: dict[str, tuple[dict[str, Any], str]] = {
    "a version that changes and ends": (
        {}, "r2 W 2 l3/a r4/b W 5 → 3,2/a l6/b r7/b-U r7/b+U W 8 → 6,4/b l9/b l11/b r9/b- r10/b W 13 → 9,–/b 11,10/b",
    ),
    "rows without version are left out": (
        {"inner": True}, "r4/b l6/b r7/b+U l9/b l11/b r9/b- r10/b W 13 → 6,4/b 11,10/b",
    ),
    "until both streams are there": ({}, "l3 W 2 → r3 W 3 → 3,3"),
    "without versions of its time": ({"exact": False}, "l3 r2 r3 W 3 → 3,2"),
    "tolerance": ({"tolerance_ms": 10}, "l0 l10 l20 r5 r15 r25 W 30 → 0,– 10,5 20,15"),
    "tolerance of stocks": (
        {"tolerance_ms": 2},
        "l1/a l1/b l3/b l6/c r0/a r2/b r4/c r6/a W 9 → 1,0/a 1,–/b 3,2/b 6,4/c",
    ),
    "tolerance that is too short": (
        {"tolerance_ms": 1},
        "l1/a l1/b l3/b l6/c r0/a r2/b r4/c r6/a W 9 → 1,0/a 1,–/b 3,2/b 6,–/c",
    ),
    "trades of polars": (
        {}, "l1/a l1/b l3/b l6/c r0/a:100 r2/b:300 r3/c:501 r6/a:102 W 9 → 1,0/a:100 1,–/b 3,2/b:300 6,3/c:501",
    ),
    "of equal times the later one": ({}, "r1:1 r1:2 l1 l1 W 1 → 1,1:2 1,1:2"),
    "a version comes late": ({}, "l6 r3 W 7 → 6,3 r5 l9 W 13 → 9,5"),
    "a version that came late changes": ({}, "l6 r3:3 W 7 → 6,3:3 r3:3-U r3:5+U l9 W 13 → 9,3:5"),
    "an update gives a version another key": (
        {}, "r1/a:1 r5/a:1-U r5/b:1+U l4/a l6/a l6/b W 9 → 4,1/a:1 6,–/a 6,5/b:1",
    ),
    "the old row has the time of its version": ({}, "r1:1 r1:1-U r5:2+U l4 l6 W 9 → 4,1:1 6,5:2"),
    "at once, another key": ({"emit": "at_once"}, "r1/a:1 r5/a:1-U l6/a r5/b:1+U l6/b → 6,–/a 6,5/b:1"),
    "at once": ({"emit": "at_once"}, "l3 → 3,– r2 l3 → 3,2 r3 l3 → 3,3 r1 l3 → 3,3"),
    "a null part of a key equals none": ({}, "r1/_ l2/_ W 5 → 2,–/_"),
    "versions that no row can get": ({}, "r1 r2 r3 r10 W 5 l6 → =3 =10 W 20 → 6,3 l21 → =10 W 21 → 21,10"),
    "versions behind the tolerance": (
        {"tolerance_ms": 4}, "r1 r2 r3 r10 W 5 l6 → =3 =10 W 20 → 6,3 l21 → =none W 21 → 21,–",
    ),
}  # fmt: skip


def join_of(lateness: int = 0, **settings: Any) -> AsOfJoin:
    columns = to_type(COLUMNS, parameter="rows")
    assert isinstance(columns, StructType)
    rows = JoinedRows(columns, columns, take=None, suffix="_right", join="join_asof")
    made = AsOfSettings(left=Lateness(lateness, LATE_ROWS), **settings)
    return AsOfJoin(columns, columns, rows, made, record_key=True)


def options(parallelism: int = 1, backend: Any = None, bound: int | None = None) -> dict[str, Any]:
    return {
        "key_by": (lambda row: (row.k, row.part), lambda row: (row.k, row.part)),
        "timestamp_of": lambda row: row.at,
        "max_out_of_orderness_ms": bound,
        "parallelism": parallelism,
        "backend": backend,
        "changing": True,
        "key_type": "k string, part int",
    }


def given(event: Version) -> tuple[int, Any]:
    kind = KINDS[event.kind]
    return event.side, event if kind is RowKind.INSERT else (kind, event)


def event_of(step: str) -> Version:
    match = re.fullmatch(r"([lr])(\d+)(?:/(\w))?(?::(\d+))?(-U|\+U|-)?", step)
    assert match, step
    kind = {None: "+I", "-": "-D"}.get(match[5], match[5])
    key, part = match[3] or "a", None if match[3] == "_" else 1
    return Version(1 if match[1] == "l" else 2, key, part, int(match[4] or 0), int(match[2]), str(kind))


def shown(output: Any) -> str:
    """Time of the row, that of its version, the key where it is not ``a``, and the version's value where it has one."""
    values = tuple(output)
    at = "–" if values[10] is None else values[10]
    key, value = "" if values[1] == "a" else f"/{values[1]}", f":{values[9]}" if values[9] else ""
    return f"{values[4]},{at}{key}{value}"


MORE = pytest.mark.more


@pytest.mark.internal_errors
@EVERYWHERE
@CUTS
@forms_of({name: partial(join_of, **settings) for name, (settings, _) in VECTORS.items()})
def test_vectors(name: str, columns: float, size: int, parallelism: int, backend: Any) -> None:
    settings, text = VECTORS[name]
    by = options(parallelism, backend) | types_of_join(COLUMNS, pairs=True)
    run = Mixed(partial(join_of, **settings), random.Random(0), lambda _: by, columns=columns, pairs=True)
    outputs = list[Any]()
    for number, part in enumerate(text.replace("W ", "W").split("→")):
        results = [word for word in part.split() if "," in word or word.startswith("=")]
        if number:
            expected = [word.replace("/a", "") for word in results if "," in word]
            assert Counter(map(shown, outputs)) == Counter(expected), part
            if versions := {word[1:] for word in results if "," not in word}:
                assert kept(run) == versions - {"none"}, part
            outputs = []
        for steps in together([(word, None) for word in part.split() if word not in results], size):
            if steps[0][0].startswith("W"):
                outputs += run.process([], watermark=int(steps[0][0][1:]))
            else:
                outputs += run.process([given(event_of(step)) for step, _ in steps])
    assert outputs == []
    assert not run.runs["elements" if columns else "columns"]


def kept(run: Mixed) -> set[str]:
    """The times of versions that are kept."""
    entries = run.stored.keyed.entries.get("versions", {})
    return {str(at) for of_key in entries.values() for at in of_key}


@pytest.mark.parametrize(
    "seeds",
    [range(2), pytest.param(range(2, 25), marks=MORE), pytest.param(range(25, 150), marks=pytest.mark.long)],
    ids=["few", "more", "many"],
)
@pytest.mark.parametrize("emit", ["final", "at_once"])
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("exact", [False, True])
def test_any_stream_gives_the_join_of_the_model(emit: Any, inner: bool, exact: bool, seeds: range) -> None:
    for seed in seeds:
        rng, events = random.Random(seed), models.versions(seed, BOUND)
        lateness, tolerance = rng.choice([0, 3, 20]), rng.choice([None, 0, 7])
        expected = models.asof_join(
            events, tolerance=tolerance, exact=exact, inner=inner, lateness=lateness, bound=BOUND,
            wait=emit == "final",
        )  # fmt: skip
        settings = {"tolerance_ms": tolerance, "exact": exact, "inner": inner, "emit": emit}
        make, rows = partial(join_of, lateness, **settings), list(map(given, events))
        by = partial(options, bound=BOUND)
        ran = at_any_cut(make, rows, rng, by, late=LATE_ROWS, pairs=True)
        pairs = Counter((tuple(output)[3], tuple(output)[9]) for output in ran.outputs)
        assert pairs == expected.pairs, f"seed {seed}"
        assert ran.late == [event for event in expected.late if event.side == 1], f"seed {seed}"
        assert ran.too_late == len([event for event in expected.late if event.kind != "-U"]), f"seed {seed}"
        assert not ran.run.snapshot().keyed.entries.get("waiting"), f"seed {seed}"


# -- in jobs -----------------------------------------------------------------------------------------------------------


def prices(job: StatefulJob) -> Any:
    feed = FileSource("/prices", schema=f"{ROW}, op string")
    kinds = ChangeFormat.columns(op="op", insert=["I"], update=["U"], delete=["D"])
    return job.source("right", feed, format=kinds, event_time="at", max_out_of_orderness="4 ms")


def test_a_feed_of_versions_with_a_window_behind_and_a_table_of_versions() -> None:
    job = StatefulJob("asof", parallelism=2)
    trades = stream_of(job, "left").key_by("k")
    joined = trades.join_asof(prices(job).key_by("k"), take=["n"], lateness="3 ms", late_to=LATE, uid="join")
    joined.publish(DeltaStateTable("/versions"))
    joined.sink("joined", CollectSink())
    counts = joined.key_by("k").window(Tumbling(10)).aggregate(rows=count(), uid="counts")
    counts.sink("counts", CollectSink())
    rows = [row_of(models.Event(1, "a", 1, n, at)) for n, at in ((0, 5), (1, 20), (2, 13), (3, 40), (4, 2))]
    with run_in_memory(job) as run:
        run.process({"right": [(*row_of(models.Event(2, "a", 1, n, at)), op) for n, at, op in (
            (7, 3, "I"), (8, 15, "U"), (8, 30, "D"), (9, 50, "I"))]})  # fmt: skip
        run.process({"left": rows})
        run.process(drain=True)
        assert sorted((row.n, row.n_right) for row in run.sink("joined")) == [
            (0, 7),
            (1, 8),
            (2, 7),
            (3, None),
        ]
        assert sum(row.metrics["join.too_late"] for row in run.checkpoints()) == 1
        assert sum(row.metrics["counts.too_late"] for row in run.checkpoints()) == 0
        assert sum(row.rows for row in run.sink("counts")) == 4
        assert [row.valid_from for row in run.table("versions")] == [30, 50]


def refused(left: Any = None, right: Any = None, **options: Any) -> Any:
    one, other = pair_of() if left is None else (left, right)
    return one.join_asof(other, **options)


def changing_left() -> Any:
    job = StatefulJob("refused")
    return refused(prices(job).key_by("k"), stream_of(job, "left").key_by("k"))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: refused(*pair_of(event_time=None, max_out_of_orderness=0)), "needs event time.*give source"),
        (lambda: refused(*pair_of(late_to=LATE), lateness=1), "diverts late rows before.*move late_to"),
        (lambda: refused(how="full"), "how of join_asof must be 'left' or 'inner'"),
        (lambda: refused(emit="changes"), "emit of join_asof must be 'final' or 'at_once'"),
        (lambda: refused(tolerance=-1), "tolerance must be 0 or more"),
        (lambda: refused(take=["m"]), r"join_asof: take names columns that the right stream does not have: \['m'\]"),
        (changing_left, "takes inserts only on its left side.*turns them into inserts; the right side may change"),
    ],
)  # fmt: skip
def test_what_is_no_asof_join_is_refused_while_the_job_is_built(
    build: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()
