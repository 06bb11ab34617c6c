"""``statelake apply``: the replay of a plan, killed in the middle, goes on; it is compared, and promoted if asked."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import (
    KeyedProcessFunction,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    Types,
    ValueStateDescriptor,
)
from state_engine.code_changes.replay_needed import branch_of_replay
from state_engine.microbatch.declared_parts import DeclaredParts
from state_engine.testing import CollectSink, run_in_memory

PROJECT = Path(__file__).parents[2]
MODULE = "shop_to_apply"
CODE = """
import os
import time

from state_engine import FileSink, FileSource, KeyedProcessFunction, StatefulJob, ValueStateDescriptor
from state_engine.registry import RegisteredJob


class Totals(KeyedProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_element(self, value, ctx):
        while value.cents == 30 and os.path.exists("PLACE/wait"):
            open("PLACE/waits", "w").close()
            time.sleep(0.1)
        self.total.update(self.total.value() + value.cents * 1)
        yield (value.user, self.total.value())


def jobs(settings):
    job = StatefulJob("shop")
    source = FileSource("PLACE/inbox", schema="user string, cents bigint", format="csv")
    totals = job.source("clicks", source).key_by("user").process(Totals(), "user string, total bigint", uid="totals")
    totals.sink("totals", FileSink("PLACE/totals"))
    return [RegisteredJob(job=job)]
"""
ROWS = ("ann,10\n", "bob,20\n", "ann,30\nbob,1\n", "ann,40\n")


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Iterator[Path]:
    """A project whose job ran four times, and whose code then became another one."""
    (tmp_path / "inbox").mkdir()
    (tmp_path / "statelake.toml").write_text(f'root = "{tmp_path}/root"\n[jobs]\nmodules = ["{MODULE}"]\n')
    code = CODE.replace("PLACE", str(tmp_path))
    (tmp_path / f"{MODULE}.py").write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        # that of a file of one second and one size would stand for its other text
        patch.setattr(sys, "dont_write_bytecode", True)
        job = importlib.import_module(MODULE).jobs(None)[0].job
        with StateEngine(tmp_path / "root", spark) as engine:
            for number, lines in enumerate(ROWS):
                (tmp_path / "inbox" / f"{number}.csv").write_text(lines)
                engine.run(job)
    (tmp_path / f"{MODULE}.py").write_text(code.replace("cents * 1", "cents * 2"))
    yield tmp_path
    sys.modules.pop(MODULE)


def started(shop: Path, *arguments: str) -> subprocess.Popen[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("STATELAKE")}
    return subprocess.Popen(
        [sys.executable, "-B", "-c", "from state_engine.cli.main import main; main()", *arguments],
        env=environ | {"PYTHONPATH": str(PROJECT)},
        cwd=shop,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ran(shop: Path, *arguments: str, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    """What a command prints for programs, and its messages, each space a blank: their lines end where they must."""
    process = started(shop, *arguments, "--json")
    out, errors = process.communicate(timeout=300)
    assert process.returncode == code, out + errors
    return [json.loads(line) for line in out.splitlines()], " ".join(errors.split())


def shown(shop: Path) -> list[tuple[str, int]]:
    """The rows that readers of the sink see."""
    files = [
        file
        for file in (shop / "totals").rglob("*.parquet")
        if "/_" not in str(file) and "/." not in str(file)
    ]
    return sorted((row["user"], row["total"]) for file in files for row in pq.read_table(file).to_pylist())


@pytest.mark.spark
@pytest.mark.more
@pytest.mark.timeout(900)
def test_a_replay_that_was_killed_goes_on_and_is_promoted(shop: Path) -> None:
    before = shown(shop)
    assert before == [("ann", 10), ("ann", 40), ("ann", 80), ("bob", 20), ("bob", 21)]
    (plan,), _ = ran(shop, "plan", "shop", code=2)
    head = str(plan["head_id"])
    assert plan["replay"]["from_checkpoint"] is None

    (shop / "wait").touch()  # in the third micro-batch
    process = started(shop, "apply", "shop", "--from", "0")
    while not (shop / "waits").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (shop / "wait").unlink()

    (compared,), errors = ran(shop, "apply", "shop", "--from", "0")
    assert "2 micro-batches replayed now" in errors  # and not four
    (outputs,) = compared["outputs"]
    assert (outputs["rows_only_old"], outputs["rows_only_new"]) == (4, 4)  # 40 and 20 are in both by chance
    assert shown(shop) == before
    assert compared["branch"] == f"plan_{head}"

    _, errors = ran(shop, "apply", "shop", "--from", "0", "--promote", "--expected-head", "1", code=1)
    assert f"the head is checkpoint {head}, not 1: look at statelake plan again" in errors
    (again, moved), errors = ran(shop, "apply", "shop", "--from", "0", "--promote", "--expected-head", head)
    assert "0 micro-batches replayed now" in errors
    assert again["outputs"] == compared["outputs"]
    assert moved["job"] == "shop"
    assert shown(shop) == [("ann", 20), ("ann", 80), ("ann", 160), ("bob", 40), ("bob", 42)]

    (nothing,), _ = ran(shop, "apply", "shop", "--from", "0")
    assert nothing == {"job": "shop", "verdict": "same"}


@pytest.mark.spark
@pytest.mark.more
@pytest.mark.timeout(900)
def test_what_is_no_replay_of_the_plan_is_refused(shop: Path) -> None:
    def refusal(*arguments: str) -> str:
        return ran(shop, "apply", "shop", *arguments, code=1)[1]

    assert "other code made the state of checkpoint 2: give --from 0" in refusal("--from", "2")
    assert "--promote and --expected-head go together" in refusal("--from", "0", "--promote")
    text = (shop / f"{MODULE}.py").read_text()
    (shop / f"{MODULE}.py").write_text(
        text.replace('"total", int', '"total", str').replace("default=0", "default=''")
    )
    (plan,), _ = ran(shop, "apply", "shop", "--from", "0", code=3)
    assert plan["verdict"] == "refused"


class Adds(KeyedProcessFunction):
    """A sum of sorts."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update(self.total.value() + value * self.factor)
        yield self.total.value()


def adding(factor: int) -> StatefulJob:
    job = StatefulJob("sums")
    numbers = job.from_collection([1, 2, 3], type_info=Types.LONG(), max_rows_per_batch=1)
    keyed = numbers.key_by(lambda value: value % 2, key_type=Types.LONG())
    keyed.process(Adds(factor), uid="sums", output_type=Types.LONG()).sink("out", CollectSink())
    return job


def test_a_branch_goes_on_where_this_code_began_it_and_nowhere_else() -> None:
    with run_in_memory(adding(1)) as run:
        run.run()
        head = run.checkpoints()[-1].checkpoint_id

        def branch(factor: int, begin: int | None) -> str:
            run.restart(adding(factor))
            history = run._engine.context.history("sums")
            return branch_of_replay(history, DeclaredParts.of(run._made.job), begin)

        assert branch(2, None) == f"plan_{head}"
        run._engine.replay(run._made.job, branch=f"plan_{head}", to_checkpoint=2)
        assert branch(2, None) == f"plan_{head}"
        newest = run.checkpoints()[-1].checkpoint_id
        assert branch(2, 1) == f"plan_{head}_{newest + 1}"
        assert branch(3, None) == f"plan_{head}_{newest + 1}"
        run._engine.drop_branch("sums", f"plan_{head}")
        assert branch(2, None) != f"plan_{head}"
