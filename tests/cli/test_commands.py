"""Each command calls the engine as its options say, and options agree. No Spark is started."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from datetime import timedelta
from importlib import metadata
from typing import Any

import click
import pytest
from typer.testing import CliRunner

from state_engine import FileSource, JobSavepoints, RetentionPolicy, StateEngine, StatefulJob, StateProcessor
from state_engine.cli import explain, progress, running, session
from state_engine.cli.main import app
from state_engine.machine.settings import LoadedSettings, Settings
from state_engine.registry import RegisteredJob
from tests.support.commands import every_command


class CalledError(Exception):
    """The call of a command, in place of a result."""


class Calls:
    """A fake engine: a call with valid arguments raises that call."""

    def __init__(self, of: type = StateEngine, prefix: str = "") -> None:
        self._of, self._prefix = of, prefix
        self.root, self.spark = "root", None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._of, name)

        def call(*args: Any, **options: Any) -> Any:
            given = inspect.signature(method).bind(None, *args, **options).arguments
            given.pop("self")
            if name in ("savepoints", "state_processor"):
                part = JobSavepoints if name == "savepoints" else StateProcessor
                return Calls(part, f"{name}({given['job']}).")
            given.pop("on_progress", None)
            raise CalledError(self._prefix + name, given)

        return call

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, *_: object) -> None:
        return


JOB = StatefulJob("sums")
JOB.source("rows", FileSource("rows", schema="k string"))


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(root="root")
    every_command()  # a module that is imported after this would keep what stands in for the settings
    monkeypatch.setattr("state_engine.engine.engine.StateEngine", lambda *_, **__: Calls())
    monkeypatch.setattr("state_engine.spark.session.local_session", lambda *_: None)
    monkeypatch.setattr(
        session, "loaded_settings", lambda: LoadedSettings(settings=settings, origins={}, file=None)
    )
    monkeypatch.setattr(progress, "task_progress", lambda *_: nullcontext())
    for module in (session, running, explain):
        monkeypatch.setattr(module, "registered", lambda _: {"sums": RegisteredJob(job=JOB)})


MOVE = {"outputs": "withdraw", "leave_alone": (), "dry_run": False}


@pytest.mark.parametrize(
    ("line", "call", "options"),
    [
        ("run sums", "run",
         {"partition": None, "max_batches": None, "drain": False, "accept_clock": False, "register": None}),
        ("run sums --max-batches 2 --drain --accept-clock", "run",
         {"partition": None, "max_batches": 2, "drain": True, "accept_clock": True, "register": None}),
        ("publish-pending sums --from-checkpoint 3 --dry-run", "publish_pending",
         {"from_checkpoint": 3, "dry_run": True}),
        ("restore sums 7 --dry-run", "restore",
         {**MOVE, "dry_run": True, "checkpoint_id": 7, "savepoint": None, "allow_non_restored_state": False}),
        ("restore sums --savepoint /there --allow-non-restored-state --outputs keep --leave-alone out", "restore",
         {"checkpoint_id": None, "savepoint": "/there", "allow_non_restored_state": True, "outputs": "keep",
          "leave_alone": ["out"], "dry_run": False}),
        ("rescale sums", "rescale", {"parallelism": None, "max_parallelism": None, "dry_run": False}),
        ("rescale sums --parallelism 3 --operator a --operator b --dry-run", "rescale",
         {"parallelism": {"a": 3, "b": 3}, "max_parallelism": None, "dry_run": True}),
        ("compact sums", "compact", {"operators": None, "full": False, "dry_run": False}),
        ("compact sums --dry-run --full --operator a", "compact", {"operators": ["a"], "full": True, "dry_run": True}),
        ("expire-checkpoints sums --keep-last 5 --keep-hours 1 --drop-branch b", "expire_checkpoints",
         {"policy": RetentionPolicy(5, 3_600_000), "drop_branches": ["b"], "dry_run": False}),
        ("vacuum sums --orphan-hours 48 --delta-vacuum", "vacuum",
         {"orphan_age": timedelta(hours=48), "delta_vacuum": True, "dry_run": False}),
        ("branch create sums --from 0 --to 4 --branch b --rebatch", "replay",
         {"from_checkpoint": 0, "to_checkpoint": 4, "branch": "b", "rebatch": True}),
        ('explain sums --key {"k":1} --operator a --from 2 --to 4 --limit 3', "explain",
         {"key": {"k": 1}, "operator": "a", "from_checkpoint": 2, "to_checkpoint": 4, "last": 20, "limit": 3}),
        ('debug sums --key {"k":1} --operator a --from 2 --to 4', "debug",
         {"key": {"k": 1}, "operator": "a", "checkpoint_id": None, "from_checkpoint": 2, "to_checkpoint": 4}),
        ("debug sums --key a --checkpoint 3", "debug",
         {"key": "a", "operator": None, "checkpoint_id": 3, "from_checkpoint": None, "to_checkpoint": None}),
        ("branch compare sums b", "compare", {"branch": "b"}),
        ("branch promote sums b --expected-head 4", "promote", {**MOVE, "branch": "b", "expected_head": 4}),
        ("branch drop sums b --dry-run", "drop_branch", {"branch": "b", "dry_run": True}),
        ("backfill sums --from 1 --to 2 --rebatch --outputs keep --dry-run", "backfill",
         {"start": "1", "end": "2", "mode": "roll_forward", "rebatch": True, "outputs": "keep", "dry_run": True,
          "accept_clock": False}),
        ("state diff sums 1 2", "diff", {"before": 1, "after": 2, "operator": None, "state": None}),
        ("savepoint create sums s --path /p --checkpoint 2", "savepoints(sums).create",
         {"name": "s", "path": "/p", "checkpoint_id": 2}),
        ("savepoint delete sums s --keep-files --dry-run", "savepoints(sums).delete",
         {"name": "s", "keep_files": True, "dry_run": True}),
        ("state erase-keys sums --key {\"k\":1} --purge --sinks --drop-branch b", "state_processor(sums).erase_keys",
         {"keys": [{"k": 1}], "operator": None, "dry_run": False, "purge": True, "sinks": True,
          "drop_branches": ["b"]}),
        ("drop-operators sums --operator a --operator b --dry-run", f"state_processor({JOB}).drop_operators",
         {"operators": ("a", "b"), "dry_run": True}),
        ("dead-letters replay sums --id x --max-rows 5 --accept-clock --dry-run", "replay_dead_letters",
         {"ids": ["x"], "operator": None, "max_rows": 5, "accept_clock": True, "dry_run": True}),
    ],
)  # fmt: skip
def test_a_command_calls_the_engine_as_its_options_say(line: str, call: str, options: dict[str, Any]) -> None:
    done = CliRunner().invoke(app, line.split())
    assert isinstance(done.exception, CalledError), done.output
    called, given = done.exception.args
    job = given.pop("job", "sums")
    assert job in ("sums", JOB)
    assert (called, given) == (call, options)


def test_operators_without_a_number_of_subtasks_are_refused() -> None:
    done = CliRunner().invoke(app, ["rescale", "sums", "--operator", "a"])
    assert "give --parallelism, too" in str(done.exception)


def test_an_unknown_command_is_an_error() -> None:
    assert "No such command 'nothing'" in CliRunner().invoke(app, ["nothing"]).output


def test_a_misspelt_command_is_answered_with_one_hint() -> None:
    printed = CliRunner().invoke(app, ["slq"]).output
    assert printed.count("Did you mean 'sql'?") == 1


def test_the_version_is_an_option() -> None:
    assert CliRunner().invoke(app, ["--version"]).output.strip() == metadata.version("statelake")


def test_jobs_are_listed_with_what_they_are() -> None:
    done = CliRunner().invoke(app, ["jobs"])
    assert done.exit_code == 0, done.output
    assert "sums" in done.output


def test_commands_stand_in_the_order_in_which_people_need_them() -> None:
    listed = list(every_command())
    order = [
        "setup",
        "doctor",
        "jobs",
        "run",
        "status",
        "checkpoints",
        "restore",
        "rescale",
        "compact",
        "vacuum",
    ]
    assert [name for name in listed if name in order] == order


def test_every_argument_and_option_says_what_it_is() -> None:
    silent = [
        (name, parameter.name)
        for name, command in every_command().items()
        for parameter in command.params
        if not getattr(parameter, "help", None)
    ]
    assert silent == []


def test_an_option_means_the_same_everywhere() -> None:
    """Every command that changes something has ``--dry-run`` with the same help; the job is the first argument."""
    meanings: dict[str, set[str]] = {}
    for command in every_command().values():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.name in (
                "dry_run",
                "rebatch",
                "outputs",
            ):
                meanings.setdefault(str(parameter.name), set()).add(str(parameter.help))
    meanings["dry_run"].discard("With --repair: only show what would be done.")
    assert all(len(texts) == 1 for texts in meanings.values()), meanings
    for name, command in every_command().items():
        assert command.help, name
        arguments = [p.name for p in command.params if isinstance(p, click.Argument)]
        if "job" in arguments:
            assert arguments[0] == "job", name
