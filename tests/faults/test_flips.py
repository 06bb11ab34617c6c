"""Flipped bits in files of state and of checkpoints are reported, wherever they are; none ends the process."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import open_state
from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.state_files import operator_state_files
from state_engine.core.errors import DamagedFileError
from state_engine.core.keys.key_schema import KeySchema
from state_engine.monitoring.job_history import read_history
from state_engine.queries.stored_entries import key_schema
from state_engine.sources.source_positions import SourcePositions
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.changelog import StateFiles
from state_engine.storage.state.listed_files import AllKeys
from state_engine.storage.state.located_files import state_files
from state_engine.storage.state.operator_state_files import read_subtask_state
from state_engine.storage.stores.files import normal_uri
from tests.faults.workloads import WORKLOADS, Site

ROOT_OF_REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path: Path, spark: SparkSession) -> Path:
    """Of two jobs: changes, a base, changes after it; lists of operator state; positions; rows."""
    for name in ("keyed", "operator"):
        site = Site(tmp_path, WORKLOADS[name], spark)
        site.run(max_batches=1)
        if name == "keyed":
            with site.engine() as engine:
                engine.compact(name)
        site.run()
    return tmp_path / "root"


@pytest.mark.parametrize("flips", [30, pytest.param(1_000, marks=pytest.mark.faults)])
def test_no_flip_is_silent_and_none_ends_the_process(root: Path, flips: int) -> None:
    command = [sys.executable, "-m", "tests.faults.test_flips", str(root), str(flips), str(flips)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT_OF_REPOSITORY, timeout=280)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown.get("silent", 0) == 0, shown
    assert shown.get("raw", 0) == 0, shown
    assert shown["noticed"] + shown.get("harmless", 0) == flips, shown
    # the others hit statistics in the headers of pages, which nobody reads, and files that a base took the place of
    assert shown["noticed"] > flips * 0.6, shown


FOOTER_BYTES = 600
"""Half of the flips fall into so many bytes at the end of a file."""


def read_all(root: Path, job: str) -> str:
    """All that the engine reads of a job: rows, keyed state in queries and in subtasks, operator state."""
    history = read_history(str(root), job)
    assert history is not None
    layout = JobLayout(normal_uri(root), job)
    seen: list[Any] = [repr(row) for row in history.checkpoints.values()]
    seen += _state(root, job, history.path)
    seen += [
        SourcePositions(layout.operator_state).elements(history.path, s.name)
        for s in history.path[-1].sources
    ]
    return repr(seen)


def _state(root: Path, job: str, path: list[CheckpointRow]) -> list[Any]:
    seen: list[Any] = []
    layout, head = JobLayout(normal_uri(root), job), path[-1]
    for operator in head.operators:
        names = [state.name for state in operator.states]
        seen += [open_state.read_state(root, job, operator.uid, name).to_pylist() for name in names]
        files = [f.listed for f in state_files(layout, path, operator.uid)]
        schema: KeySchema = key_schema(operator)
        stored = StateFiles(files, AllKeys(), schema)
        seen += [
            part.read([n for n in sorted(part.columns) if n != "key_group"]).to_pylist()
            for part in stored._parts
        ]
    for ref in head.operator_state:
        if ref.states:
            for subtask in range(ref.parallelism):
                seen.append(
                    read_subtask_state(
                        ref,
                        operator_state_files(path, ref),
                        uri=layout.operator_state,
                        subtask=subtask,
                        parallelism=ref.parallelism,
                        max_parallelism=8,
                        restored=False,
                    )
                )
    return seen


def flips(root: Path, number: int, seed: int) -> dict[str, Any]:
    """Flip, read, restore, and count."""
    chance, shown = random.Random(seed), Counter[str]()
    files = [p for p in sorted(root.rglob("*.parquet")) if "_delta_log" not in p.parts]
    jobs = {file: file.relative_to(root).parts[0] for file in files}
    true, raw = {job: read_all(root, job) for job in set(jobs.values())}, []
    for _ in range(number):
        file = chance.choice(files)
        content = file.read_bytes()
        start = max(len(content) - FOOTER_BYTES, 0) if chance.random() < 0.5 else 0
        at, bit = chance.randrange(start, len(content)), chance.randrange(8)
        file.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
        try:
            shown["harmless" if read_all(root, jobs[file]) == true[jobs[file]] else "silent"] += 1
        except DamagedFileError:
            shown["noticed"] += 1
        except Exception as error:
            shown["raw"] += 1
            raw.append(f"{file.relative_to(root)} byte {at} bit {bit}: {error!r}"[:500])
        finally:
            file.write_bytes(content)
    assert {job: read_all(root, job) for job in true} == true
    return {**shown, "files": len(files), "examples": raw[:5]}


if __name__ == "__main__":
    print(json.dumps(flips(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
