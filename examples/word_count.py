"""Word count: how often each word was seen so far, over all runs.

A line is split into words, and the count of a word is its state. Each run reads only the files that are new, and goes
on from the counts of the run before.

    python -m examples.word_count
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from state_engine import DeltaSink, FileSource, StateEngine, StatefulJob

LINES = [["to be or not to be"], ["that is the question", "to sleep"]]
"""The lines of each run."""


def words(line: Any) -> Iterator[tuple[str]]:
    for word in line.text.split():
        yield (word,)


def counted(word: Any, count: int | None) -> tuple[tuple[str, int], int]:
    """The output, and the new state, for a word and its state so far."""
    total = (count or 0) + 1
    return (word.word, total), total


def build(directory: Path) -> StatefulJob:
    """The job, with its input and its output in a directory."""
    job = StatefulJob("word_count", parallelism=2)
    lines = job.source("lines", FileSource(str(directory / "lines"), schema="text string", format="json"))
    (
        lines.flat_map(words, output_type="word string", uid="words")
        .key_by("word")
        .map_with_state(counted, state_type=int, output_type="word string, count bigint", uid="count")
        .sink("counts", DeltaSink(str(directory / "counts")))
    )
    return job


def arrive(directory: Path, name: str, lines: Iterable[str]) -> None:
    """Write lines as one file of the source."""
    (directory / "lines").mkdir(exist_ok=True)
    (directory / "lines" / name).write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))


def main(directory: Path, engine: StateEngine) -> dict[str, int]:
    """Run the job once for each file, and give what it remembers."""
    for number, lines in enumerate(LINES):
        arrive(directory, f"{number}.json", lines)
        engine.run(build(directory))
    state = engine.read_state("word_count", "count", "state")
    return {row["word"]: row["value"] for row in state.collect()}


if __name__ == "__main__":
    with TemporaryDirectory() as scratch, StateEngine(f"{scratch}/state") as own:
        for word, count in sorted(main(Path(scratch), own).items()):
            print(f"{count:3} {word}")
