"""Runs of which ``spark-submit`` is a process of its own: Dagster shows what it shows of runs in its own process."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import dagster as dg
import psutil
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine.core.errors import ConfigurationError
from state_engine.dagster import JobOptions, PipesLaunch, statelake_assets, statelake_definitions
from state_engine.dagster.naming import checkpoint_key, sink_key, state_key
from state_engine.machine.settings import Settings
from state_engine.microbatch.reports import RunReport
from state_engine.pipes.engine_calls import FORMAT, Message
from state_engine.registry import load_jobs
from tests.dagster.days import EVENTS, Days
from tests.dagster.days import KEYS as DAYS
from tests.dagster.sites import JOB, QUIET, DagsterSite, Site, failure_of
from tests.support.clusters import python_program
from tests.support.spark_submit import spark_submit, submit_environment
from tests.support.waiting import until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    # Dagster warns of a part of Pipes that it uses itself.
    pytest.mark.filterwarnings("ignore:Function `PipesMessageReader.expected_writer_count`"),
]

CHECKPOINT = checkpoint_key(JOB)
ASSETS = [CHECKPOINT, sink_key(JOB, "averages"), state_key(JOB, JOB, "window")]
SUBMITTED = Path(__file__).with_name("submitted.py")
SECRET = "spark.hadoop.fs.s3a.secret.key=do-not-show-me"
MEASURED = {
    "bytes_written", "changelog_bytes", "clock", "delta_commits", "durations_and_lag", "event_time_lag_s",
    "events_per_second", "operators", "parent_checkpoint", "requested_by", "run_events_per_second", "run_seconds",
    "seconds", "state_bytes", "state_size", "steps", "write_id",
}  # fmt: skip
"""Metadata that two runs of one job do not share: their kinds are compared, and the words of their tables."""


def environment(settings: Settings) -> dict[str, str]:
    """Variables of a process that knows the settings; this repository is installed."""
    return {
        **submit_environment(),
        "STATELAKE__ROOT": settings.root,
        "STATELAKE__JOBS__MODULES": json.dumps(settings.jobs.modules),
        "STATELAKE__JOBS__PARAMETERS": json.dumps(settings.jobs.parameters),
    }


def launched(site: DagsterSite, command: list[str] | None = None) -> dg.Definitions:
    """The definitions of a site whose micro-batches are launched."""
    client = dg.PipesSubprocessClient(env=environment(site.settings), cwd=str(site.directory))
    command = command or spark_submit(site.directory, "--conf", SECRET, script=SUBMITTED)
    options = replace(JobOptions.everything(), launch=PipesLaunch(command=command, client=client))
    return statelake_definitions(settings=site.settings, options=options)


class Submitted(Site):
    """The example of five pairs, launched by ``spark-submit``."""

    command: list[str] | None = None

    @property
    def defs(self) -> dg.Definitions:
        return launched(self, self.command)


class SubmittedDays(Days):
    """The job in time partitions, launched by ``spark-submit``."""

    @property
    def defs(self) -> dg.Definitions:
        return launched(self)


@pytest.fixture
def instances(tmp_path: Path) -> Iterator[Callable[[str], dg.DagsterInstance]]:
    made: list[dg.DagsterInstance] = []

    def instance(name: str) -> dg.DagsterInstance:
        (tmp_path / name / "dagster").mkdir(parents=True)
        made.append(dg.DagsterInstance.local_temp(str(tmp_path / name / "dagster")))
        return made[-1]

    yield instance
    for one in made:
        one.dispose()


def events_of(instance: dg.DagsterInstance, run: dg.ExecuteInProcessResult) -> list[Any]:
    """Materialisations, observations and evaluations of a run, but for what two runs never share."""
    kinds = {
        dg.DagsterEventType.ASSET_MATERIALIZATION: lambda data: data.materialization,
        dg.DagsterEventType.ASSET_OBSERVATION: lambda data: data.asset_observation,
        dg.DagsterEventType.ASSET_CHECK_EVALUATION: lambda data: data,
    }
    shown = []
    for entry in instance.all_logs(run.run_id, of_type=set(kinds)):
        event: Any = entry.dagster_event
        one: Any = kinds[event.event_type](event.event_specific_data)
        tags = {
            k: v
            for k, v in (getattr(one, "tags", None) or {}).items()
            if not k.startswith("dagster/input_event")
        }
        shown.append(
            (
                event.event_type_value,
                one.asset_key.path,
                getattr(one, "partition", None),
                tags,
                values(one.metadata),
            )
        )
    return shown


def values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata, its kinds, and where it was measured only its words."""
    return {
        name: (type(value).__name__, words(value.value) if name in MEASURED else value.value)
        for name, value in sorted(metadata.items())
    }


