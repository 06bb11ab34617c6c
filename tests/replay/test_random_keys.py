"""``debug`` on random keys of random jobs: what was recorded, and what comes out now, are equal.

The jobs are those of ``tests/metamorphic``: each operator, kind of state and source, cut into micro-batches, at any
parallelism, on any backend, with compactions in between. ``STATELAKE_TEST_KEYS=200`` is the number of the long test.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import StateEngine, StatefulJob
from state_engine.core.checkpoints.history import History
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.types.columns import one_chunk
from state_engine.open_state import checkpoints
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.located_files import state_files
from tests.metamorphic.jobs import CASES
from tests.metamorphic.variations import by_chance, job_of, performed, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.spark_tasks]

KEYS = int(os.environ.get("STATELAKE_TEST_KEYS", "200"))
WITHOUT_KEYS = ("operator state", "raw state of key groups", "raw state of subtasks", "elements")
"""Cases whose operators keep no state by key, or have no sources to read again."""
DEBUGGED = [name for name in CASES if name not in WITHOUT_KEYS and "postgres" not in name]
SHORT = {"every state, event time": 1, "windows": 1, "operators": 1, "example broadcast_rules": 1}


def ran(name: str, seed: int, directory: Path, spark: SparkSession) -> StatefulJob:
    """A way by chance to run a case, with nothing that goes wrong."""
    case = CASES[name]
    way = by_chance(case, seed, lambda rng: {})
    way = replace(way, neighbour=None, steps=[replace(step, interrupt=None) for step in way.steps])
    performed(case, way, rows_of(case, seed), directory, spark)
    return job_of(case, way, way.steps[-1], directory)


def keys_of(root: Path, job: StatefulJob) -> Iterator[tuple[str, dict[str, Any]]]:
    """All keys that ever had state, by operator, as columns."""
    uri = f"file://{root}"
    path = History(checkpoints(root, job.name)).main_path
    layout = JobLayout(uri, job.name)
    for uid in sorted({o.uid for row in path for o in row.operators} & set(job.operators)):
        keys: dict[str, dict[str, Any]] = {}
        for end in range(1, len(path) + 1):
            recorded = path[end - 1].operator(uid)
            if recorded is None:
                continue
            schema = KeySchema.recorded(recorded.key_schema, recorded.key_type)
            for file in state_files(layout, path[:end], uid):
                column = pq.read_table(file.listed.uri.removeprefix("file://"), columns=["key"])["key"]
                for key in schema.decode_struct(one_chunk(column)) if len(column) else ():
                    parts = key if len(schema.names) > 1 else (key,)
                    keys[repr(key)] = dict(zip(schema.names, parts, strict=True))
        yield from ((uid, keys[text]) for text in sorted(keys))


def check(name: str, seed: int, directory: Path, spark: SparkSession, *, most: int) -> int:
    """Debug some keys of a run from its beginning; how many."""
    job = ran(name, seed, directory, spark)
    known = list(keys_of(directory / "root", job))
    chosen = random.Random(seed).sample(known, min(most, len(known)))
    with StateEngine(directory / "root", spark) as engine:
        batches = [row.checkpoint_id for row in engine.checkpoints(job) if row.kind.is_micro_batch]
        for uid, key in chosen:
            done = engine.debug(job, key, operator=uid, from_checkpoint=batches[0])
            for batch in done.operators[0].batches:
                different = [one for one in batch.states if not one.same]
                outputs = [one for one in batch.outputs if not one.same]
                assert batch.same, (name, uid, key, batch.checkpoint_id, different, outputs, batch.timers)
                assert not batch.problems, (name, uid, key, batch.problems)
    return len(chosen)


@pytest.mark.more
@pytest.mark.parametrize("name", SHORT)
def test_some_keys_do_what_was_recorded(name: str, tmp_path: Path, spark: SparkSession) -> None:
    assert check(name, SHORT[name], tmp_path, spark, most=3)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_random_keys_of_random_jobs_do_what_was_recorded(tmp_path: Path, spark: SparkSession) -> None:
    rng, debugged, seed = random.Random(0), 0, 10
    while debugged < KEYS:
        for name in rng.sample(DEBUGGED, len(DEBUGGED)):
            if debugged < KEYS:
                seed += 1
                debugged += check(name, seed, tmp_path / str(seed), spark, most=min(8, KEYS - debugged))
            print(f"{debugged} keys", flush=True)
    assert debugged == KEYS
