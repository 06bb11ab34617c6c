"""Names: which are refused, and that no two that are allowed share a path, a column or an identifier."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from state_engine.core.checkpoints.checkpoint import OperatorCheckpoint
from state_engine.core.checkpoints.table_names import base_table, changelog_table
from state_engine.core.errors import InvalidNameError
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.names import LONGEST_TEXT, check_name, check_text_name, stored_name
from state_engine.core.state.descriptors import ListStateDescriptor, ValueStateDescriptor
from state_engine.core.state.evolution import recorded_schema
from tests.support.names_of_flink import NAMES_OF_FLINK

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=LONGEST_TEXT)
PLAIN = st.from_regex(r"\A[a-z][a-z0-9_]{0,99}\Z")
IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*\Z")


@pytest.mark.parametrize("name", ["a", "plane_delays", "x9", "a_", "a" * 100])
def test_good_names_are_given_back(name: str) -> None:
    assert check_name(name, what="job") == name
    assert stored_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "A", "_a", "9a", "a-b", "a b", "a/b", "../a", "a.b", "é", "a\n", "a" * 101, "ａ", None, 5, b"a"],
)
def test_other_names_are_refused_with_the_rule(name: object) -> None:
    with pytest.raises(InvalidNameError, match="cannot name a job: use lower-case letters"):
        check_name(name, what="job")


@pytest.mark.parametrize("name", ["", "a" * 256, "\ud800", None, 5, b"a"])
@pytest.mark.parametrize("declare", [lambda n: ValueStateDescriptor(n, int), lambda n: OutputTag(n, int)])
def test_what_is_no_text_or_too_long_names_nothing(declare: Callable[[Any], Any], name: object) -> None:
    with pytest.raises(InvalidNameError, match="use a text of 1 to 255 characters"):
        declare(name)


def test_the_name_of_timers_is_taken() -> None:
    with pytest.raises(InvalidNameError, match="timers are kept under this name"):
        ListStateDescriptor("_timers", int)


@pytest.mark.parametrize("name", NAMES_OF_FLINK)
def test_names_of_flinks_documents_can_be_read_in_what_is_stored(name: str) -> None:
    stored = stored_name(check_text_name(name, what="state"))
    parts = re.findall("[a-z]+", re.sub("([A-Z])", r" \1", name).lower())
    assert re.fullmatch("_".join(parts) + "__[0-9a-f]{20}", stored)


@given(TEXTS)
@example("../../etc/passwd")
@example("/" * 255)
@example("`; DROP TABLE x; --")
@example(" ")
@example("\0")
@example("日本語")
@example("a" * 101)
@example("x__" + "0" * 20)
def test_any_text_is_stored_as_an_identifier_that_is_not_longer_than_names_were(name: str) -> None:
    stored = stored_name(check_text_name(name, what="state"))
    assert IDENTIFIER.match(stored)
    assert len(stored) <= 100
    for table in (changelog_table(name), base_table(name)):
        assert re.fullmatch(r"operators/[a-z][a-z0-9_]*/(changelog|base)", table)


@given(PLAIN)
def test_a_plain_name_is_stored_as_it_is(name: str) -> None:
    assume(not re.search("__[0-9a-f]{20}$", name))
    assert stored_name(name) == name
    assert ValueStateDescriptor(name, int).stored_as == name
    assert recorded_schema(ValueStateDescriptor(name, int)).stored_as is None


@given(TEXTS, TEXTS)
@example("a", "A")
@example("text state", "text_state")
@example("é", "e\u0301")
@example("a" * 101, "a" * 102)
def test_no_two_names_share_what_they_are_stored_as(one: str, other: str) -> None:
    assume(one != other)
    assert stored_name(one) != stored_name(other)


@given(TEXTS)
def test_what_a_name_is_stored_as_cannot_be_taken_by_giving_it_as_a_name(name: str) -> None:
    stored = stored_name(name)
    assume(stored != name)
    assert stored_name(stored) != stored


@given(TEXTS)
@example("a" * 100)
def test_short_forms_are_short(name: str) -> None:
    assert len(stored_name(name, longest=62)) <= 62


def test_the_mapping_is_recorded() -> None:
    schema = recorded_schema(ValueStateDescriptor("sumOfTips", float))
    assert (schema.name, schema.column_name) == ("sumOfTips", stored_name("sumOfTips"))
    none: dict[str, Any] = {
        "key_schema": "",
        "states": [],
        "changelog": [],
        "bases": [],
        "changed_entries": 0,
    }
    for uid, directory in (("late-data", stored_name("late-data")), ("plain", None)):
        assert OperatorCheckpoint(uid, 1, 128, **none).directory == directory
    # what another's row says of it is not believed
    assert OperatorCheckpoint("plain", 1, 128, **none, directory="../../x").directory is None