def words(value: Any) -> Any:
    """Of a table or a text: its words without numbers; of a number or a picture nothing."""
    if not isinstance(value, str) or value.startswith("!["):
        return None
    return re.sub(r"[0-9a-f-]{32,36}|[\d.,:|-]+", "", value)


def lines(instance: dg.DagsterInstance, run: dg.ExecuteInProcessResult) -> list[str]:
    """What a run logged of itself; without what Pipes adds, and without numbers of seconds."""
    texts = [entry.user_message for entry in instance.all_logs(run.run_id) if not entry.is_dagster_event]
    return [re.sub(r"[\d.]+ s$", "s", text) for text in texts if not text.startswith("[pipes]")]


def everything(instance: dg.DagsterInstance) -> str:
    return "".join(str(entry) for run in instance.get_runs() for entry in instance.all_logs(run.run_id))


def test_a_run_of_spark_submit_shows_what_a_run_in_the_process_shows(
    spark: SparkSession, tmp_path: Path, instances: Callable[[str], dg.DagsterInstance]
) -> None:
    here, there = (
        Site(tmp_path / "here", instances("here")),
        Submitted(tmp_path / "there", instances("there")),
    )
    for site in (here, there):
        first = site.run(parameters={"why": "a test"}, max_batches=2)
        site.arrive("b", [(1, 8), (2, 1)])
        site.runs = [first, site.run()]
    compare(here, there)
    assert [there.versions(key) for key in ASSETS] == [["1", "2", "3", "4"], ["2", "4"], ["2", "4"]]
    assert len(events_of(there.instance, there.runs[0])) == 4
    asked = [row.requested_by for row in there.engine(spark).checkpoints(JOB)]
    assert asked == [f"dagster run {there.runs[i].run_id}" for i in (0, 0, 1, 1)]
    assert there.events(CHECKPOINT)[1].metadata["keys_touched"].value == 1
    assert "do-not-show-me" not in everything(there.instance)


@pytest.mark.long
def test_a_failure_shows_what_was_committed_before_it_and_a_run_without_anything_new_shows_nothing(
    tmp_path: Path, instances: Callable[[str], dg.DagsterInstance]
) -> None:
    here, there = (
        Site(tmp_path / "here", instances("here")),
        Submitted(tmp_path / "there", instances("there")),
    )
    for site in (here, there):
        site.runs = [site.run(), site.run()]
        site.arrive("b", [(1, 1), (2, 3), (2, None)])  # type: ignore[list-item]
        site.runs.append(site.run(raise_on_error=False))
    compare(here, there)
    assert [len(events_of(there.instance, run)) for run in there.runs] == [5, 0, 1]
    assert there.versions(CHECKPOINT) == ["1", "2", "3", "4"]
    mine, theirs = (failure_of(site.runs[-1]) for site in (here, there))
    text = re.compile(r"UserFunctionError: (job 'count_window_average', operator .*)")
    assert text.search(theirs).group(1).replace("/there/", "/here/") == text.search(mine).group(1)  # type: ignore[union-attr]
    assert "External execution process failed with code 1" in theirs


@pytest.mark.long
def test_executors_of_a_cluster_are_sent_the_code_of_a_launched_run(
    tmp_path: Path, instances: Callable[[str], dg.DagsterInstance]
) -> None:
    site = Submitted(tmp_path / "there", instances("there"), parallelism=2)
    options = {
        "spark.pyspark.python": str(python_program(tmp_path / "python")),
        "spark.pyspark.driver.python": sys.executable,
        "spark.executor.memory": "512m",
    }
    site.command = spark_submit(
        site.directory,
        *(part for name, value in options.items() for part in ("--conf", f"{name}={value}")),
        script=SUBMITTED,
        master="local-cluster[2,1,1024]",
    )
    site.arrive("b", [(2, 1), (3, 5), (2, 4)])
    assert site.run().success
    assert site.versions(ASSETS[1]) == ["4"]
    assert site.events(CHECKPOINT)[-1].metadata["keys_touched"].value == 2
    averages = DeltaTable(str(site.directory / "sinks" / JOB)).to_pyarrow_table().to_pylist()
    assert sorted(tuple(row.values()) for row in averages) == [(1, 4), (1, 5), (2, 2)]


