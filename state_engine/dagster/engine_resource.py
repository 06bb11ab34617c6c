"""``StateEngineResource``: one engine, and with it one Spark session, for a whole run; started on first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field, PrivateAttr

from state_engine.core.argument_checks import checked_function
from state_engine.machine.settings import Settings, load_settings
from state_engine.storage.stores.files import normal_uri

if TYPE_CHECKING:
    from state_engine import StateEngine


class StateEngineResource(dg.ConfigurableResource[Any]):
    """The engine of a run.

    A session that is there already is used and left alone; one that was started for the run ends with it. Options of
    Spark may hold secrets, so they are read from the settings when a session starts and never shown by Dagster.

    Attributes:
        root: the state root; local path or URI.
        modules: of jobs. Executors of their own are sent these and those of the settings.
        package_data: patterns of further files of these modules that go, besides those of the settings.
    """

    root: str
    modules: list[str] = Field(default=[], description="Modules of jobs, which executors are sent.")
    package_data: list[str] = Field(default=[], description="Patterns of further files that they are sent.")
    _engine: StateEngine | None = PrivateAttr(default=None)
    _own_session: bool = PrivateAttr(default=False)

    @checked_function
    def __init__(self, *, root: str, modules: Sequence[str] = (), package_data: Sequence[str] = ()) -> None:
        if isinstance(root, str) and not isinstance(root, dg.EnvVar):
            normal_uri(root)
        super().__init__(root=root, modules=modules, package_data=package_data)

    def engine(self) -> StateEngine:
        """The engine; started by the first call."""
        from pyspark import SparkContext

        from state_engine import StateEngine
        from state_engine.spark.session import local_session

        if self._engine is None:
            self._own_session = SparkContext._active_spark_context is None
            settings = self._settings()
            self._engine = StateEngine(self.root, local_session(settings), durability=settings.durability)
        return self._engine

    def _settings(self) -> Settings:
        settings = load_settings()
        jobs = settings.jobs.model_copy(
            update={
                "modules": [*settings.jobs.modules, *self.modules],
                "package_data": [*settings.jobs.package_data, *self.package_data],
            }
        )
        return settings.model_copy(update={"jobs": jobs})

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Wait for background work of commits, and end what was started here."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        spark: Any = engine.spark
        engine.close()
        if self._own_session:
            spark.stop()
