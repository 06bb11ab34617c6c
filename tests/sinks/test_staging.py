"""Notes of sinks: what was written is read, or the file is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from state_engine.core.errors import DamagedFileError
from state_engine.sinks.staging import read_note, write_note

NOTE = {"table": "sums", "key": ["k"], "at": 3}


def test_a_note_is_read_as_it_was_written_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "sink" / "target.json"
    assert read_note(path.as_uri()) is None
    write_note(path.as_uri(), NOTE)
    assert read_note(path.as_uri()) == NOTE
    written = path.read_bytes()
    for place in range(len(written)):
        path.write_bytes(written[:place] + bytes([written[place] ^ 1]) + written[place + 1 :])
        with pytest.raises(DamagedFileError, match=r"target\.json is empty, cut, or not what was written"):
            read_note(path.as_uri())
        path.write_bytes(written[:place])
        with pytest.raises(DamagedFileError):
            read_note(path.as_uri())


def test_a_note_of_version_0_2_0_is_read(tmp_path: Path) -> None:
    (tmp_path / "target.json").write_text(json.dumps(NOTE))
    assert read_note((tmp_path / "target.json").as_uri()) == NOTE
