"""The first page: what it shows is what there is, and its five commands work in a new environment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import open_state
from state_engine.cli.init import Template, project_files
from tests.support.environments import REPOSITORY, built_wheel, environment_of
from tests.support.guides import code_blocks
from tests.support.ports import free_port

README = (REPOSITORY / "README.md").read_text()
PAGE = (REPOSITORY / "docs" / "get-started.md").read_text()


def five_commands(page: str) -> list[str]:
    section = page.partition("## Five commands")[2]
    block = re.search(r"^```\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert block is not None
    return block[1].splitlines()


def test_both_pages_show_the_same_five_commands() -> None:
    assert five_commands(README) == five_commands(PAGE)
    assert len(five_commands(PAGE)) == 5


def test_the_job_that_is_shown_is_the_smallest_template() -> None:
    shown = re.search(
        r"<!-- from [\w/]+/minimal/totals.py -->\n```python no-run\n(.*?)^```$", PAGE, re.DOTALL | re.M
    )
    assert shown is not None
    assert shown[1] in project_files(Template.MINIMAL, "shop")["totals.py"]


@pytest.mark.parametrize("page", ["README.md", "docs/get-started.md"])
def test_links_lead_somewhere(page: str) -> None:
    at = REPOSITORY / page
    links = [link for link in re.findall(r"\]\(([^)#]+)", at.read_text()) if "://" not in link]
    assert len(links) > 5
    assert [link for link in links if not (at.parent / link).exists()] == []


@pytest.mark.long
def test_five_commands_lead_from_nothing_to_dagster(tmp_path: Path) -> None:
    (tmp_path / "wheel").mkdir()
    python = environment_of(built_wheel(tmp_path / "wheel"), tmp_path / "environment", extras=["dagster"])
    here = tmp_path / "here"
    here.mkdir()
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("STATELAKE", "DAGSTER", "PYTHON"))}
    environ = inherited | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    install, make, run, ask, show = five_commands(PAGE)
    assert install == 'pip install "statelake[dagster]"'  # done above, without a network
    script = "\n".join(["set -e", make, run, ask])
    done = subprocess.run(
        ["bash", "-c", script], cwd=here, env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "caught up, head 1" in done.stdout
    assert "user0" in done.stdout
    port = free_port()
    server = subprocess.Popen(
        f"exec {show} -h 127.0.0.1 -p {port}", shell=True, cwd=here / "shop", env=environ, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        ask_dagster = Dagster(f"http://127.0.0.1:{port}/graphql")
        assert {"sessions/checkpoint", "sessions/tables/sessions"} <= ask_dagster.assets()
        assert ask_dagster.run("sessions") == "SUCCESS"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


class Dagster:
    """A web server of Dagster that comes up."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, text: str, **variables: Any) -> Any:
        body = json.dumps({"query": text, "variables": variables}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["data"]

    def assets(self) -> set[str]:
        for _ in range(240):
            try:
                nodes = self.query("{ assetNodes { assetKey { path } } }")["assetNodes"]
                if nodes:
                    return {"/".join(node["assetKey"]["path"]) for node in nodes}
            except OSError:
                pass
            time.sleep(0.5)
        raise AssertionError("Dagster shows no assets")

    def run(self, job: str) -> str:
        where = self.query(
            "{ repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } } } } }"
        )
        (node,) = where["repositoriesOrError"]["nodes"]
        selector = {
            "repositoryName": node["name"], "repositoryLocationName": node["location"]["name"], "jobName": job,
        }  # fmt: skip
        launched = self.query(
            "mutation($p: ExecutionParams!) { launchRun(executionParams: $p) { ... on LaunchRunSuccess "
            "{ run { runId } } ... on PythonError { message } } }",
            p={"selector": selector, "runConfigData": {}},
        )["launchRun"]
        status = ""
        for _ in range(300):
            answer = self.query(
                "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }",
                id=launched["run"]["runId"],
            )
            status = answer["runOrError"]["status"]
            if status in ("SUCCESS", "FAILURE", "CANCELED"):
                break
            time.sleep(0.5)
        return status


# -- the job of the first page ----------------------------------------------------------------------------------------

NINE = datetime(2026, 1, 5, 9, tzinfo=UTC)


def arrive(inbox: Path, *clicks: tuple[str, int, int]) -> None:
    """A file of clicks: user, minutes after nine, cents."""
    inbox.mkdir(parents=True, exist_ok=True)
    users, minutes, cents = zip(*clicks, strict=True)
    at = [NINE + timedelta(minutes=minute) for minute in minutes]
    table = pa.table({"user": users, "at": at, "cents": cents})
    pq.write_table(table, inbox / f"{len(list(inbox.iterdir()))}.parquet")


def test_the_job_and_its_questions_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    job, asking, _ = code_blocks(REPOSITORY / "README.md", "python")
    here: dict[str, Any] = {"open_state": open_state}
    arrive(tmp_path / "data" / "clicks", ("ada", 0, 100), ("ada", 60, 50), ("bob", 100, 0))
    exec(compile(job, "README.md", "exec"), here)
    engine, asked = here["engine"], here["job"]
    table = str(tmp_path / "data" / "visits")
    first = spark.read.load(table, format="delta").select("user", "clicks", "spent").collect()
    assert sorted(map(tuple, first)) == [("ada", 1, 50), ("ada", 1, 100)]
    assert "ada" in capsys.readouterr().out  # what read_state shows
    arrive(tmp_path / "data" / "clicks", ("ada", 30, 7))  # late, and it joins the two
    engine.run(asked)
    joined = spark.read.load(table, format="delta").select("user", "clicks", "spent").collect()
    assert list(map(tuple, joined)) == [("ada", 3, 157)]
    now = asking.replace("2026-03-01T12:00", datetime.now(UTC).isoformat()).replace("7, 9", "1, 2")
    exec(compile(now, "README.md", "exec"), here)
    assert "ada" in capsys.readouterr().out
