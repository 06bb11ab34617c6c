"""``CollectSink``: stands for the sink of a stream in a job that is made for a test, and runs in memory only."""

from __future__ import annotations

from dataclasses import dataclass

from state_engine.core.errors import ConfigurationError
from state_engine.sinks.base import Sink, SinkRequest, SinkTarget
from state_engine.sinks.staging import Staging


@dataclass(frozen=True)
class CollectSink(Sink):
    """A sink that collects: ``run_in_memory`` gives its elements by its name.

    In memory every sink of a job collects, whatever it is. Of a stream that changes, it gives Rows of their kind, and
    other elements as pairs of a kind and an element. This one has no place to write to elsewhere, so an engine
    refuses it.

    Example::

        totals.sink("totals", CollectSink())
        with run_in_memory(job) as run:
            run.process({"clicks": [("ada", 3)]})
            assert run.sink("totals") == [("ada", 3)]
    """

    kind = "collect"
    accepts_changes = True

    def place(self, app: str, staging: Staging) -> str:
        raise ConfigurationError(
            f"sink '{app.rsplit('/', 1)[-1]}': a CollectSink collects the outputs of a job that runs in memory "
            "(state_engine.testing.run_in_memory). Give the job another sink to run it on an engine"
        )

    def prepare(self, request: SinkRequest) -> SinkTarget:
        raise AssertionError("place comes first, and refuses")
