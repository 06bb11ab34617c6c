"""Manifests of savepoints: a round trip, and every change of a manifest is detected."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.checkpoints.checkpoint import (
    OperatorStatePart,
    OperatorStateRef,
    OperatorStateSchema,
    PinnedCheckpoint,
)
from state_engine.core.checkpoints.savepoint_manifest import (
    MatchedState,
    SavepointFile,
    SavepointManifest,
    _digest,
    matched,
    parse_manifest,
)
from state_engine.core.errors import (
    ConfigurationError,
    MissingFilesError,
    RootError,
    StatelakeError,
    StateMigrationError,
)
from state_engine.core.state.state_schema import StateSchema
from tests.core.checkpoints.histories import History, histories
from tests.core.checkpoints.rows import checkpoint, operator
from tests.support.altered_json import altered, as_text

FILES = [
    SavepointFile("operators/counter/base/b.parquet", 10, "ab"),
    SavepointFile("operator_state/s", 3, "cd"),
]
WHERE = "/savepoints/before/_savepoint.json"


def manifest() -> SavepointManifest:
    counter = replace(operator(), states=[StateSchema("count", "value", "bigint")])
    buffered = OperatorStateSchema("buffered", "even_split", "bigint", [OperatorStatePart(0, "w1", 2, "d")])
    refs = [
        OperatorStateRef("events", "w7", 0),
        OperatorStateRef("sink", "w7", 2, 1, [buffered], "w7"),
        OperatorStateRef("listener", "w7", 0, 1, [], "w7"),
    ]
    row = checkpoint(
        7, 6, watermark_ms=-5, operators=[counter], operator_state=refs, metrics={"seen": 1.5},
        pinned=[PinnedCheckpoint("before", 7, "/s")], retired=[1, 2],
    )  # fmt: skip
    return SavepointManifest(
        "before", "delays", datetime(2013, 1, 2, 3, 4, 5, 6, tzinfo=UTC), row, list(FILES)
    )


def parse(text: str) -> SavepointManifest:
    return parse_manifest(text, where=WHERE)


def test_a_manifest_comes_back_as_it_was() -> None:
    one = manifest()
    text = one.to_text()
    back = parse(text)
    assert replace(back, files=list(FILES)) == one
    assert sorted(back.files, key=lambda f: f.path) == sorted(FILES, key=lambda f: f.path)
    assert back.to_text() == text


def test_order_of_files_and_zone_do_not_matter() -> None:
    one = manifest()
    elsewhere = one.created_at.astimezone(timezone(timedelta(hours=2)))
    assert replace(one, files=FILES[::-1], created_at=elsewhere).to_text() == one.to_text()


@settings(max_examples=20)
@given(histories())
def test_any_checkpoint_comes_back(history: History) -> None:
    for row in history.rows.values():
        one = SavepointManifest("s", "j", datetime(2013, 1, 1, tzinfo=UTC), row, [])
        assert parse(one.to_text()) == one


@given(st.data())
def test_a_changed_or_cut_manifest_is_noticed(data: st.DataObject) -> None:
    text = manifest().to_text()
    at = data.draw(st.integers(0, len(text) - 1))
    cut = text[:at]
    with pytest.raises(MissingFilesError, match=r"_savepoint\.json is not the manifest that was written"):
        parse(cut)
    other = data.draw(st.characters(codec="ascii").filter(lambda c: c != text[at]))
    changed = text[:at] + other + text[at + 1 :]
    try:
        same = json.loads(changed) == json.loads(text)  # white space may change
    except ValueError:
        same = False
    if not same:
        with pytest.raises((MissingFilesError, RootError)):
            parse(changed)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "1"}', "null", '{"format": 2}'])
def test_what_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(MissingFilesError, match="Copy the savepoint again"):
        parse(text)


def test_a_newer_format_is_refused_before_anything_else_is_read() -> None:
    with pytest.raises(RootError, match="has format 3, this version reads up to 2: upgrade Statelake"):
        parse('{"format": 3, "anything": []}')


def test_files_are_compared_with_what_was_written() -> None:
    one = manifest()
    one.verify([*FILES, SavepointFile("another", 1, "x")])
    with pytest.raises(MissingFilesError, match="operator_state/s is missing"):
        one.verify(FILES[:1])
    with pytest.raises(MissingFilesError, match=r"b\.parquet has 9 bytes, 10 were written"):
        one.verify([replace(FILES[0], bytes=9), FILES[1]])
    with pytest.raises(MissingFilesError, match=r"savepoint 'before' of job 'delays'.*other content"):
        one.verify([FILES[0], replace(FILES[1], sha256="00")])


def test_of_many_damaged_files_some_are_reported() -> None:
    many = replace(manifest(), files=[SavepointFile(f"f{i}", 1, "x") for i in range(9)])
    with pytest.raises(MissingFilesError, match="f4 is missing and 4 more"):
        many.verify([])


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../../x", "s3://x/y", "a//b", "./a", "a\\..\\b"]
)
def test_no_path_leads_out_of_the_directory(path: str) -> None:
    with pytest.raises(ConfigurationError, match="not a path inside a savepoint"):
        SavepointFile(path, 1, "x")


def test_operators_are_matched_by_uid() -> None:
    restored = matched(manifest(), ["counter", "events", "sink", "added"])
    assert restored == MatchedState(("counter", "events", "sink"), (), ("added",))


def test_state_that_the_job_does_not_have_is_refused_unless_allowed() -> None:
    with pytest.raises(StateMigrationError, match=r"holds state of \['counter', 'sink'\].*\['renamed'\]"):
        matched(manifest(), ["events", "renamed"])
    restored = matched(manifest(), ["events", "renamed"], allow_non_restored_state=True)
    assert restored == MatchedState(("events",), ("counter", "sink"), ("renamed",))


def test_a_manifest_of_before_0_2_0_is_refused() -> None:
    with pytest.raises(RootError, match=r"of a Statelake before 0\.2\.0.*take a new savepoint"):
        parse('{"format": 1, "anything": []}')


@given(st.data())
def test_whatever_stands_in_a_manifest_is_refused_by_name(data: st.DataObject) -> None:
    """Whoever writes a savepoint can compute digests: what a manifest holds is judged, and is no raw exception."""
    content = json.loads(manifest().to_text())
    del content["digest"]
    changed = data.draw(altered(content))
    text = as_text({"digest": _digest(changed), **changed})
    try:
        read = parse(text)
        read.check_form()
        matched(read, ["counter", "events", "sink", "listener"], allow_non_restored_state=True)
    except StatelakeError:
        pass