def compare(here: DagsterSite, there: DagsterSite) -> None:
    """Both have shown and logged the same in each of their runs."""
    for mine, theirs in zip(here.runs, there.runs, strict=True):
        expected, shown = events_of(here.instance, mine), events_of(there.instance, theirs)
        assert [one[:-1] for one in shown] == [one[:-1] for one in expected]
        differences = [
            (asset, name, one.get(name), other.get(name))
            for (_, asset, *_, one), (*_, other) in zip(expected, shown, strict=True)
            for name in sorted({*one, *other})
            if one.get(name) != other.get(name)
        ]
        assert differences == []
        assert lines(there.instance, theirs) == lines(here.instance, mine)
        assert theirs.success == mine.success


@pytest.mark.long
def test_partitions_are_passed_on_and_shown_one_by_one(
    spark: SparkSession, tmp_path: Path, instances: Callable[[str], dg.DagsterInstance]
) -> None:
    here, there = (
        Days(tmp_path / "here", instances("here")),
        SubmittedDays(tmp_path / "there", instances("there")),
    )
    for site in (here, there):
        site.runs = [
            site.run(DAYS[0]),
            site.run(DAYS[1], DAYS[3]),
            site.run(DAYS[2], raise_on_error=False, dry_run=True),
        ]
        site.arrive("late", [("a", 7, 9, 1)])
        site.runs.append(site.run(DAYS[1], DAYS[2], mode="stop", rebatch=True))
        site.runs.append(site.run(DAYS[4], raise_on_error=False))  # not the next one
    compare(here, there)
    assert there.outputs() == here.outputs()
    assert len(EVENTS) + 1 > len(there.outputs()) > 3
    assert "PartitionOrderError" in failure_of(there.runs[-1])
    [failed] = [e for e in there.runs[-1].all_events if e.is_step_failure]
    assert failed.step_failure_data.user_failure_data is not None  # a dg.Failure, which is not retried


@pytest.mark.long
def test_a_killed_process_fails_the_run_and_the_next_one_goes_on(
    spark: SparkSession, tmp_path: Path, instances: Callable[[str], dg.DagsterInstance]
) -> None:
    site = Submitted(tmp_path / "there", instances("there"))
    script = tmp_path / "held.py"
    script.write_text(HELD)
    site.command = spark_submit(site.directory, script=script)
    done: list[dg.ExecuteInProcessResult] = []
    run = Thread(target=lambda: done.append(site.run(raise_on_error=False)))
    run.start()
    reached = site.directory / "reached"
    until(lambda: reached.exists() and reached.read_text(), "the second checkpoint", within_s=300)
    java = psutil.Process(int(reached.read_text())).parent()
    assert java is not None
    for process in [java, *java.children()]:
        process.send_signal(signal.SIGKILL)
    run.join(120)
    assert not done[0].success
    assert "External execution process failed with code -9" in failure_of(done[0])
    # the second one was committed, and nobody reported it
    assert site.versions(CHECKPOINT) == ["1", "2"]
    assert "seconds" in site.events(CHECKPOINT)[0].metadata
    assert "seconds" not in site.events(CHECKPOINT)[1].metadata
    site.command = None
    assert site.run().success
    assert site.versions(CHECKPOINT) == ["1", "2", "3"]
    assert site.versions(ASSETS[1]) == ["3"]


HELD = """
import os, time
from pathlib import Path
from state_engine.pipes import reporting
from state_engine.pipes.engine_calls import FORMAT, Message

def of_batch(report, original=Message.of_batch):
    if report.checkpoint_id == 2:  # committed, published, and not reported
        Path("reached").write_text(str(os.getpid()))
        time.sleep(600)
    return original(report)

Message.of_batch = of_batch
reporting.run_for_dagster()
"""


