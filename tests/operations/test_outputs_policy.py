"""A policy for each sink: what a restore and a promotion withdraw from the one, the other one keeps."""

from __future__ import annotations

from typing import Any

import pytest

from state_engine import StatefulJob
from state_engine.cli.options import outputs_policy
from state_engine.core.errors import ConfigurationError
from state_engine.operations.outputs_policy import OutputsOfSinks, OutputsPolicy, outputs_of
from state_engine.testing import CollectSink, MemoryRun, run_in_memory


def job() -> StatefulJob:
    job = StatefulJob("two")
    numbers = job.from_collection([1, 2, 3], int, name="numbers", max_rows_per_batch=1)
    doubled = numbers.map(lambda n: n * 2, output_type=int, uid="doubled")
    for name in ("history", "mail"):
        doubled.sink(name, CollectSink())
    return job


def shown(run: MemoryRun) -> dict[str, list[Any]]:
    return {name: sorted(run.sink(name)) for name in ("history", "mail")}


@pytest.mark.parametrize(
    ("outputs", "history", "mail"),
    [
        ("withdraw", [2], [2]),
        ("keep", [2, 4, 6], [2, 4, 6]),
        ({"mail": "keep"}, [2], [2, 4, 6]),
        ({"mail": "keep", "history": "withdraw"}, [2], [2, 4, 6]),
        ({"mail": "keep", "history": "keep"}, [2, 4, 6], [2, 4, 6]),
        ({}, [2], [2]),
    ],
)
def test_a_restore_follows_the_policy_of_each_sink(
    outputs: OutputsPolicy, history: list[int], mail: list[int]
) -> None:
    with run_in_memory(job()) as run:
        run.run()
        done = run.restore(1, outputs=outputs)
        assert shown(run) == {"history": history, "mail": mail}
        left = {"history": 3 - len(history), "mail": 3 - len(mail)}
        assert done.rows_withdrawn == {name: rows for name, rows in left.items() if rows}
        run.run()  # what is read again comes again, beside what was kept
        again = {"history": history, "mail": mail}
        assert shown(run) == {name: sorted([2, 4, 6, *kept[1:]]) for name, kept in again.items()}


def test_a_promotion_follows_the_policy_of_each_sink() -> None:
    with run_in_memory(job()) as run:
        run.run()
        run.replay(outputs={"mail": "keep"})
        assert shown(run) == {"history": [2, 4, 6], "mail": [2, 2, 4, 4, 6, 6]}


def test_a_policy_of_the_shell() -> None:
    assert outputs_of(outputs_policy(["mail=keep"])) == OutputsOfSinks({"mail": "keep"})
    assert outputs_of(outputs_policy(["keep"])) == OutputsOfSinks({}, "keep")
    with pytest.raises(ConfigurationError, match="outputs must be"):
        outputs_of(outputs_policy(["mail=drop"]))
