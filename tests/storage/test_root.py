"""The state root: its id, its jobs, and where it may not be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from state_engine.core.errors import RootError
from state_engine.storage.layout import FORMAT_VERSION
from state_engine.storage.root import MARKER, open_root, write_marker
from state_engine.storage.stores.files import normal_uri


def test_a_root_gets_an_id_once(tmp_path: Path) -> None:
    uri = normal_uri(tmp_path / "root")
    root_id = open_root(uri, create=True)
    assert root_id is not None
    assert len(root_id) == 32
    assert open_root(uri, create=True) == root_id == open_root(uri, create=False)


def test_two_roots_have_two_ids(tmp_path: Path) -> None:
    assert open_root(normal_uri(tmp_path / "a"), create=True) != open_root(
        normal_uri(tmp_path / "b"), create=True
    )


def test_looking_makes_nothing(tmp_path: Path) -> None:
    assert open_root(normal_uri(tmp_path / "root"), create=False) is None
    assert list(tmp_path.iterdir()) == []


def mark(directory: Path, text: str) -> str:
    (directory / MARKER).write_text(text)
    return normal_uri(directory)


def test_an_older_format_is_refused(tmp_path: Path) -> None:
    uri = mark(tmp_path, json.dumps({"root_id": "x", "format": "5"}))
    with pytest.raises(RootError, match=r"of a Statelake before 0\.2\.0"):
        open_root(uri, create=False)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    uri = mark(tmp_path, json.dumps({"root_id": "x", "format": str(FORMAT_VERSION + 1)}))
    for create in (True, False):
        with pytest.raises(RootError, match="was written by a newer Statelake"):
            open_root(uri, create=create)


def test_an_older_format_with_a_digest_is_refused(tmp_path: Path) -> None:
    uri = normal_uri(tmp_path)
    write_marker(uri, {"root_id": "x", "format": str(FORMAT_VERSION - 1)})
    with pytest.raises(RootError, match="statelake upgrade"):
        open_root(uri, create=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is damaged"),
        ("", "is damaged"),
        ("{}", "not written by this engine"),
        ("[]", "not written by this engine"),
    ],
)
def test_a_marker_that_is_not_ours_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RootError, match=message):
        open_root(mark(tmp_path, text), create=True)


def flips(text: str) -> list[str]:
    """The text with one character replaced, at each of its places, by one that is close to it."""
    return [text[:i] + chr(ord(c) ^ 1) + text[i + 1 :] for i, c in enumerate(text)]


def with_a_job(directory: Path) -> str:
    """A root in which a job has a table, as far as its directories show."""
    uri = normal_uri(directory)
    open_root(uri, create=True)
    (directory / "tiny" / "checkpoints" / "_delta_log").mkdir(parents=True)
    return uri


@pytest.mark.parametrize("create", [True, False])
def test_a_root_with_jobs_that_lost_its_marker_gets_no_new_id(tmp_path: Path, create: bool) -> None:
    uri = with_a_job(tmp_path)
    (tmp_path / MARKER).unlink()
    with pytest.raises(RootError, match=r"holds the jobs \['tiny'\].*is gone.*statelake doctor --repair"):
        open_root(uri, create=create)
    assert not (tmp_path / MARKER).exists()


def test_a_directory_with_other_things_in_it_still_becomes_a_root(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "readme.txt").write_text("mine")
    assert open_root(normal_uri(tmp_path), create=True) is not None


def test_every_flip_of_a_bit_in_a_marker_is_noticed(tmp_path: Path) -> None:
    uri = with_a_job(tmp_path)
    text = (tmp_path / MARKER).read_text()
    for flipped in flips(text):
        (tmp_path / MARKER).write_text(flipped)
        with pytest.raises(RootError) as refused:
            open_root(uri, create=True)
        assert "statelake doctor --repair" in str(refused.value), flipped
    (tmp_path / MARKER).write_text(text)
    assert open_root(uri, create=True)


def test_a_marker_without_its_digest_is_refused_from_format_6_on(tmp_path: Path) -> None:
    for number in (6, FORMAT_VERSION):
        with pytest.raises(RootError, match="was altered"):
            open_root(mark(tmp_path, json.dumps({"root_id": "x", "format": str(number)})), create=True)


def test_a_marker_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = normal_uri(tmp_path)
    before = open_root(uri, create=True)

    def crash(*_: object) -> None:
        raise OSError("out of power")

    with monkeypatch.context() as patch:
        patch.setattr("state_engine.storage.stores.durability.os.fsync", crash)
        with pytest.raises(OSError, match="out of power"):
            write_marker(uri, {"root_id": "other", "format": "6"})
    assert open_root(uri, create=False) == before
