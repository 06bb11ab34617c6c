"""Errors: one root, and the tree in the docstring is the tree of the classes."""

from __future__ import annotations

import inspect
import json
import pickle
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from state_engine.core import errors


def test_the_docstring_draws_the_classes() -> None:
    drawn: dict[str, str] = {}
    stack: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        drawn_class = re.match(r"^((?:[│ ] {3})*)(?:[├└]── )?([A-Z]\w+Error)\b", line)
        if drawn_class:
            depth = len(drawn_class.group(1)) // 4 + (1 if "──" in line else 0)
            stack[depth:] = [drawn_class.group(2)]
            drawn[drawn_class.group(2)] = stack[depth - 1] if depth else "Exception"
    classes = {
        name: cls.__mro__[1].__name__
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if cls.__module__ == errors.__name__
    }
    assert drawn == classes


def test_configuration_errors_are_what_python_would_raise() -> None:
    assert issubclass(errors.ConfigurationError, ValueError)
    assert issubclass(errors.ValueTypeError, TypeError)


def test_a_user_function_error_names_all_that_is_known() -> None:
    error = errors.UserFunctionError(
        job="j",
        operator="o",
        cause="ValueError: bad",
        key="'k'",
        position="source 's', f, row 3",
        traceback_text="TB",
    )
    text = str(error)
    for part in (
        "job 'j'",
        "operator 'o'",
        "key 'k'",
        "source 's', f, row 3",
        "ValueError: bad",
        "dead_letter",
        "TB",
    ):
        assert part in text
    assert "Nothing of this micro-batch was committed" in text
    assert (error.job, error.operator, error.key, error.position) == ("j", "o", "'k'", "source 's', f, row 3")


@pytest.mark.parametrize("can_be_set_aside", [True, False])
def test_setting_rows_aside_is_proposed_only_where_it_helps(can_be_set_aside: bool) -> None:
    error = errors.UserFunctionError(job="j", operator="o", cause="bad", can_be_set_aside=can_be_set_aside)
    assert ("set on_error='dead_letter'" in str(error)) is can_be_set_aside


@pytest.mark.internal_errors
def test_errors_can_be_pickled() -> None:
    for name, cls in inspect.getmembers(errors, inspect.isclass):
        if issubclass(cls, errors.StatelakeError) and cls is not errors.UserFunctionError:
            assert str(pickle.loads(pickle.dumps(cls("text")))) == "text", name


@pytest.mark.internal_errors
def test_every_error_can_be_made_again_in_another_process() -> None:
    kinds = [
        kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__
    ]
    assert len(kinds) > 30
    for kind in kinds:
        error = errors.from_wire({"class": kind.__name__, "message": "what happened", "attributes": {}})
        assert (type(error), str(error)) == (kind, "what happened")


def test_an_error_crosses_processes_with_its_attributes_and_the_name_of_its_job_once() -> None:
    failed = errors.UserFunctionError(job="j", operator="o", cause="bad", key="k", position="row 3")
    for error in (failed, errors.BadFileError("it is cut", "a.csv", letter="cut")):
        again = errors.from_wire(json.loads(json.dumps(errors.to_wire(error))))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    prefixed = [str(errors.from_wire(errors.to_wire(e), prefix="job 'j': ")) for e in (failed, KeyError("k"))]
    assert prefixed == [str(failed), "job 'j': KeyError: 'k'"]


class _Private(errors.SinkError):
    pass


def test_a_private_class_arrives_as_the_public_one_that_it_is() -> None:
    assert type(errors.from_wire(errors.to_wire(_Private("it is full")))) is errors.SinkError


def _fail() -> None:
    raise errors.UserFunctionError(job="j", operator="o", cause="bad", key="'k'", position="row 3")


def test_a_process_pool_hands_a_failure_of_a_user_function_on() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        error = pool.submit(_fail).exception()
    assert isinstance(error, errors.UserFunctionError)
    with pytest.raises(errors.UserFunctionError) as here:
        _fail()
    assert str(error) == str(here.value)
    assert (error.job, error.key, error.position) == ("j", "'k'", "row 3")
    assert error.__notes__ == here.value.__notes__
