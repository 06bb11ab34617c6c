"""A job with every kind of sink on a master that runs a task again: the first attempt dies when its files are written.

    python -m tests.faults.retried_tasks <settings>

In the second micro-batch the worker of one subtask is killed just before it would report: all its files are whole, or
torn. Spark runs the task again. What is seen goes to ``result.json``: after that, when a task of the first attempt has
woken up and written once more, after a restore, and when the job has run again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pyspark import cloudpickle

from state_engine import DataStream, RuntimeContext, StatefulJob
from state_engine.runtime import subtask
from tests.faults.workloads import (
    CUT,
    LETTERS,
    PAIR,
    POSTGRES_PASSWORD,
    POSTGRES_URL,
    Picky,
    Site,
    Workload,
    _events,
)

# workers cannot import the tests
cloudpickle.register_pickle_by_value(sys.modules[__name__])

EVERY_SINK = ("delta", "spark_delta", "files", "csv", "sql", "function")
POSTGRES = "postgres"


@dataclass(frozen=True)
class Dying:
    """How the first attempt of a task ends.

    Attributes:
        marker: file that is there when it happened; it lists what the attempt had written.
        torn: whether its files are cut short.
    """

    marker: Path
    torn: bool


class PickyOnce(Picky):
    """Sums up; the first attempt at a micro-batch that has a marker to make dies before it reports."""

    def __init__(self, dying: Dying | None) -> None:
        self.dying = dying

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        if self.dying is not None:
            _die_at_the_end(self.dying)


def _die_at_the_end(dying: Dying) -> None:
    """In the worker: note what is written from now on, and die where the subtask would report."""
    written: list[str] = []
    sink_file, letters = subtask.write_sink_file, subtask.Subtask._write_dead_letters

    def noted(table: Any, sink: Any, name: str, index: int) -> Any:
        written.append(f"{sink.directory}/{name}".removeprefix("file://"))
        return sink_file(table, sink, name, index)

    def dies(self: Any) -> None:
        letters(self)
        if not written:
            return
        written.extend(f"{self.spec.layout.dead_letters}/{f.path}"[7:] for f in self.report.dead_letters)
        try:
            with dying.marker.open("x") as file:
                json.dump(written, file)
        except FileExistsError:
            return
        for path in written if dying.torn else []:
            os.truncate(path, os.path.getsize(path) // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    subtask.write_sink_file, subtask.Subtask._write_dead_letters = noted, dies  # type: ignore[method-assign, assignment]


def workload(sinks: tuple[str, ...], dying: Dying | None = None) -> Workload:
    """One operator, and every sink on its output."""

    def build(job: StatefulJob, cut: int) -> Mapping[str, DataStream]:
        stream = _events(job, cut).key_by("k").process(PickyOnce(dying), uid="sums", output_type=PAIR)
        return dict.fromkeys(sinks, stream)

    return Workload("every_sink", build, ("sums",), sinks, letters=True)


class PostgresSite(Site):
    """Also looks into the server's database, where each site has a table of its own."""

    def outputs(self) -> dict[str, list[Any]]:
        shown = super().outputs()
        for name in self.workload.sinks:
            if name.startswith(POSTGRES):
                shown[name] = self._selected(name)
        return shown

    def _selected(self, table: str) -> list[Any]:
        url = sa.make_url(os.environ[POSTGRES_URL]).set(password=os.environ[POSTGRES_PASSWORD])
        engine = sa.create_engine(url.set(drivername="postgresql+psycopg"), poolclass=sa.NullPool)
        with engine.connect() as connection:
            if not sa.inspect(connection).has_table(table):
                return []
            return sorted(
                (row[0], row[1]) for row in connection.execute(sa.text(f"SELECT k, n FROM {table}"))
            )


def told(site: Site) -> dict[str, Any]:
    """What is seen, as JSON can hold it; of every kind of sink."""
    seen = site.seen()
    outputs = {name if name == LETTERS else name.split("_")[0]: rows for name, rows in seen.outputs.items()}
    return {"outputs": outputs, "state": sorted(map(repr, seen.state.items()))}


def broken(directory: Path, sinks: tuple[str, ...], spark: Any, *, torn: bool) -> dict[str, Any]:
    """A task dies in the second micro-batch; another wakes up; the job goes back, without the function, and on."""
    marker = directory / "died"

    def site(*, dying: Dying | None = None, function: bool = True) -> PostgresSite:
        kinds = tuple(name for name in sinks if function or name != "function")
        return PostgresSite(directory / "work", workload(kinds, dying), spark, cut=CUT)

    site().run(max_batches=1)
    site(dying=Dying(marker, torn)).run(max_batches=1)
    first = json.loads(marker.read_text())
    found: dict[str, Any] = {"first": first, "seen": told(site())}
    found["listed"] = [f.path.rsplit("/", 1)[-1] for s in site().path()[-1].sinks for f in s.files]
    for path in first:
        if "/_staged-" in path:  # a task that was given up wakes up
            Path(path).parent.mkdir(exist_ok=True)
            Path(path).write_bytes(b"late")
    site().run()
    found["woken"] = told(site())
    fewer = site(function=False)
    with fewer.engine() as engine:
        found["left_alone"] = [s.name for s in engine.restore(fewer.job(), 1).left_alone]
    found["restored"] = told(fewer)
    fewer.run()
    found["again"] = told(fewer)
    return found


def main(directory: str, master: str, options: dict[str, str], postgres: bool) -> None:
    from state_engine.runtime.session import local_session
    from state_engine.runtime.settings import SparkSettings

    settings = SparkSettings(master=master, driver_memory="2g", options=options)
    spark = local_session(settings, app_name="statelake-retries")
    result: dict[str, Any] = {}
    try:
        for name in ("calm", "whole", "torn"):
            sinks = (*EVERY_SINK, f"{POSTGRES}_{name}") if postgres else EVERY_SINK
            if name != "calm":
                result[name] = broken(Path(directory) / name, sinks, spark, torn=name == "torn")
                continue
            calm = PostgresSite(Path(directory) / name, workload(sinks), spark, cut=CUT)
            for checkpoint_id in ("1", "2"):
                calm.run(max_batches=1)
                result[checkpoint_id] = told(calm)
    finally:
        spark.stop()
    (Path(directory) / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
