"""The code of the guide on event time runs, and says what it says."""

from __future__ import annotations

from tests.support.guides import GUIDES, run_examples


def test_the_code_of_the_guide_runs() -> None:
    run_examples(GUIDES / "event_time.md", blocks=4)
