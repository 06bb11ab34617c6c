"""The examples of the guide on rules beside a stream run as they stand there, in order."""

from __future__ import annotations

from tests.support.guides import GUIDES, run_examples


def test_the_examples_run() -> None:
    run_examples(GUIDES / "broadcast.md", blocks=3)
