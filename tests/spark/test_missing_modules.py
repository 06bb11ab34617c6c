"""What Spark says of a Python that lacks something, and what the engine makes of it; also ``test_local_cluster``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from state_engine.core.errors import SetupError
from state_engine.spark.failures import unfit_python

SESSION: Any = SimpleNamespace(sparkContext=SimpleNamespace(pythonExec="/opt/python"))
TASK = "Job aborted: Lost task 0.3 in stage 4.0 (TID 17) (10.0.0.7 executor 2): "


def failure(text: str) -> SetupError | None:
    """What the engine makes of an error with a message of Spark among its causes."""
    java = SimpleNamespace(
        _target_id="o1", _gateway_client=None, getMessage=lambda: TASK + text, getCause=lambda: None
    )
    error = ValueError("no")
    error.__cause__ = Py4JJavaError("no", java)
    return unfit_python(error, session=SESSION, job="sums")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "ModuleNotFoundError: No module named 'pyarrow.lib'",
            ["no module 'pyarrow.lib'", "Install pyarrow=="],
        ),
        (
            "ModuleNotFoundError: No module named 'nowhere'",
            ["no module 'nowhere'", "Install 'nowhere' there"],
        ),
        (
            "python: Error while finding module specification (ModuleNotFoundError: No module named 'state_engine')",
            ["no module 'state_engine', the engine itself", "Install statelake there"],
        ),
        (
            "[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was not found.",
            ["no module 'pyarrow'"],
        ),
        (
            'Cannot run program "/nowhere/python": error=2, No such file or directory',
            ["there is no Python /nowhere/python"],
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11",
            ["is another: Python in worker has different version: 3.9"],
        ),
    ],
)
def test_what_the_python_of_tasks_lacks_is_named_with_the_place_and_the_remedy(
    text: str, said: list[str]
) -> None:
    message = str(failure(text))
    assert message.startswith("job 'sums': ")
    assert "spark.pyspark.python" in message
    assert "all commits are kept" in message
    for part in said:
        assert part in message
    if "there is no Python" not in message:
        assert "/opt/python, of executor 2 on 10.0.0.7" in message


def test_other_failures_of_tasks_are_left_to_others() -> None:
    assert failure("ValueError: no") is None
