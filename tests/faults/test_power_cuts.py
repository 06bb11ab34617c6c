"""The power goes before any file access of any operation, and the disk loses a part of what was not synced.

Then a fresh engine runs: state and sinks are those of an uninterrupted run. Without syncs it is another matter, which
shows that the cuts cut something.
"""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

from state_engine.core.errors import StatelakeError
from state_engine.storage import durability
from tests.faults.file_plane import installed
from tests.faults.ground import OPERATIONS, Ground, Grounds, in_this_process
from tests.faults.power_cut import Disk, PowerCut


def accesses_of(ground: Ground) -> int:
    """How many accesses the operation has."""
    disk = _cut(ground, None)
    return disk.seen


def cut_at(ground: Ground, number: int, seed: int) -> str:
    """Cut the power before an access, lose something, and go on; how much was lost, in short."""
    disk = _cut(ground, number)
    lost = disk.lose(random.Random(f"{ground.operation} {number} {seed}"))
    with in_this_process() as clock:
        ground.pass_time(clock)
        try:
            ground.finish_and_check(clock, ended=not disk.is_off)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {str(error)[:300]}; lost: {lost}") from error
    return "lost something" if lost else "lost nothing"


def _cut(ground: Ground, number: int | None) -> Disk:
    durability.forget()  # another disk
    with ground.anew() as clock:
        disk = Disk(str(ground.site.directory), number)
        with installed(disk):
            try:
                ground.perform(clock)
            except (PowerCut, StatelakeError):
                assert disk.is_off
    return disk


def tried(ground: Ground, *, every: int, seeds: range) -> Counter[str]:
    """Cut the power before one of ``every`` accesses; how it went."""
    found: Counter[str] = Counter()
    wrong = []
    for number in range(1, accesses_of(ground) + 2, every):
        for seed in seeds:
            try:
                found[cut_at(ground, number, seed)] += 1
            except AssertionError as error:
                wrong.append(f"before access {number}, seed {seed}: {error}")
    assert not wrong, f"{len(wrong)} cuts of {ground.operation} went wrong:\n" + "\n".join(wrong)
    return found


@pytest.mark.parametrize("operation", ["batch"])
def test_a_power_cut_loses_nothing(operation: str, grounds: Grounds) -> None:
    assert tried(grounds(operation), every=43, seeds=range(1))


@pytest.mark.faults
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_power_cut_anywhere_loses_anything(
    operation: str, grounds: Grounds, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tried(grounds(operation), every=3, seeds=range(2))
    with capsys.disabled():
        print(f"\n{operation}: {sum(found.values())} power cuts ({dict(found)}), 0 wrong")


def test_without_syncs_a_power_cut_does_harm(grounds: Grounds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bed finds what the syncs are for."""
    ground = grounds("batch")
    monkeypatch.setattr("state_engine.storage.durability._side_by_side", lambda paths: None)
    disk = _cut(ground, None)
    disk.lose_all_content()
    with in_this_process() as clock, pytest.raises((StatelakeError, AssertionError, pa.ArrowInvalid)):
        ground.finish_and_check(clock, ended=True)


def test_with_syncs_it_does_none(grounds: Grounds) -> None:
    ground = grounds("batch")
    disk = _cut(ground, None)
    disk.lose_all_content()
    with in_this_process() as clock:
        ground.finish_and_check(clock, ended=True)
