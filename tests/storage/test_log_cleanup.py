"""Which entries a Delta log drops, and when."""

from __future__ import annotations

import os
from pathlib import Path

from state_engine.storage.delta.log_cleanup import clean_log


def log_with(table: Path, at_s: int, *names: str) -> Path:
    log = table / "_delta_log"
    log.mkdir(exist_ok=True)
    for name in names:
        (log / name).touch()
        os.utime(log / name, (at_s, at_s))
    return log


def commits(versions: range, kind: str = "json") -> list[str]:
    return [f"{v:020d}.{kind}" for v in versions]


def checkpoint(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def test_only_what_an_old_log_checkpoint_stands_for_goes(tmp_path: Path) -> None:
    log_with(tmp_path, 100, *commits(range(11)), checkpoint(10))
    log_with(tmp_path, 200, *commits(range(11, 21)), checkpoint(20))
    log = log_with(
        tmp_path, 300, *commits(range(21, 33)), checkpoint(30), "_last_checkpoint", "x.json", "7.json"
    )
    assert clean_log(f"file://{tmp_path}", keep_ms=200_000) == 0
    assert clean_log(f"file://{tmp_path}", keep_ms=100_000) == 10, "10 can be read, as the versions after it"
    assert clean_log(f"file://{tmp_path}", keep_ms=0) == 11
    kept = [*commits(range(20, 33)), checkpoint(20), checkpoint(30), "_last_checkpoint", "x.json", "7.json"]
    assert sorted(f.name for f in log.iterdir()) == sorted(kept)
    assert clean_log(f"file://{tmp_path}", keep_ms=0) == 0


def test_checksums_before_the_newest_log_checkpoint_go(tmp_path: Path) -> None:
    names = [*commits(range(23), "crc"), *commits(range(23)), checkpoint(10), checkpoint(20)]
    log = log_with(tmp_path, 100, *names)
    assert clean_log(f"file://{tmp_path}", keep_ms=1) == 20
    assert sorted(f.name for f in log.glob("*.crc")) == commits(range(20, 23), "crc")
    assert len(list(log.iterdir())) == 23 + 3 + 2, "all else stays"


def test_a_log_checkpoint_that_is_not_whole_does_not_count(tmp_path: Path) -> None:
    part = f"{10:020d}.checkpoint.{1:010d}.{2:010d}.parquet"
    log = log_with(tmp_path, 100, *commits(range(12)), *commits(range(12), "crc"), part)
    log_with(tmp_path, 200, "_last_checkpoint")
    assert clean_log(f"file://{tmp_path}", keep_ms=0) == 0
    log_with(tmp_path, 100, f"{10:020d}.checkpoint.{2:010d}.{2:010d}.parquet")
    assert clean_log(f"file://{tmp_path}", keep_ms=0) == 20
    assert len(list(log.iterdir())) == 2 + 2 + 2 + 1


def test_without_a_table_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert clean_log(f"file://{tmp_path}/none", keep_ms=1) == 0
