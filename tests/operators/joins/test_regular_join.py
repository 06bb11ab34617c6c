"""Regular joins against a model, and examples from the tests of Flink with a restore between any two steps.

``+l2/A`` is a left row of key 2 with the value A that comes, ``-r2/AIR`` a right one that goes, ``<`` and ``>`` are a
row before and after an update. Behind ``→`` stands what comes out of it, with its kind: a pair ``A,AIR``, ``–`` for no
row, and of semi and anti joins the left row alone. ``C4000`` sets the clock.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any

import pytest

from state_engine import EmbeddedRocksDBStateBackend, Row, RowKind, StateTtlConfig
from state_engine.core.errors import RetractionError
from state_engine.core.operator.element_kinds import own_kind
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.idle_keys import as_ttl_config
from state_engine.operators.joins.joined_rows import JoinedRows, LeftRows, RowResults
from state_engine.operators.joins.keyed_join import how_of
from state_engine.operators.joins.regular_join import RegularJoin, RegularSettings
from state_engine.operators.joins.row_identity import row_identity
from state_engine.testing import KeyedHarness
from tests.operators.any_cut import CUTS, EVERYWHERE, together
from tests.operators.joins import models
from tests.operators.joins.models import Change

COLUMNS, ANY_ROW = "k string, part int, v string", "k string, part int, v double, tags array<int>"
HOWS = ["inner", "left", "right", "full", "semi", "anti"]
KINDS = dict(zip("+<>-", RowKind, strict=True))
SIGNS = {kind: sign for sign, kind in KINDS.items()}
ORDERS = "+l1/L1 → +L1,– +l2/L2 → +L2,–"
VECTORS: dict[str, tuple[str, str]] = {
    "inner": (
        "inner", "+l1/L1 +l2/L2 +r2/AIR → +L2,AIR +r1/TRUCK → +L1,TRUCK -r2/AIR → -L2,AIR +r2/RAIL → +L2,RAIL",
    ),
    "an inner join keeps kinds": (
        "inner", "+l2/A +r2/AIR → +A,AIR <l2/A → <A,AIR >l2/B → >B,AIR <r2/AIR → <B,AIR >r2/RAIL → >B,RAIL",
    ),
    "left": (
        "left",
        f"{ORDERS} +r2/AIR → -L2,– +L2,AIR <l2/L2 → -L2,AIR >l2/L3 → +L3,AIR +r2/SHIP → +L3,SHIP -r2/AIR → -L3,AIR "
        "+r1/TRUCK → -L1,– +L1,TRUCK -r2/SHIP → -L3,SHIP +L3,– -l2/L3 → -L3,– -r1/TRUCK → -L1,TRUCK +L1,–",
    ),
    "right": (
        "right",
        "+l1/L1 +l2/L2 +r2/AIR → +L2,AIR +r3/SHIP → +–,SHIP +l3/L3 → -–,SHIP +L3,SHIP -l2/L2 → -L2,AIR +–,AIR "
        "<r2/AIR → -–,AIR >r1/AIR → +L1,AIR -l3/L3 → -L3,SHIP +–,SHIP -r3/SHIP → -–,SHIP",
    ),
    "full": (
        "full",
        f"{ORDERS} +r3/SHIP → +–,SHIP +r2/AIR → -L2,– +L2,AIR -l2/L2 → -L2,AIR +–,AIR +l3/L3 → -–,SHIP +L3,SHIP "
        "-r3/SHIP → -L3,SHIP +L3,– -l1/L1 → -L1,–",
    ),
    "semi": (
        "semi",
        "+l1/L1 +l2/L2 +r2/AIR → +L2 +r2/TRUCK -r2/TRUCK -r2/AIR → -L2 +r1/SHIP → +L1 +l1/L3 → +L3 <l1/L3 → <L3",
    ),
    "semi keeps kinds": ("semi", "+l1/L1 +r1/A → +L1 <r1/A → <L1 >r1/B → >L1"),
    "anti": (
        "anti",
        "+l1/L1 → +L1 +l2/L2 → +L2 +r2/AIR → -L2 +r2/TRUCK -r2/TRUCK -r2/AIR → +L2 +r1/SHIP → -L1 +l1/L3 -l1/L3 "
        "<l2/L2 → <L2 >l2/L4 → >L4",
    ),
    "a row that is there twice": (
        "full",
        "+l1/A → +A,– +l1/A → +A,– +r1/X → -A,– -A,– +A,X +A,X +r1/X → +A,X +A,X -l1/A → -A,X -A,X -l1/A → -A,X -A,X "
        "+–,X +–,X -r1/X → -–,X -r1/X → -–,X",
    ),
    "a null part of a key equals none": ("full", "+l_/A → +A,– +r_/X → +–,X -l_/A → -A,– -r_/X → -–,X"),
    "a null part is in no inner join": ("inner", "+l_/A +r_/X -l_/A"),
    "a null part is in no semi join": ("semi", "+l_/A +r_/X -l_/A"),
    "a null part is in each anti join": ("anti", "+l_/A → +A +r_/X -l_/A → -A"),
}  # fmt: skip


def join_of(
    how: str,
    columns: TypeLike = COLUMNS,
    *,
    changing: bool = True,
    ttl: Sequence[StateTtlConfig | None] = (None, None),
) -> RegularJoin:
    rows = to_type(columns, parameter="rows")
    assert isinstance(rows, StructType)
    emits = changing or how not in ("inner", "semi")
    results: RowResults = LeftRows()
    if how not in ("semi", "anti"):
        results = JoinedRows(rows, rows, take=None, suffix="_right", join="join")
    return RegularJoin(rows, rows, results, RegularSettings(how_of(how), emits, *ttl), record_key=True)


def options(parallelism: int = 1, backend: Any = None, changing: bool = True) -> dict[str, Any]:
    return {
        "key_by": (lambda row: (row[0], row[1]), lambda row: (row[0], row[1])),
        "key_type": "k string, part int",
        "parallelism": parallelism,
        "backend": backend,
        "changing": changing,
    }


def step_of(text: str) -> tuple[int, Row]:
    match = re.fullmatch(r"([-+<>])([lr])(\w)/(\w+)", text)
    assert match, text
    row = Row.of_kind(KINDS[match[1]], k=match[3], part=None if match[3] == "_" else 1, v=match[4])
    return "lr".index(match[2]) + 1, row


def shown(output: Any) -> str:
    kind, row = own_kind(output)
    values = tuple(row)
    others = values[5:] if len(values) == 6 else ()
    return SIGNS[kind] + ",".join("–" if v is None else v for v in (values[2], *others))


def steps_of(text: str) -> list[tuple[str, list[str]]]:
    """Each step, and what comes out of it."""
    steps: list[tuple[str, list[str]]] = []
    result = False
    for word in text.split():
        is_step = re.fullmatch(r"C\d+|[-+<>][lr]\w/\w+", word) is not None
        if word == "→":
            result = True
        elif is_step or not result:
            steps.append((word, []))
            result = False
        else:
            steps[-1][1].append(word)
    return steps


def played(text: str, join: RegularJoin, parallelism: int = 1, backend: Any = None, *, size: int = 1) -> None:
    """Play steps, with a restore behind each micro-batch."""
    run = KeyedHarness(join, **options(parallelism, backend))
    for steps in together(steps_of(text), size):
        if steps[0][0].startswith("C"):
            run.clock_ms = int(steps[0][0][1:])
            continue
        outputs = run.process_pairs([step_of(step) for step, _ in steps])
        expected = [result for _, results in steps for result in results]
        assert list(map(shown, outputs)) == expected, steps
        given = options(parallelism, backend) | {"clock_ms": run.clock_ms}
        run = KeyedHarness.restored(join, run.snapshot(), **given)


@EVERYWHERE
@CUTS
@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name: str, size: int, parallelism: int, backend: Any) -> None:
    how, text = VECTORS[name]
    played(text, join_of(how), parallelism, backend, size=size)


def test_joins_of_inserts_give_inserts() -> None:
    steps = [step_of(step) for step in ("+l1/A", "+r1/X", "+r1/Y", "+l2/B")]
    expected = {
        "inner": [("1", 1, "A", "1", 1, "X"), ("1", 1, "A", "1", 1, "Y")],
        "semi": [("1", 1, "A")],
    }
    for how, rows in expected.items():
        run = KeyedHarness(join_of(how, changing=False), **options(changing=False))
        assert [tuple(row) for row in run.process_pairs(steps)] == rows


# -- a time to live ----------------------------------------------------------------------------------------------------

LIVES = [as_ttl_config("4 s"), as_ttl_config("1 s")]
EXPIRING = {
    # as Flink's tests with different times to live have it, without their upserts
    "inner": "C1 +l1/L1 +l2/L2 +r2/AIR → +L2,AIR C1001 +l2/L3 C4001 +r1/TRUCK +r2/RAIL → +L3,RAIL C5001 +r2/SHIP",
    "left": (
        "C1 +l1/L1 → +L1,– +l2/L2 → +L2,– +r2/AIR → -L2,– +L2,AIR C3000 +l2/L3 → +L3,– "
        "+r2/SHIP → +L2,SHIP -L3,– +L3,SHIP C4001 +r1/TRUCK -r2/SHIP C8001 +r2/RAIL"
    ),
    "right": "C1 +l1/L1 C4001 +r1/AIR → +–,AIR C5001 +l1/L2 -r1/AIR +r1/SHIP → +L2,SHIP -l1/L1",
}


@pytest.mark.parametrize("how", EXPIRING)
@EVERYWHERE
def test_rows_go_after_their_time_to_live_and_their_results_stay(
    how: str, parallelism: int, backend: Any
) -> None:
    played(EXPIRING[how], join_of(how, ttl=LIVES), parallelism, backend)


def test_a_row_that_is_equal_to_one_whose_partner_is_gone_takes_nothing_back_that_did_not_come() -> None:
    text = "C1 +l1/A → +A,– +r1/X → -A,– +A,X C2000 +l1/A +r1/Y → +A,Y +A,Y -l1/A → -A,Y -r1/Y → -A,Y -l1/A"
    played(text, join_of("left", ttl=LIVES))


def test_rows_go_by_event_time() -> None:
    config = StateTtlConfig.new_builder("10 ms").use_event_time().build()
    join = join_of("inner", ttl=(config, config))
    assert join.sees_time
    assert not join_of("inner", ttl=LIVES).sees_time
    run = KeyedHarness(join, **options(), timestamp_of=lambda row: int(row.v), max_out_of_orderness_ms=0)
    steps = ("+l1/1 +r2/1", "+r1/9 +l2/9", "+r1/20 +l2/20", "+l1/21 +r2/21")
    numbers = [len(run.process_pairs(map(step_of, batch.split()))) for batch in steps]
    assert numbers == [0, 2, 0, 2]


# -- rows that are not there -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("step", ["-l1/B", "<r1/B"])
def test_a_row_that_is_not_there_cannot_be_taken_back(how: str, step: str) -> None:
    run = KeyedHarness(join_of(how), **options())
    run.process_pairs([step_of("+l1/A"), step_of("+r1/A"), step_of("+l2/B"), step_of("+r2/B")])
    message = r"join cannot take back .*'B'.*never added.*read the rows of the table first, or its changes"
    with pytest.raises(RetractionError, match=message):
        run.process_pairs([step_of(step)])


# -- the identity of a row ---------------------------------------------------------------------------------------------


def identity(columns: str, row: Any) -> bytes:
    kind = to_type(columns, parameter="rows")
    return row_identity(kind)(kind.normalise(row))


def test_equal_rows_have_one_identity_and_others_have_not() -> None:
    columns = "a double, b array<int>, c map<string,double>, d struct<x: int, y: string>, e decimal(5,2), f timestamp"
    nan = float("nan")
    same: list[list[Any]] = [
        [(0.0,) + (None,) * 5, (-0.0,) + (None,) * 5],
        [
            (nan, [1, None], {"k": nan, "l": 1.0}, None, None, None),
            (nan, [1, None], {"l": 1.0, "k": nan}, None, None, None),
        ],
        [(None, [], None, None, None, None)],
        [(None, [None], None, None, None, None)],
        [(None, [1], None, None, None, None)],
        [(None, [1, None], None, None, None, None)],
        [(None, None, {}, None, None, None)],
        [(None, None, {"k": None}, None, None, None)],
        [(None, None, None, (None, None), None, None)],
        [(None, None, None, (1, "1"), None, None)],
        [(1.0, None, None, None, None, None)],
        [(None,) * 6],
    ]
    identities = [{identity(columns, row) for row in rows} for rows in same]
    assert [len(one) for one in identities] == [1] * len(same)
    assert len(set.union(*identities)) == len(same)


def test_a_row_is_the_same_one_after_columns_were_added_moved_or_widened() -> None:
    before = identity("a int, b float, c decimal(5,2), d date", (1, 0.5, 2, None))
    assert (
        identity("b double, c decimal(10,3), x string, d date, a bigint", (0.5, 2, None, None, 1)) == before
    )
    assert identity("b double, c decimal(10,3), x string, d date, a bigint", (0.5, 2, "", None, 1)) != before


def test_the_identity_of_a_stored_row_stays_what_it_was() -> None:
    columns = "a double, b array<int>, c map<string,double>, d struct<x: int, y: string>, e decimal(5,2), f timestamp"
    row = (
        -0.0,
        [1, None],
        {"l": None, "k": float("nan")},
        (1, "it's"),
        Decimal("1.50"),
        datetime(2026, 1, 2, tzinfo=UTC),
    )
    assert identity(columns, row).hex() == "41710a6613ca59ce3f3f9a52336b3131"
    assert identity("a int, b string", (None, None)).hex() == "7ebb3c7c2a87b1a2f8a7ed729ecb040d"


@dataclass(frozen=True)
class Part:
    k: str
    part: int
    v: str


OF_PART = attrgetter("k")


def test_records_of_a_class_are_joined_as_rows_are() -> None:
    run = KeyedHarness(join_of("left", Part), key_by=(OF_PART, OF_PART), key_type="string", changing=True)
    outputs = run.process_pairs([(1, Part("a", 1, "x")), (2, Part("a", 2, "y"))])
    assert [(str(kind), *row) for kind, row in outputs] == [
        ("+I", "a", 1, "x", None, None, None),
        ("-D", "a", 1, "x", None, None, None),
        ("+I", "a", 1, "x", "a", 2, "y"),
    ]


def test_columns_of_any_type_are_joined_as_they_came() -> None:
    join = join_of("left", ANY_ROW)
    run = KeyedHarness(join, **options())
    run.process_pairs([(1, Row(k="a", part=1, v=-0.0, tags=[1, None]))])
    nan = float("nan")
    outputs = run.process_pairs([(2, Row(k="a", part=1, v=nan, tags=None))])
    assert repr(outputs[1].value) == "('a', 1, -0.0, [1, None], 'a', 1, nan, None)"
    run = KeyedHarness.restored(join, run.snapshot(), **options())
    outputs = run.process_pairs([(2, Row.of_kind(RowKind.DELETE, k="a", part=1, v=nan, tags=None))])
    assert [str(kind) for kind, _ in outputs] == ["-D", "+I"]
    outputs = run.process_pairs([(1, Row.of_kind(RowKind.DELETE, k="a", part=1, v=0.0, tags=[1, None]))])
    assert repr(outputs[0].value) == "('a', 1, -0.0, [1, None], None, None, None, None)", "as it came out"


# -- any stream --------------------------------------------------------------------------------------------------------


def plain(row: Any) -> str:
    """A row as text, for comparing: NaN is NaN, and -0.0 is 0.0."""
    return repr([value + 0.0 if isinstance(value, float) else value for value in tuple(row)])


def changed(table: Counter[str], outputs: Sequence[Any], *, emits: bool) -> None:
    """Apply changes in their order: nothing goes that is not there."""
    for output in outputs:
        kind, row = own_kind(output)
        assert emits or kind is RowKind.INSERT
        if kind in (RowKind.INSERT, RowKind.UPDATE_AFTER):
            table[plain(row)] += 1
        else:
            assert table[plain(row)] > 0, row
            table[plain(row)] -= 1


def element(change: Change) -> tuple[int, Row]:
    kind, (k, part, v, tags) = RowKind(change.kind), change.row
    return change.side, Row.of_kind(kind, k=k, part=part, v=v, tags=None if tags is None else list(tags))


@pytest.mark.parametrize(
    "seeds",
    [range(1), pytest.param(range(1, 12), marks=pytest.mark.more),
     pytest.param(range(12, 180), marks=pytest.mark.long)],
    ids=["few", "more", "many"],
)  # fmt: skip
@pytest.mark.parametrize("how", HOWS)
def test_any_stream_gives_the_join_of_what_is_there(how: str, seeds: range) -> None:
    for seed in seeds:
        rng, changing = random.Random(seed), seed % 4 != 1
        changes = models.changes(seed, inserts_only=not changing)
        join = join_of(how, ANY_ROW, changing=changing)
        given = options(rng.choice([1, 2, 7]), changing=changing)
        run, table, at = KeyedHarness(join, **given), Counter[str](), 0
        while at < len(changes):
            size = rng.choice([1, 1, 3, 30])
            batch = changes[at : at + size]
            at += size
            changed(table, run.process_pairs(map(element, batch)), emits=join.emits_changes)
            expected = models.regular_join(changes[:at], how)
            assert +table == Counter(plain(row) for row in expected), f"seed {seed}, {at} changes"
            if rng.random() < 0.4:
                backend = EmbeddedRocksDBStateBackend() if rng.random() < 0.1 else None
                given = options(rng.choice([1, 2, 7]), backend, changing)
                run = KeyedHarness.restored(join, run.snapshot(), **given)
        if changing:
            left_over = models.deletions(changes)
            changed(table, run.process_pairs(map(element, left_over)), emits=True)
            assert not +table
            kept = run.snapshot().keyed.entries
            assert not any(entries for side in ("left", "right") for entries in kept.get(side, {}).values())
