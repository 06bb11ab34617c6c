"""``code_version``: which code a job runs, as this process loaded it; recorded in every checkpoint.

By default a digest of the source of the job's own modules: those that define its functions, and what these use of other
modules, but for Python's library, installed packages and the engine. A file's source is read when the process first
asks after it was loaded or reloaded, and kept: what is edited afterwards does not run, so it does not count. Code that
is not what its file says (typed into a notebook, changed by hand, edited before anybody asked) counts as it is in
memory. Plays the part of the JAR whose name Flink shows with a job.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from state_engine.spark.code_digests import CodeDigests
from state_engine.spark.loaded_modules import is_own, module_version, modules_of

if TYPE_CHECKING:
    from state_engine.job.job import StatefulJob

_DIGITS = 12


def code_version(job: StatefulJob) -> str:
    """A digest of the code that a job would run now; twelve hexadecimal digits."""
    digests = job_code(job)
    total = hashlib.sha256()
    for name in sorted(digests.modules):
        inside = [f"{n} {d}" for n, d in sorted(digests.by_name.items()) if n.startswith(f"{name}.")]
        total.update(f"{name}\n{module_version(name) or inside}\n".encode())
    return total.hexdigest()[:_DIGITS]


def job_code(job: StatefulJob) -> CodeDigests:
    """The code that a job's functions reach: of operators, key selectors, DataFrame steps, sources and sinks."""
    seeds = list(code_of(job))
    digests = CodeDigests(functools.partial(is_own, named=modules_of(seeds)))
    for seed in seeds:
        digests.visit(seed)
    return digests


def code_of(job: StatefulJob) -> Iterator[Any]:
    """What the author of a job wrote, or chose."""
    from state_engine.job.graph import SelectedKey, TransformNode

    yield job.state_backend
    for source in job.sources.values():
        yield source.source
        if source.timestamps is not None:
            yield source.timestamps
    for sink in job.sinks.values():
        yield sink.sink
    for operator in job.operators.values():
        yield operator.function
        for one in operator.inputs:
            if isinstance(one.key, SelectedKey):
                yield one.key.selector
                yield one.key.key_type
        if operator.output_type is not None:
            yield operator.output_type
    for node in job.nodes():
        if isinstance(node, TransformNode):
            yield node.function
            if node.output_type is not None:
                yield node.output_type
