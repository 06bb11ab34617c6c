"""Every file of a root and of its outputs is damaged in each way, before each call.

A call that meets damage is refused with an error that says so, or gives what it gives without the damage.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from state_engine import StateEngine, StatefulJob
from state_engine.cli.main import app
from state_engine.core.errors import InternalError, StatelakeError
from state_engine.testing import subtasks_in_process
from tests.misuse.damaged_place import DamagedPlace

pytestmark = pytest.mark.spark


def state(engine: StateEngine, job: StatefulJob) -> list[Any]:
    return sorted(tuple(row)[:2] for row in engine.read_state(job, "sums", "total").collect())


def after(do: Callable[[StateEngine, StatefulJob], object]) -> Callable[[DamagedPlace], Any]:
    def call(place: DamagedPlace) -> Any:
        with place.engine() as engine:
            do(engine, place.job())
            return state(engine, place.job())

    return call


def asked(ask: Callable[[StateEngine, StatefulJob], Any]) -> Callable[[DamagedPlace], Any]:
    def call(place: DamagedPlace) -> Any:
        with place.engine() as engine:
            return ask(engine, place.job())

    return call


def command(*words: str) -> Callable[[DamagedPlace], Any]:
    def call(place: DamagedPlace) -> Any:
        done = CliRunner().invoke(app, list(words), env={"STATELAKE__ROOT": str(place.at / "root")})
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert "Traceback" not in done.output

    return call


def first_two(engine: StateEngine, job: StatefulJob) -> list[int]:
    return [row.checkpoint_id for row in engine.checkpoints(job)][:2]


CALLS: dict[str, Callable[[DamagedPlace], Any]] = {
    "run": after(lambda engine, job: engine.run(job)),
    "compact": after(lambda engine, job: engine.compact(job)),
    "vacuum": after(lambda engine, job: engine.vacuum(job)),
    "rescale": after(lambda engine, job: engine.rescale(job, parallelism=3)),
    "restore": after(lambda engine, job: engine.restore(job, checkpoint_id=first_two(engine, job)[0])),
    "replay": after(lambda engine, job: engine.replay(job, branch="again")),
    "expire": after(lambda engine, job: engine.expire_checkpoints(job)),
    "rebuild-table": after(lambda engine, job: engine.published(job).rebuild("shown")),
    "savepoint": after(lambda engine, job: engine.savepoints(job).create("more", f"{engine.root}/../more")),
    "sql": asked(lambda engine, job: sorted(engine.sql(job, "SELECT k, value FROM total").collect())),
    "explain": asked(lambda engine, job: [engine.explain(job, "a") and None]),  # says what cannot be known
    "debug": asked(lambda engine, job: [engine.debug(job, "a") and None]),  # says what cannot be known
    "diff": asked(
        lambda engine, job: [
            sorted(map(str, one.changes.collect())) for one in engine.diff(job, *first_two(engine, job))
        ]
    ),
    "status": command("status"),
    "doctor": command("doctor"),
    "doctor --repair": command("doctor", "--repair"),
    "query": command("query", "sums", "SELECT * FROM total"),
}
WAYS: dict[str, Callable[[bytes], bytes | None]] = {
    "gone": lambda _: None,
    "empty": lambda _: b"",
    "cut": lambda data: data[: len(data) // 2],
    "a bit flipped": lambda data: (
        data[: len(data) // 2]
        + bytes(b ^ 0x10 for b in data[len(data) // 2 :][:1])
        + data[len(data) // 2 + 1 :]
    ),
    "other content": lambda _: b"\x00\xff{]" * 40,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[DamagedPlace]:
    with subtasks_in_process(spark):
        yield DamagedPlace(tmp_path_factory.mktemp("damage"), spark)


@pytest.fixture(scope="module")
def undamaged(place: DamagedPlace) -> dict[str, Any]:
    return {name: call(place.put_back()) for name, call in CALLS.items()}


def one_of_each_kind(place: DamagedPlace) -> list[Path]:
    """The first and the last of the files whose names differ in numbers only."""
    kinds: dict[str, list[Path]] = {}
    for path in place.put_back().all("**/*"):
        inside = path.relative_to(place.at)
        if inside.parts[0] != "in":
            kinds.setdefault(re.sub(r"[0-9a-f-]{3,}", "#", str(inside)), []).append(inside)
    return [path for paths in kinds.values() for path in {paths[0], paths[-1]}]


@pytest.mark.parametrize(
    ("seed", "count"),
    [
        pytest.param(0, 30, marks=pytest.mark.more),
        *(pytest.param(seed, 250, marks=pytest.mark.long) for seed in range(1, 5)),
    ],
)
def test_a_damaged_file_changes_no_result(
    place: DamagedPlace, undamaged: dict[str, Any], seed: int, count: int
) -> None:
    chance, files = random.Random(seed), sorted(one_of_each_kind(place))
    refused = 0
    for _ in range(count):
        path, way, call = chance.choice(files), chance.choice([*WAYS]), chance.choice([*CALLS])
        damaged = place.put_back().at / path
        content = WAYS[way](damaged.read_bytes())
        damaged.unlink()
        if content is not None:
            damaged.write_bytes(content)
        try:
            result = CALLS[call](place)
        except Exception as error:
            if isinstance(error, InternalError) or not isinstance(error, StatelakeError):
                error.add_note(f"{path}, {way}, before {call}")
                raise
            refused += 1
        else:
            assert result == undamaged[call], (path, way, call)
    assert refused, "nothing was met"
