"""A power cut before any file access of any operation; the disk loses a part of what was not synced.

Then a fresh engine runs: state and sinks are those of an uninterrupted run. Without syncs it is another matter, which
shows that the cuts cut something.
"""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

from state_engine.core.errors import StatelakeError
from state_engine.storage.stores import durability
from tests.faults.file_plane import installed
from tests.faults.power_cut import Disk, PowerCut
from tests.faults.sites import OPERATIONS, SavedSite, SavedSites, in_this_process


def accesses_of(saved_site: SavedSite) -> int:
    """How many accesses the operation has."""
    disk = _cut(saved_site, None)
    return disk.seen


def cut_at(saved_site: SavedSite, number: int, seed: int) -> str:
    """Cut the power before an access, lose unsynced content, and go on; a short text about the loss."""
    disk = _cut(saved_site, number)
    lost = disk.lose(random.Random(f"{saved_site.operation} {number} {seed}"))
    with in_this_process() as clock:
        saved_site.pass_time(clock)
        try:
            saved_site.finish_and_check(clock, ended=not disk.is_off)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {str(error)[:300]}; lost: {lost}") from error
    return "lost something" if lost else "lost nothing"


def _cut(saved_site: SavedSite, number: int | None) -> Disk:
    durability.forget()  # another disk
    with saved_site.anew() as clock:
        disk = Disk(str(saved_site.site.directory), number)
        with installed(disk):
            try:
                saved_site.perform(clock)
            except (PowerCut, StatelakeError):
                assert disk.is_off
    return disk


def tried(saved_site: SavedSite, *, every: int, seeds: range) -> Counter[str]:
    """Cut the power before one of ``every`` accesses; the number of each end."""
    ends: Counter[str] = Counter()
    wrong = []
    for number in range(1, accesses_of(saved_site) + 2, every):
        for seed in seeds:
            try:
                ends[cut_at(saved_site, number, seed)] += 1
            except AssertionError as error:
                wrong.append(f"before access {number}, seed {seed}: {error}")
    assert not wrong, f"{len(wrong)} cuts of {saved_site.operation} went wrong:\n" + "\n".join(wrong)
    return ends


@pytest.mark.parametrize("operation", ["batch"])
def test_a_power_cut_loses_nothing(operation: str, saved_sites: SavedSites) -> None:
    assert tried(saved_sites(operation), every=43, seeds=range(1))


@pytest.mark.faults
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_power_cut_anywhere_loses_anything(
    operation: str, saved_sites: SavedSites, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = tried(saved_sites(operation), every=3, seeds=range(2))
    with capsys.disabled():
        print(f"\n{operation}: {sum(ends.values())} power cuts ({dict(ends)}), 0 wrong")


def test_without_syncs_a_power_cut_does_harm(
    saved_sites: SavedSites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests fail without syncs."""
    saved_site = saved_sites("batch")
    monkeypatch.setattr("state_engine.storage.stores.durability._each", lambda paths, sync: None)
    disk = _cut(saved_site, None)
    disk.lose_all_content()
    with in_this_process() as clock, pytest.raises((StatelakeError, AssertionError, pa.ArrowInvalid)):
        saved_site.finish_and_check(clock, ended=True)


def test_with_syncs_it_does_none(saved_sites: SavedSites) -> None:
    saved_site = saved_sites("batch")
    disk = _cut(saved_site, None)
    disk.lose_all_content()
    with in_this_process() as clock:
        saved_site.finish_and_check(clock, ended=True)
