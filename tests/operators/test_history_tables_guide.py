"""The code of the guide on last rows and versions runs, and does what the guide says."""

from __future__ import annotations

from tests.support.guides import GUIDES, run_examples


def test_the_guide() -> None:
    run_examples(GUIDES / "history_tables.md", blocks=4)
