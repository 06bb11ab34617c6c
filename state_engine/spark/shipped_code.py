"""Code on its way to workers: what runs there is what the driver has.

Functions of modules are pickled by name, so a Spark worker, which lives longer than a job, would run the module as it
once imported it. Therefore each piece of work travels with digests of the code that it reaches, and the worker compares
them with what it has. Where the code of this process has changed since it was last sent (``importlib.reload``, an
edit in a notebook), workers are replaced by new ones first. Where a worker has other code all the same (a file that was
edited and not loaded here, an archive of yesterday) or none, it refuses before any user code runs, and the driver sends
its own modules by value. What cannot be sent so is refused with ``CodeVersionError``.

Python UDFs of DataFrame steps are pickled by Spark, so no worker compares them. There the driver itself looks whether
its modules are what their files say, before and after the work; where not, it sends them by value. Decision 0020.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import cloudpickle
from pyspark.cloudpickle.cloudpickle import list_registry_pickle_by_value
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession
from pyspark.sql.udf import UserDefinedFunction

from state_engine.core.errors import CodeVersionError, SetupError
from state_engine.spark.code_digests import CodeDigests
from state_engine.spark.failures import missing_module, module_error, place_of_task, placed
from state_engine.spark.loaded_modules import MAIN, is_as_in_file, is_own, modules_of
from state_engine.spark.pickled_code import not_sendable, pickled, sent_by_value
from state_engine.spark.read_failures import messages

T = TypeVar("T")
RENEWED = "STATELAKE_CODE"
"""Variable in the environment of workers; Spark starts new ones for a new value."""
_NO_CODE = re.compile(r"CodeVersionError: (.*)|ModuleNotFoundError: (No module named '[\w.]+')")


@dataclass(frozen=True)
class ShippedCode:
    """An object with user code inside, pickled; and what its code is.

    Attributes:
        packed: the pickle of the object and of those parts of it that hold the code.
        digests: of the code, by name; empty where it is inside of the pickle.
    """

    packed: bytes
    digests: dict[str, str] = field(repr=False)
    modules: frozenset[str]
    key: str

    def unpacked(self) -> Any:
        try:
            thing, code = pickle.loads(self.packed)
        except (ImportError, AttributeError) as error:
            place = f"{sys.executable} on {socket.gethostname()}"
            raise CodeVersionError(f"workers cannot import it: {error} ({place})") from error
        if self.key not in _CHECKED:
            here = CodeDigests(self.modules.__contains__)
            here.visit(code)
            differing = sorted(n for n, d in self.digests.items() if here.by_name.get(n) != d)
            if differing:
                shown = ", ".join(n.rstrip("=") for n in differing[:5]) + (", …" if differing[5:] else "")
                raise CodeVersionError(f"workers have another version of it: {shown}")
            _CHECKED.add(self.key)
        return thing


_CHECKED: set[str] = set()
"""In a worker: keys of digests that its modules have. It never loads a module again."""


class _Sent:
    """In the driver: what workers were sent, and which modules they are sent by value."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self.by_value: dict[str, ModuleType] = {}


_SENT = _Sent()


def shipped(thing: T, code: Any, *, what: str) -> ShippedCode:
    """Pack an object for workers.

    Args:
        code: the parts of it, or it itself, that hold user code.
        what: the operator or source whose code it is, for messages.
    """
    digests = _digests(code)
    kept = {n: d for n, d in digests.by_name.items() if not _by_value(n)}
    key = hashlib.sha256(repr(sorted(kept.items())).encode()).hexdigest()
    try:
        packed = pickled((thing, code))
    except Exception as error:  # an object's own code runs here, and may raise anything
        if not _SENT.by_value or not _travels_by_reference(code):
            raise not_sendable(code, error, what=what) from error
        raise CodeVersionError(
            f"workers do not have the code that this process has of {sorted(_SENT.by_value)}, and it cannot be sent "
            f"to them: {type(error).__name__}: {error}"
        ) from error
    return ShippedCode(packed, kept, frozenset(digests.modules), key)


def _travels_by_reference(code: Any) -> bool:
    """Whether code could be pickled if workers had the modules that they are sent by value."""
    registered = list_registry_pickle_by_value()
    modules = [m for name, m in _SENT.by_value.items() if name in registered and sys.modules.get(name) is m]
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)
    try:
        pickled(code)
    except Exception:  # an object's own code runs here, and may raise anything
        return False
    finally:
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
    return True


