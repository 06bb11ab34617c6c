"""``JobComponent``: a job as a component of a Dagster project, and what ``dg scaffold defs`` writes."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Literal, get_args

import dagster as dg
from dagster.components import Scaffolder, ScaffoldRequest
from dagster.components.component_scaffolding import scaffold_component
from pydantic import BaseModel, Field

from state_engine.core.errors import ConfigurationError
from state_engine.dagster.definitions import statelake_definitions
from state_engine.dagster.naming import Operation
from state_engine.dagster.options import Automation, Checks, JobOptions
from state_engine.dagster.translator import StatelakeTranslator, StatelakeTranslatorData
from state_engine.registry import RegisteredJob, registered_job

_DEFAULT = JobOptions()
_JOB = Template('''"""How often each key was seen. Files of JSON lines arrive in data/$name/inbox."""

from collections.abc import Iterator
from typing import Any

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StatefulJob,
    ValueStateDescriptor,
)


class Count(KeyedProcessFunction):
    """Counts the rows of a key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value.key, self.count.value()


job = StatefulJob("$name")
rows = job.source("inbox", FileSource("data/$name/inbox", schema="key string", format="json"))
counts = rows.key_by("key").process(Count(), uid="count", output_type="key string, count bigint")
counts.sink("counts", DeltaSink("data/$name/counts"))
''')


class JobComponentParams(BaseModel):
    """What ``dg scaffold defs`` takes."""

    job: str | None = Field(
        default=None, description="The job, as module:name; by default a new one is written beside defs.yaml."
    )


class JobComponentScaffolder(Scaffolder[JobComponentParams]):
    """Writes ``defs.yaml``, or ``component.py``, and a job to begin with where none is named."""

    @classmethod
    def get_scaffold_params(cls) -> type[JobComponentParams]:
        """What ``dg scaffold defs`` takes."""
        return JobComponentParams

    def scaffold(self, request: ScaffoldRequest[JobComponentParams]) -> None:
        """Write the files of a component."""
        named = request.params.job if request.params else None
        if named is None:
            name = re.sub(r"\W", "_", request.target_path.name)
            (request.target_path / "job.py").write_text(_JOB.substitute(name=name))
            named = f"{_module_of(request)}.job:job"
        if request.scaffold_format == "yaml":
            scaffold_component(request, {"job": named, "in_process": True})
            return
        (request.target_path / "component.py").write_text(
            f"import dagster as dg\n\nfrom state_engine.dagster import JobComponent\n\n\n"
            "@dg.component_instance\ndef load(context: dg.ComponentLoadContext) -> JobComponent:\n"
            f'    return JobComponent(job="{named}", in_process=True)\n'
        )


@dg.scaffold_with(JobComponentScaffolder)
class JobComponent(dg.Component, dg.Model, dg.Resolvable):
    """A job with state: its checkpoint, outputs and states as assets, and what starts it.

    The attributes ``operations``, ``automation`` and ``checks`` are those of ``JobOptions``, or ``all``. To change
    keys, make a subclass that overrides ``translator``; ``post_processing`` sets groups, tags and owners, too.

    Example::

        type: state_engine.dagster.JobComponent
        attributes:
          job: my_project.jobs.clicks:job
          automation: [schedule, new_data]
          in_process: true
          upstream:
            inbox: raw/clicks
    """

    job: str = Field(
        description="The job, as module:name: a StatefulJob, a RegisteredJob, or a function that returns one.",
        examples=["my_project.jobs.clicks:job"],
    )
    root: str | None = Field(
        default=None,
        description="The state root; that of statelake.toml by default. A relative path begins at the project.",
    )
    operations: Literal["all"] | list[Operation] = Field(
        default=sorted(_DEFAULT.operations), description="What is done between micro-batches."
    )
    automation: Literal["all"] | list[Automation] = Field(
        default=sorted(_DEFAULT.automation),
        description="Schedules and sensors; off until they are switched on.",
    )
    checks: Literal["all"] | list[Checks] = Field(
        default=sorted(_DEFAULT.checks), description="Asset checks."
    )
    upstream: dict[str, str] = Field(
        default={}, description="By name of a source: the key of the asset that makes what it reads."
    )
    in_process: bool = Field(
        default=False,
        description="Whether all steps of a run of the project share one process, and with it one Spark session: for a "
        "project without an executor of its own. By default the executor is the project's.",
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions of the job."""
        return statelake_definitions(
            [loaded_job(self.job)],
            root=self._root(context.project_root),
            options=JobOptions(
                operations=get_args(Operation) if self.operations == "all" else self.operations,
                automation=get_args(Automation) if self.automation == "all" else self.automation,
                checks=get_args(Checks) if self.checks == "all" else self.checks,
            ),
            translator=self.translator(),
            in_process=self.in_process,
        )

    def translator(self) -> StatelakeTranslator:
        """Decides on keys and the like; a subclass may return one of its own."""
        return _Upstream({name: dg.AssetKey.from_user_string(key) for name, key in self.upstream.items()})

    def _root(self, project: Path) -> str | None:
        local = self.root is not None and "://" not in self.root
        return str(project / str(self.root)) if local else self.root


class _Upstream(StatelakeTranslator):
    def __init__(self, keys: Mapping[str, dg.AssetKey]) -> None:
        self._keys = keys

    def get_upstream_key(self, data: StatelakeTranslatorData) -> dg.AssetKey | None:
        return self._keys.get(data.name)


def loaded_job(place: str) -> RegisteredJob:
    """The job that a text such as ``my_project.jobs.clicks:job`` names."""
    module_name, _, name = place.partition(":")
    if not name:
        raise ConfigurationError(
            f"job: {place!r} names no job: write module:name, such as my_project.jobs.clicks:job"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, but something that it imports is not
        raise ConfigurationError(
            f"job: {place!r}: there is no module '{module_name}' on Python's path"
        ) from error
    if not hasattr(module, name):
        raise ConfigurationError(f"job: {place!r}: the module '{module_name}' has no '{name}'")
    job = getattr(module, name)
    return registered_job(job() if callable(job) else job)


def _module_of(request: ScaffoldRequest[JobComponentParams]) -> str:
    inside = request.target_path.absolute().relative_to((request.project_root or Path.cwd()).absolute())
    parts = inside.parts[1:] if inside.parts[:1] == ("src",) else inside.parts
    return ".".join(parts)
