"""Aggregates that cannot be are refused while the job is built; and what was never added is not taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from state_engine import AggregateFunction, KeyedStream, StatefulJob, avg, count, max_, sum_
from state_engine.core.errors import ConfigurationError

TYPE = "owner string, amount bigint, tags array<string>"
SUM = AggregateFunction()
DECLARED = r"eclare aggregates in its place, as in aggregate\(n=count\(\), total=sum_\('amount'\)"


def keyed(*, changing: bool) -> KeyedStream:
    return StatefulJob("refused").from_collection([], TYPE, name="rows", changing=changing).key_by("owner")


CHANGING: dict[str, tuple[Callable[[KeyedStream], Any], str]] = {
    "a function without retract": (
        lambda s: s.aggregate(SUM, int, int, uid="u"),
        rf"operator 'u': aggregate takes inserts only.* Define retract\(self, value, accumulator\).* or d{DECLARED}"),
    "a reduction without inverse": (
        lambda s: s.reduce(lambda a, b: a, uid="u"),
        r"operator 'u': reduce takes inserts only.* Give it an inverse.*: reduce\(…, inverse=…\)"),
    "sum": (lambda s: s.sum("amount", uid="u"), rf"operator 'u': sum takes inserts only.* D{DECLARED}"),
    "min": (lambda s: s.min("amount", uid="u"), rf"operator 'u': min takes inserts only.* D{DECLARED}"),
    "max": (lambda s: s.max("amount", uid="u"), rf"operator 'u': max takes inserts only.* D{DECLARED}"),
    "min_by": (lambda s: s.min_by("amount", uid="u"), rf"operator 'u': min_by takes inserts only.* D{DECLARED}"),
    "max_by": (lambda s: s.max_by("amount", uid="u"), rf"operator 'u': max_by takes inserts only.* D{DECLARED}"),
}  # fmt: skip


@pytest.mark.parametrize(("wire", "message"), CHANGING.values(), ids=CHANGING)
def test_what_cannot_take_rows_back_is_refused_on_a_stream_that_changes(
    wire: Callable[[KeyedStream], Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        wire(keyed(changing=True))
    assert wire(keyed(changing=False)) is not None


NAMES = "No such column can be called function, accumulator_type, output_type or uid"
WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (lambda s: s.aggregate(uid="u"), "takes an AggregateFunction with accumulator_type and output_type"),
    "both": (lambda s: s.aggregate(SUM, n=count()), r"by the name of the column that each becomes.* and not both"),
    "a column named function": (lambda s: s.aggregate(function=count()), NAMES),
    "a column named uid": (lambda s: s.aggregate(n=count(), uid=count()), NAMES),
    "a name of a field": (
        lambda s: s.aggregate(n="amount"), r"aggregate\(n='amount'\): .* an aggregate is count\(\), count\(field\),"),
    "a column of the key": (
        lambda s: s.aggregate(owner=count()), r"aggregate owner=count\(\): the key has a column of this name"),
    "a field that is not there": (
        lambda s: s.aggregate(n=sum_("amuont")),
        r"aggregate n=sum_\('amuont'\): the stream has no such field; it has \['owner', 'amount', 'tags'\]"),
    "the average of text": (
        lambda s: s.aggregate(n=avg("owner")), r"aggregate n=avg\('owner'\): the field is of type string, and this is"),
    "the greatest list": (
        lambda s: s.aggregate(n=max_("tags")), r"aggregate n=max_\('tags'\): values of type list.* have no order"),
    "an inverse that is none": (
        lambda s: s.reduce(lambda a, b: a, inverse=3), "inverse of reduce must be a ReduceFunction or a callable"),
}  # fmt: skip


@pytest.mark.parametrize(("wire", "message"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("changing", [True, False], ids=["changing", "inserts"])
def test_aggregates_that_do_not_fit_are_refused_while_they_are_built(
    wire: Callable[[Any], Any], message: str, changing: bool
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        wire(keyed(changing=changing))