class Attempt:
    """One attempt at Spark actions with user code in them.

    Attributes:
        error: that workers do not have the code of this process, or a library of it; any other error is raised.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.error: CodeVersionError | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.error = _code_error(error, self._spark)
        return self.error is not None


def attempts(spark: SparkSession, seeds: Any, *, job: str, frames: Sequence[Any] = ()) -> Iterator[Attempt]:
    """Attempts at Spark actions: mostly one; another one, with the code by value, where workers have other code.

    Only what the last attempt did counts::

        for attempt in attempts(spark, code, job="sums"):
            with attempt:
                rows = frame.collect()

    Args:
        seeds: the user code.
        frames: the part of it that makes DataFrames, whose functions Spark pickles.

    Raises:
        CodeVersionError: workers do not run the code that this process has, and it cannot be sent to them.
        SetupError: workers lack a library.
    """
    code = _digests(seeds)
    _renew_changed(spark, code)
    of_frames = ready_for_frames(spark, frames) if frames else None
    yield (attempt := Attempt(spark))
    if of_frames is not None and attempt.error is None and _send_by_value(_edited(of_frames)):  # meanwhile
        _forget_plans(of_frames)
        yield (attempt := Attempt(spark))
    if attempt.error is None:
        return
    if _is_library(attempt.error, code) or not _send_by_value(code.modules):
        raise _explained(attempt.error, code, job) from attempt.error
    _renew(spark)
    yield (attempt := Attempt(spark))
    if attempt.error is not None:
        raise _explained(attempt.error, code, job) from attempt.error


def ready_for_frames(spark: SparkSession, frames: Sequence[Any]) -> CodeDigests:
    """Have workers run the code that this process has in functions that make DataFrames; what code they reach."""
    code = _digests(frames)
    _renew_changed(spark, code)
    if RENEWED not in spark.sparkContext.environment:
        _renew(spark)  # others may have used the workers that there are
    _send_by_value(_edited(code))
    _forget_plans(code)
    return code


def _edited(code: CodeDigests) -> set[str]:
    """Modules that workers would import otherwise than they are here."""
    return {name for name in code.modules if not is_as_in_file(name)}


def _forget_plans(code: CodeDigests) -> None:
    """Have UDFs pickled again: each keeps its first pickle, with the environment of the workers of that time."""
    for thing in list(code.reached):
        if isinstance(thing, UserDefinedFunction):
            thing._judf_placeholder = None


def _code_error(error: BaseException | None, spark: SparkSession) -> CodeVersionError | None:
    """The error, where it says that code, or a library of it, is missing or another; Spark reports that as its own."""
    if isinstance(error, CodeVersionError):
        return error
    if not isinstance(error, Py4JJavaError | CapturedException):
        return None
    text = "\n".join(messages(error))
    if (sign := _NO_CODE.search(text)) is None:
        return None
    missing = f"workers cannot import it: {sign.group(2)} ({place_of_task(text, spark)})"
    code_error = CodeVersionError(sign.group(1) or missing)
    code_error.__cause__ = error
    return code_error


def _send_by_value(modules: set[str]) -> bool:
    """From now on, send modules by value; False where they all were already."""
    known = {MAIN, *list_registry_pickle_by_value()}
    new = [sys.modules[m] for m in sorted(modules - known) if m in sys.modules]
    for module in new:
        # stays so, as other threads pickle, too, and Spark does so itself
        cloudpickle.register_pickle_by_value(module)
        _SENT.by_value[module.__name__] = module
    return bool(new)


def _send_by_name() -> None:
    """Send by name again what was sent by value: new workers may have it."""
    for name in list(_SENT.by_value):
        module = _SENT.by_value.pop(name, None)
        if module is not None and name in list_registry_pickle_by_value():
            cloudpickle.unregister_pickle_by_value(module)


def _is_library(error: CodeVersionError, code: CodeDigests) -> bool:
    """Whether what workers cannot import is no code of the job: to send the job's modules to them would not help."""
    module = missing_module(str(error))
    return module is not None and not code.owns(module)


def _explained(error: CodeVersionError, code: CodeDigests, job: str) -> SetupError | CodeVersionError:
    if _is_library(error, code):
        return module_error(str(missing_module(str(error))), placed(str(error)), job=job)
    return _refused(job, error)


def _refused(job: str, error: CodeVersionError) -> CodeVersionError:
    what = str(error).removeprefix(f"job '{job}': ")
    return CodeVersionError(
        f"job '{job}': {what}. Workers must run the code that this process has loaded. Nothing of this micro-batch was "
        "committed, and what was before is kept. Make the modules importable by the workers (install them there, or "
        "name them in jobs.modules of the settings), or keep what cannot be pickled out of their global names; and "
        "start this process again if their files changed"
    )


def _digests(code: Any) -> CodeDigests:
    parts = code if isinstance(code, list | tuple) else [code]
    digests = CodeDigests(partial(is_own, named=modules_of(parts)))
    digests.visit(code)
    return digests


def _by_value(name: str) -> bool:
    return "<" in name or sent_by_value(name)  # lambdas and local functions always are


def _renew_changed(spark: SparkSession, digests: CodeDigests) -> None:
    """Have new workers where code differs from what workers were sent under the same name; they import it again."""
    changed = {n for n, d in digests.by_name.items() if _SENT.digests.get(n, d) != d}
    _SENT.digests |= digests.by_name
    if changed:
        _send_by_name()
        if not all(_by_value(n) for n in changed):
            _renew(spark)


def _renew(spark: SparkSession) -> None:
    environment = spark.sparkContext.environment
    environment[RENEWED] = str(int(environment.get(RENEWED, "0")) + 1)
