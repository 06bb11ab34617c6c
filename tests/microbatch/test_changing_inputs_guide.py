"""The code of the guide on inputs that change runs, and does what the guide says."""

from __future__ import annotations

from tests.support.guides import GUIDES, run_examples


def test_the_guide() -> None:
    run_examples(GUIDES / "changing_inputs.md", blocks=4)