@pytest.mark.long
def test_the_command_run_reports_too_and_takes_no_options_then(
    tmp_path: Path, instances: Callable[[str], dg.DagsterInstance]
) -> None:
    site = Submitted(tmp_path / "there", instances("there"))
    command = [str(Path(sys.executable).parent / "statelake"), "run", JOB]
    site.command = [*command, "--max-batches", "1"]
    refused = site.run(raise_on_error=False)
    assert "ConfigurationError: a run of Dagster launched this process for the job" in failure_of(refused)
    site.command = command
    assert site.run().success
    assert site.versions(CHECKPOINT) == ["1", "2", "3"]


@pytest.mark.long
def test_a_clock_is_accepted_in_the_launched_process(
    spark: SparkSession, tmp_path: Path, instances: Callable[[str], dg.DagsterInstance]
) -> None:
    site = Submitted(tmp_path / "there", instances("there"))
    [registered] = load_jobs(site.settings)
    site.engine(spark).run(registered.job, max_batches=1)
    script = tmp_path / "bounded.py"
    script.write_text(BOUNDED)
    site.command = spark_submit(site.directory, script=script)
    assert "in Dagster accept_clock: true in the config" in failure_of(site.run(raise_on_error=False))
    assert len(site.engine(spark).checkpoints(JOB)) == 1
    assert site.run(max_batches=1, accept_clock=True).success
    assert len(site.engine(spark).checkpoints(JOB)) == 2


BOUNDED = """
from datetime import timedelta
from functools import partialmethod
from state_engine import StatefulJob
from state_engine.pipes import run_for_dagster

StatefulJob.__init__ = partialmethod(StatefulJob.__init__, max_clock_jump=timedelta(milliseconds=1))
run_for_dagster()
"""


def test_a_process_that_reports_nothing_fails_the_run(
    tmp_path: Path, instances: Callable[[str], dg.DagsterInstance]
) -> None:
    site = Submitted(tmp_path / "there", instances("there"))
    site.command = [sys.executable, "-c", ""]
    failed = site.run(raise_on_error=False)
    assert "ended without an error and reported nothing" in failure_of(failed)


def test_a_launch_needs_a_command_and_a_resource_that_is_a_client(tmp_path: Path) -> None:
    wrong: list[str | list[str] | None] = [None, "spark-submit run.py", []]
    for command in wrong:
        with pytest.raises(ConfigurationError, match="the command as a list of words"):
            PipesLaunch(command=command)
    assert "do-not-show-me" not in repr(PipesLaunch(command=["spark-submit", "--conf", SECRET]))


class Recording(dg.PipesClient):
    """Keeps what it is given, and answers as a run without anything new; it has no reader that one could listen to."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def run(self, *, context: Any, extras: Any = None, **arguments: Any) -> dg.PipesClientCompletedInvocation:
        self.given = {"extras": extras, **arguments}
        ended = Message.of_end(RunReport(JOB, [], True, []))
        session: Any = SimpleNamespace(get_custom_messages=lambda: ["another's", ended.to_payload()])
        return dg.PipesClientCompletedInvocation(session)


def test_a_client_gets_the_call_and_its_own_arguments(
    tmp_path: Path, instances: Callable[[str], dg.DagsterInstance], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path / "there", instances("there"))
    monkeypatch.setenv("STATELAKE__SPARK__OPTIONS__spark.hadoop.fs.s3a.secret.key", "do-not-show-me")
    client = Recording()
    launch = PipesLaunch(client="k8s", command=["run.py"], arguments={"image": "lake:1"})
    [registered] = load_jobs(site.settings)
    config = {"max_batches": 2, "parameters": {"why": "a test"}, "accept_clock": True}

    def run(resource: Any) -> dg.ExecuteInProcessResult:
        return dg.materialize(
            [statelake_assets(registered, settings=site.settings, launch=launch)],
            instance=site.instance,
            resources={"k8s": resource},
            run_config={"ops": {f"{JOB}_micro_batches": {"config": config}}, **QUIET},
            raise_on_error=False,
        )

    done = run(client)
    assert done.success
    arguments = {**config, "requested_by": f"dagster run {done.run_id}"}
    call = {"format": FORMAT, "job": JOB, "method": "run", "arguments": arguments}
    assert client.given == {"extras": {"statelake": call}, "command": ["run.py"], "image": "lake:1"}
    assert "the resource 'k8s' is not a Pipes client" in failure_of(run("a text"))
