"""``statelake plan``: what a pull request would do, as the command prints it, and that it only looks."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from state_engine import StateEngine
from state_engine.code_changes.planned import plan_of
from tests.support.directories import contents
from tests.support.guides import GUIDES, code_blocks
from tests.support.read_only import read_only

pytestmark = pytest.mark.spark
PROJECT = Path(__file__).parents[2]

CODE = """
from dataclasses import dataclass

from state_engine import FileSink, FileSource, KeyedProcessFunction, Session, StatefulJob, Types, ValueStateDescriptor
from state_engine import count
from state_engine.registry import RegisteredJob


@dataclass(frozen=True)
class Seen:
    visits: int = 0


class Totals(KeyedProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Seen))

    def process_element(self, value, ctx):
        self.total.update((self.total.value() or 0) + value.cents)
        self.seen.update(Seen(1))
        yield (value.user, self.total.value())


class Newest(KeyedProcessFunction):
    def open(self, runtime_context):
        self.newest = runtime_context.get_state(ValueStateDescriptor("newest", int))

    def process_element(self, value, ctx):
        self.newest.update(value.cents)


def jobs(settings):
    job = StatefulJob("shop")
    source = FileSource("inbox", schema="user string, cents bigint, at timestamp", format="csv")
    clicks = job.source("clicks", source, event_time="at").key_by("user")
    clicks.window(Session("30 min")).aggregate(n=count(), uid="sessions").sink("sessions", FileSink("sessions"))
    clicks.process(Totals(), "user string, total bigint", uid="totals").sink("totals", FileSink("totals"))
    clicks.process(Newest(), "user string", uid="newest")
    return [RegisteredJob(job=job)]
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Path]:
    """A project whose job ran twice."""
    project = tmp_path_factory.mktemp("shop")
    (project / "inbox").mkdir()
    (project / "statelake.toml").write_text('root = "root"\n[jobs]\nmodules = ["shop_of_plans"]\n')
    (project / "shop_of_plans.py").write_text(CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        patch.syspath_prepend(project)
        # that of a file of one second and one size would stand for its other text
        patch.setattr(sys, "dont_write_bytecode", True)
        job = importlib.import_module("shop_of_plans").jobs(None)[0].job
        with StateEngine(project / "root", spark) as engine:
            for name, lines in (
                ("1", "ann,1,2024-01-01 00:00:00\n"),
                ("2", "bob,2,2024-01-01 00:05:00\n" * 2),
            ):
                (project / "inbox" / f"{name}.csv").write_text(lines)
                engine.run(job)
    yield project
    sys.modules.pop("shop_of_plans")


def write(project: Path, changes: Mapping[str, tuple[str, str]]) -> None:
    """Write the code with other texts in the place of some."""
    code = CODE
    for old, new in changes.values():
        assert old in code
        code = code.replace(old, new)
    (project / "shop_of_plans.py").write_text(code)


def plan(project: Path, *arguments: str, **changes: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    """What the command prints for changed code, where no process can be started."""
    write(project, changes)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("STATELAKE") and k != "JAVA_HOME"}
    return subprocess.run(
        [sys.executable, "-B", "-c", _WITHOUT_SPARK, "plan", *arguments],
        env=environ | {"PYTHONPATH": str(PROJECT), "PATH": "/nowhere"},
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


_WITHOUT_SPARK = """
import subprocess
from state_engine.cli.main import main

def refuse(*given, **options):
    raise AssertionError("a process is started")

subprocess.Popen = refuse
main()
"""
PULL_REQUEST = {
    "gap": ('Session("30 min")', 'Session("45 min")'),
    "field": ("visits: int = 0", 'visits: int = 0\n    runway: str = "unknown"'),
    "type": ("Types.LONG()", "Types.INT()"),
    "operator": ('    clicks.process(Newest(), "user string", uid="newest")\n', ""),
}


def test_a_pull_request_that_changes_four_things_is_planned(shop: Path) -> None:
    done = plan(shop, **PULL_REQUEST)
    assert done.returncode == 3, done.stderr
    lines = {line.partition("  ")[2].strip().partition("  ")[0]: line for line in done.stdout.splitlines()}
    assert re.search(
        r"refused +job 'shop', operator 'sessions': its state was written by 'session 1800000 .*', and "
        r"'session 2700000 .*' would misread it\. Restore what it was; or give the operator another uid",
        lines["operator sessions"],
    )
    assert re.search(
        r"continues +'runway' is added, as \"unknown\" in what is stored", lines["state totals.seen"]
    )
    assert re.search(
        r"refused .*state 'total' is stored as bigint, the function declares int: bigint cannot become int",
        lines["state totals.total"],
    )
    assert re.search(
        r"refused .*holds state of operators \['newest'\].*statelake drop-operators shop --operator newest",
        lines["operator newest"],
    )
    assert (
        "shop: refused, compared with checkpoint 2 (6 same, 1 continues, 1 replay, 3 refused)" in done.stdout
    )


def test_nothing_changed(shop: Path) -> None:
    done = plan(shop, "shop")
    assert done.returncode == 0, done.stderr
    assert "shop: same, compared with checkpoint 2 (12 same)" in done.stdout


CHANGED = {"code": ("+ value.cents", "+ 2 * value.cents")}


def test_a_replay_has_numbers_and_commands_and_a_read_only_root_is_enough(shop: Path) -> None:
    before = contents(shop / "root")
    with read_only(shop / "root"):
        done = plan(shop, "--json", **CHANGED)
    assert contents(shop / "root") == before
    assert done.returncode == 2, done.stderr
    (record,) = map(json.loads, done.stdout.splitlines())
    assert (record["verdict"], record["head_id"], record["exit_code"]) == ("replay", 2, 2)
    assert [p["name"] for p in record["parts"] if p["verdict"] != "same"] == ["totals"]
    replay = record["replay"]
    assert (replay["from_checkpoint"], replay["batches"], replay["rows"], replay["files"]) == (None, 2, 3, 2)
    assert 0 < replay["seconds"] < 600
    assert replay["commands"] == [
        "statelake apply shop --from 0",
        "statelake apply shop --from 0 --promote --expected-head 2",
    ]


def test_markdown_has_what_differs_in_a_table(shop: Path) -> None:
    done = plan(shop, "--markdown", **CHANGED)
    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith(
        "### Plan of `shop`: replay\n\nCompared with checkpoint 2; 11 parts are the same.\n\n"
        "| part | verdict | what differs |\n|---|---|---|\n"
        "| `operator totals` | **replay** | its function changed |\n\n"
        "A replay from the very beginning repeats 2 micro-batches: 3 rows of 2 files, which took "
    )
    assert done.stdout.endswith("statelake apply shop --from 0 --promote --expected-head 2\n```\n")


def test_a_sample_runs_without_spark_and_commits_nothing(shop: Path) -> None:
    before = contents(shop / "root")
    done = plan(shop, "shop", "--sample", "100", "--json", **CHANGED)
    assert contents(shop / "root") == before
    assert done.returncode == 2, done.stderr
    sample = json.loads(done.stdout)["sample"]
    assert (sample["batches"], sample["rows"], sample["notes"]) == ([1, 2], 3, [])
    counts = {(s["kind"], s["name"]): (s["same"], s["only_old"], s["only_new"]) for s in sample["compared"]}
    assert counts["sink", "totals"] == (1, 2, 2)  # 4 of bob is in both
    assert counts["state", "totals.total"][1:] == (2, 2)
    assert counts["state", "newest.newest"][1:] == (0, 0)
    (totals,) = [one for one in sample["compared"] if one["name"] == "totals"]
    assert "{'user': 'ann', 'total': 1}" in totals["old"]
    assert "{'user': 'ann', 'total': 2}" in totals["new"]
    text = plan(shop, "shop", "--sample", "2", **CHANGED).stdout
    assert "sample of checkpoints 2: 2 rows" in text
    assert "  sink totals: 1 same, 1 only old, 1 only new" in text
    text = plan(shop, "shop", "--sample", "1", **CHANGED).stdout
    assert "sample of checkpoints 1: 1 row" in text
    assert "  checkpoint 2 was not run: each key has more rows than are left: take a sample of " in text


FRAMES = {
    "code": ('format="csv")\n', 'format="csv")\n    same = lambda rows: rows.where("cents > 1")\n'),
    "use": ('event_time="at").key_by', 'event_time="at").transform(same).key_by'),
}


def test_a_sample_says_what_needs_spark_and_runs_it_with_spark(shop: Path, spark: SparkSession) -> None:
    done = plan(shop, "shop", "--sample", "100", **FRAMES)
    assert (
        "checkpoint 2 was not run: a source, or DataFrame code of a transform, needs Spark: give --spark"
        in done.stdout
    )
    assert plan(shop, "shop", "--spark").returncode == 1
    write(shop, FRAMES)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(shop)
        patch.syspath_prepend(shop)
        patch.delitem(sys.modules, "shop_of_plans")
        job = importlib.import_module("shop_of_plans").jobs(None)[0].job
        made = plan_of("root", job, clock=lambda: 0, parameters={}, sample=100, session=lambda: spark)
    assert made.sample is not None
    assert made.sample.notes == ()
    (totals,) = [one for one in made.sample.compared if one.name == "totals"]
    assert (totals.same, totals.only_old, totals.only_new) == (2, 1, 0)


def test_another_root_where_the_job_never_ran(shop: Path) -> None:
    done = plan(shop, "shop", "--root", "elsewhere")
    assert done.returncode == 0, done.stderr
    assert "shop: never ran here; the first run begins with nothing" in done.stdout
    assert not (shop / "elsewhere").exists()


GUIDE = GUIDES / "planning.md"


def test_the_example_of_the_guide(
    shop: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch, StateEngine(shop / "root", spark) as engine:
        patch.chdir(shop)
        job = sys.modules["shop_of_plans"].jobs(None)[0].job
        job.sources["clicks"].max_out_of_orderness_ms = 5
        (example,) = code_blocks(GUIDE, "python")
        exec(compile(example, str(GUIDE), "exec"), {"engine": engine, "job": job})
    assert "source clicks replay out-of-orderness in ms: 0 → 5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "code"), [({}, 0), (CHANGED, 0), (PULL_REQUEST, 1)], ids=["nothing", "replay", "refused"]
)
def test_the_job_of_a_ci(shop: Path, tmp_path: Path, changes: dict[str, tuple[str, str]], code: int) -> None:
    """Its steps, in one shell: what one of them writes to the environment, the next one has."""
    steps = yaml.safe_load(code_blocks(GUIDE, "yaml")[0])["plan"]["steps"]
    install, plan_step, comment, verdict = (step["run"] for step in steps if "run" in step)
    assert install == "pip install ."
    write(shop, changes)
    script = f"{plan_step}\n. $GITHUB_ENV\n{comment}\n{verdict}\n"
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "gh").write_text("#!/bin/sh\ncat $5\n")
    (commands / "gh").chmod(0o755)
    path = f"{commands}:{Path(sys.executable).parent}:/usr/bin:/bin"
    environ = {
        "PATH": path,
        "GITHUB_ENV": str(tmp_path / "env"),
        "PRODUCTION_ROOT": "root",
        "PULL_REQUEST": "1",
    }
    done = subprocess.run(
        ["bash", "-e", "-c", script], env=environ, cwd=shop, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith("### Plan of `shop`: ")
