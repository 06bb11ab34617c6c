"""Every file access of every operation fails in every way; then plain runs give the results of a calm run.

A sample runs with ``make test-all``, everything with ``make test-faults``.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest

from state_engine.core.errors import StatelakeError
from tests.faults.file_plane import Access, Plane, What, installed
from tests.faults.sites import CLOCK_MS, OPERATIONS, SavedSite, SavedSites
from tests.protocol.model_job import JOB


def accesses_of(saved_site: SavedSite) -> list[Access]:
    """Every access of an operation to a file, in a run without faults."""
    with saved_site.anew() as clock:
        with installed(Plane(str(saved_site.site.directory))) as plane:
            saved_site.perform(clock)
        saved_site.finish_and_check(clock, ended=True)
    return sorted(set(plane.accesses))


def attempt(saved_site: SavedSite, access: Access, what: What) -> str:
    """Try one case; the end of the operation that met it."""
    site = saved_site.site

    def rival() -> None:
        with suppress(StatelakeError), site.engine(lock_timeout_s=0.05) as engine:
            engine.run(site.job(), clock=CLOCK_MS, max_batches=1)

    with saved_site.anew() as clock:
        ended: Exception | None = None
        with installed(Plane(str(site.directory), access, what, rival)) as plane:
            try:
                saved_site.perform(clock)
            except StatelakeError as error:
                ended = error
        if not plane.fired:
            return "not reached"
        if what == "fail" and ended is not None:
            assert f"job '{JOB}'" in str(ended), f"names no job: {ended}"
            assert "/" in str(ended), f"names no path: {ended}"
            kept = ("committed", "Earlier commits are unchanged", "all commits are unchanged")
            assert any(text in str(ended) for text in kept), f"does not say what was kept: {ended}"
        saved_site.finish_and_check(clock, ended=ended is None)
    return "went on" if ended is None else type(ended).__name__


def tried(saved_site: SavedSite, *, every: int = 1) -> Counter[tuple[str, str, str]]:
    """Try all cases of an operation, or one of ``every``; how many of each access and fault ended how."""
    ends: Counter[tuple[str, str, str]] = Counter()
    cases = [(access, what) for access in accesses_of(saved_site) for what in access.happens()]
    wrong = []
    for access, what in cases[::every]:
        try:
            ends[access.kind, what, attempt(saved_site, access, what)] += 1
        except Exception as error:
            wrong.append(f"{what} {access}: {type(error).__name__}: {str(error)[:400]}")
    assert not wrong, f"{len(wrong)} of {len(cases[::every])} cases went wrong:\n" + "\n".join(wrong)
    return ends


@pytest.mark.parametrize("operation", ["batch"])
def test_a_sample_of_file_faults_changes_no_result(operation: str, saved_sites: SavedSites) -> None:
    ends = tried(saved_sites(operation), every=101)
    assert sum(ends.values()) >= 5


@pytest.mark.faults
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_file_fault_changes_no_result(
    operation: str, saved_sites: SavedSites, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = tried(saved_sites(operation))
    with capsys.disabled():
        print(f"\n{operation}: {sum(ends.values())} cases, 0 wrong")
        for (kind, what, end), count in sorted(ends.items()):
            print(f"  {kind:10} {what:6} {end:22} {count}")
    assert {kind for kind, _, _ in ends} >= {"look", "read", "write", "move", "sync"}
