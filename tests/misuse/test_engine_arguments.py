"""The public calls of an engine take any wrong argument as one, before anything is done with it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from state_engine import JobPublished, JobSavepoints, StateEngine, StatefulJob, StateProcessor
from state_engine.core.errors import ConfigurationError, InternalError, StatelakeError
from state_engine.testing import MemoryRun, run_in_memory
from tests.misuse.test_constructors import WRONG
from tests.misuse.test_ways_out import Sum, summing

Calls = Callable[[StateEngine, StatefulJob], dict[Callable[..., Any], dict[str, Any]]]


def of_engine(engine: StateEngine, job: StatefulJob) -> dict[Callable[..., Any], dict[str, Any]]:
    on_job = {"job": job}
    return {
        engine.run: on_job,
        engine.publish_pending: on_job,
        engine.checkpoints: on_job,
        engine.read_state: on_job | {"operator": "sum", "state": "total"},
        engine.sql: on_job | {"text": "SELECT * FROM total"},
        engine.list_views: on_job,
        engine.diff: on_job | {"before": 1, "after": 2},
        engine.explain: on_job | {"key": "a"},
        engine.debug: on_job | {"key": "a"},
        engine.plan: on_job,
        engine.partitions: on_job,
        engine.register: {"catalog": "spark_catalog", "schema": "lake"},
        engine.dead_letters: on_job,
        engine.list_dead_letters: on_job,
        engine.replay_dead_letters: on_job,
        engine.restore: on_job | {"checkpoint_id": 1},
        engine.rescale: on_job,
        engine.replay: on_job,
        engine.backfill: on_job | {"start": "2024-01-01", "end": "2024-01-02"},
        engine.branches: on_job,
        engine.compare: on_job | {"branch": "replay_1"},
        engine.promote: on_job | {"branch": "replay_1"},
        engine.drop_branch: on_job | {"branch": "replay_1"},
        engine.compact: on_job,
        engine.expire_checkpoints: on_job,
        engine.vacuum: on_job,
        engine.published: on_job,
        engine.savepoints: on_job,
        engine.state_processor: on_job,
    }


def of_processor(engine: StateEngine, job: StatefulJob) -> dict[Callable[..., Any], dict[str, Any]]:
    processor = engine.state_processor(job)
    return {
        processor.bootstrap: {"states": {}},
        processor.bootstrap_from_spark: {"operator": "sum", "checkpoint_location": "/query", "states": {}},
        processor.transform_state: {"operator": "sum", "state": "total"},
        processor.change_key_type: {"operator": "sum"},
        processor.drop_operators: {},
        processor.erase_keys: {"keys": {"k": "a"}},
    }


def of_savepoints(engine: StateEngine, job: StatefulJob) -> dict[Callable[..., Any], dict[str, Any]]:
    savepoints = engine.savepoints(job)
    return {
        savepoints.create: {"name": "first"},
        savepoints.verify: {"savepoint": "first"},
        savepoints.delete: {"name": "first"},
        savepoints.list: {},
    }


def of_published(engine: StateEngine, job: StatefulJob) -> dict[Callable[..., Any], dict[str, Any]]:
    published = engine.published(job)
    return {
        published.rebuild: {"table": "sums"},
        published.verify: {"table": "sums"},
        published.accept: {"table": "sums"},
        published.tidy: {},
    }


CALLS: dict[type, Calls] = {
    StateEngine: of_engine,
    StateProcessor: of_processor,
    JobSavepoints: of_savepoints,
    JobPublished: of_published,
}
_ELSEWHERE = {"close", "upgrade"}
"""Takes nothing; and makes an engine, whose arguments have a test of their own."""


@pytest.fixture
def run() -> Iterator[MemoryRun]:
    with run_in_memory(summing(Sum())) as run:
        run.process({"rows": [("a", 1)]})
        yield run


@pytest.mark.parametrize("cls", CALLS, ids=lambda cls: cls.__name__)
def test_a_wrong_argument_is_taken_or_refused_as_one(cls: type, run: MemoryRun) -> None:
    raw = []
    calls = CALLS[cls](run._engine, summing(Sum()))
    assert {call.__name__ for call in calls} == {n for n, _ in _methods(cls)} - _ELSEWHERE
    for call, valid in calls.items():
        for name, parameter in inspect.signature(call).parameters.items():
            for wrong in filter(lambda value: not callable(value), WRONG):
                at_any_place = parameter.kind is parameter.VAR_POSITIONAL
                with warnings.catch_warnings(action="ignore"):
                    refusal = refused(call, wrong) if at_any_place else refused(call, **valid | {name: wrong})
                if not isinstance(refusal, StatelakeError | None) or isinstance(refusal, InternalError):
                    raw.append(f"{call.__name__}({name}={wrong!r}): {refusal!r}")
    assert not raw


def _methods(cls: type) -> list[tuple[str, Any]]:
    return [(n, m) for n, m in vars(cls).items() if not n.startswith("_") and not isinstance(m, property)]


def refused(call: Callable[..., Any], *args: Any, **options: Any) -> Exception | None:
    try:
        call(*args, **options)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_batches": "x"}, r"StateEngine\.run: max_batches must be a whole number or None, not 'x'"),
        ({"drain": "no"}, r"StateEngine\.run: drain must be True or False, not 'no'"),
        ({"parameters": ["x"]}, r"StateEngine\.run: parameters must be a dict or None, not \['x'\]"),
    ],
    ids=lambda case: str(case)[:30],
)
def test_the_message_names_call_argument_and_what_it_takes(
    wrong: dict[str, Any], message: str, run: MemoryRun
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run._engine.run(summing(Sum()), **wrong)
    assert len(run.checkpoints()) == 1


def test_one_name_in_place_of_a_list_is_refused_with_the_list(run: MemoryRun) -> None:
    with pytest.raises(
        ConfigurationError, match=r"operators must be a list of text or None, not 'sum': \['sum'\]"
    ):
        run._engine.compact(summing(Sum()), "sum")
