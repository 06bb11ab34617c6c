"""The examples of the guide on functions over columns run as they stand there, in order."""

from __future__ import annotations

from tests.support.guides import GUIDES, run_examples


def test_the_examples_run() -> None:
    run_examples(GUIDES / "columns.md", blocks=2)
