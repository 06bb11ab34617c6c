"""Names of files record when an attempt began and which writer owns the file."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uuid6 import uuid7

from state_engine.core.checkpoints.write_ids import owner_in, owner_mark, write_id_in, written_at_ms
from state_engine.storage.layout import file_name

MS = st.integers(1_600_000_000_000, 4_000_000_000_000)
APPS = st.text("abcdef0123456789/_", min_size=1)


def write_id_of(ms: int, rest: int) -> str:
    """A ``write_id`` of a time."""
    return UUID(
        int=(ms << 80) | (7 << 76) | ((rest >> 64 & 0xFFF) << 64) | (2 << 62) | rest & (1 << 62) - 1
    ).hex


@given(MS, st.integers(0, 2**76 - 1), st.integers(0, 99_999), st.integers(0, 10**9), APPS)
def test_a_name_records_its_attempt_and_its_owner(
    ms: int, rest: int, subtask: int, attempt: int, app: str
) -> None:
    write_id = write_id_of(ms, rest)
    assert written_at_ms(write_id) == ms
    plain = file_name(write_id, subtask, attempt)
    assert (write_id_in(plain), owner_in(plain)) == (write_id, None)
    for suffix in ("parquet", "csv"):
        name = file_name(write_id, subtask, attempt, suffix=suffix, owner=owner_mark(app))
        assert (write_id_in(name), owner_in(name)) == (write_id, owner_mark(app))


def test_names_that_a_write_id_maker_gave() -> None:
    first, second = uuid7().hex, uuid7().hex
    assert first < second
    assert written_at_ms(first) is not None
    assert write_id_in(f"order-sums-main-part-00000-{first}-3.parquet") == first
    assert write_id_in(f"checkpoint-000000000007-{first}.parquet") == first
    assert write_id_in(f"part-00000-{first}-0.sums.parquet") == first
    assert write_id_in(f"{first}/part-00000-{first}-0.parquet") == first


@pytest.mark.parametrize(
    "name",
    [
        "part-00000-w1-0.parquet",
        f"part-00000-{uuid4().hex}-0.parquet",
        f"part-00000-{uuid7()}-c000.snappy.parquet",
        f"part-00000-{uuid7().hex}0-0.parquet",
        f"part-00000-{uuid7().hex}-{uuid7().hex}.parquet",
        "00000000000000000007.json",
    ],
    ids=["no hexadecimal", "another version", "dashes, as Spark writes it", "too long", "two", "a log entry"],
)
def test_other_names_record_nothing(name: str) -> None:
    assert write_id_in(name) is None
    assert owner_in(name) is None


def test_sinks_of_other_roots_jobs_and_names_have_other_marks() -> None:
    apps = ["1/job/out", "2/job/out", "1/other/out", "1/job/side"]
    assert len({owner_mark(app) for app in apps}) == len(apps)
