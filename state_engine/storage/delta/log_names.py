"""Names of the files in a Delta log."""

from __future__ import annotations

import re
from collections.abc import Iterable

HINT = "_last_checkpoint"
"""Says which log checkpoint is the newest."""
COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet")
_OF_A_VERSION = re.compile(r"(\d{20})\.(?:json|crc|checkpoint(?:\.\d{10}\.\d{10})?\.parquet)")


def commit_name(version: int) -> str:
    """The name of a commit.

    Example:
        >>> commit_name(12)
        '00000000000000000012.json'
    """
    return f"{version:020d}.json"


def version_of(name: str) -> int | None:
    """The version that a commit, a checksum or a log checkpoint of the classic kind belongs to.

    Example:
        >>> version_of("00000000000000000012.crc"), version_of("_last_checkpoint")
        (12, None)
    """
    match = _OF_A_VERSION.fullmatch(name)
    return int(match[1]) if match else None


def log_checkpoints(names: Iterable[str]) -> dict[int, list[str]]:
    """Files of each log checkpoint of the classic kind that is there whole, by version.

    Example:
        >>> log_checkpoints([f"{20:020d}.json", f"{20:020d}.checkpoint.parquet"])
        {20: ['00000000000000000020.checkpoint.parquet']}
    """
    by_version: dict[int, list[str]] = {}
    wanted: dict[int, int] = {}
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        if match:
            version = int(match[1])
            by_version.setdefault(version, []).append(name)
            wanted[version] = int(match[2] or 1)
    return {version: files for version, files in by_version.items() if len(files) >= wanted[version]}


def newest_checkpoint(names: Iterable[str]) -> tuple[int, list[str]]:
    """Version and files of the newest of the log checkpoints; -1 where there is none."""
    whole = log_checkpoints(names)
    return (max(whole), whole[max(whole)]) if whole else (-1, [])
