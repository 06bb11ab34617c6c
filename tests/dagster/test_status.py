"""Job health: the rule as a pure function, its command without Spark or Java, and its charts in asset metadata."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import dagster as dg
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from state_engine import StatefulJob
from state_engine.cli.main import app
from state_engine.core.checkpoints.checkpoint import (
    CheckpointRow,
    DataFile,
    ExpectationCount,
    OperatorCheckpoint,
    SourceProgress,
)
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.dead_letters import LETTERS
from state_engine.core.errors import StorageError
from state_engine.dagster import HealthLimits, JobOptions, job_health
from state_engine.dagster.concepts import automation, checks
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.job_health import describe
from state_engine.dagster.metadata import checkpoint_metadata
from state_engine.dagster.pictures import bars, durations_and_lag, lines, state_sizes
from state_engine.machine.settings import Settings
from state_engine.microbatch.coordinator import CheckpointCoordinator
from state_engine.monitoring.job_status import JobStatus, status_of
from state_engine.registry import RegisteredJob
from tests.core.checkpoints.rows import checkpoint, tree
from tests.dagster.sites import JOB, Site
from tests.support.commands import in_a_new_process

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
CHANGE = DataFile(
    "write_id=a/part-00000-a-0.parquet", bytes=1, rows=5, subtask=0, key_group_min=0, key_group_max=3
)
OPERATOR = OperatorCheckpoint("sums", 1, 128, "struct<k: string>", [], [CHANGE], [], 5)


def row(i: int, kind: str = "checkpoint", *, minutes: int = 0) -> CheckpointRow:
    return CheckpointRow(
        checkpoint_id=i,
        parent_id=i - 1 or None,
        branch="main",
        kind=CheckpointKind(kind),
        write_id=f"w{i}",
        created_at=BEGIN + timedelta(minutes=minutes),
        clock_ms=0,
        watermark_ms=None,
        rows_in=1,
        rows_refused=0,
        operators=[OPERATOR if kind == "checkpoint" else replace(OPERATOR, changelog=[], changed_entries=0)],
        operator_state=[],
        operator_state_files=[],
        sources=[],
        sinks=[],
        dead_letters=[],
    )


def status(
    path: list[CheckpointRow],
    *,
    now_minutes: float = 60,
    lag: dict[str, bool | None] | None = None,
    unpublished: tuple[int, ...] = (),
) -> JobStatus:
    now_ms = int((BEGIN + timedelta(minutes=now_minutes)).timestamp() * 1000)
    return status_of(
        "j", path, unpublished=unpublished, lag=lag, now_ms=now_ms, stuck_after=timedelta(minutes=30)
    )


def test_a_job_that_never_ran_is_shown_as_such() -> None:
    job_status = status([])
    assert (job_status.state, job_status.exit_code) == ("never_ran", 2)


@pytest.mark.parametrize(
    ("lag", "now_minutes", "state", "code"),
    [
        ({"a": True}, 41, "stuck", 1),
        ({"a": True}, 40, "ok", 0),
        ({"a": False}, 400, "ok", 0),
        ({"a": None}, 400, "ok", 0),
        ({"a": None, "b": True}, 400, "stuck", 1),
        (None, 400, "ok", 0),
    ],
    ids=str,
)
def test_a_job_with_new_data_and_an_old_head_is_stuck(
    lag: dict[str, bool | None] | None, now_minutes: float, state: str, code: int
) -> None:
    path = [row(1), row(2, minutes=10), row(3, "compaction", minutes=39)]
    job_status = status(path, now_minutes=now_minutes, lag=lag)
    assert (job_status.state, job_status.exit_code) == (state, code)


def test_unpublished_counts_more_than_stuck_and_numbers_are_those_of_the_path() -> None:
    path = [row(1), row(2, minutes=10), row(3, "restore", minutes=20)]
    job_status = status(path, lag={"a": True}, unpublished=(2,))
    assert (job_status.state, job_status.unpublished) == ("unpublished", (2,))
    assert (job_status.head_id, job_status.head_kind, job_status.head_age_s) == (3, "restore", 40 * 60)
    assert (job_status.batch_id, job_status.batch_age_s, job_status.rows_since_batch) == (2, 50 * 60, 1)
    assert (job_status.changelog_files, job_status.changelog_rows, job_status.base_rows) == (2, 10, 0)


def test_a_job_that_refuses_all_of_its_rows_is_not_fine() -> None:
    letters = DataFile("write_id=w2/letters", 1, 5, 0)
    some, all_ = (
        replace(row(2, minutes=10), rows_in=n, rows_refused=5, dead_letters=[letters]) for n in (6, 5)
    )
    job_status = status([row(1), some], lag={"a": False})
    assert (job_status.state, job_status.exit_code, job_status.dead_letters, job_status.refused) == (
        "ok",
        0,
        5,
        5,
    )
    job_status = status([row(1), all_, row(3, "compaction", minutes=20)], lag={"a": False})
    assert (job_status.state, job_status.exit_code, job_status.dead_letters, job_status.refused) == (
        "refusing",
        1,
        5,
        5,
    )
    assert "dead-letters list j" in describe(job_status)


@pytest.mark.parametrize("kind", ["import", "bootstrap"])
def test_a_job_that_begins_with_state_is_as_old_as_that(kind: str) -> None:
    job_status = status([row(1, kind, minutes=10), row(2, "rescale", minutes=50)], lag={"a": True})
    assert (job_status.state, job_status.batch_id, job_status.batch_age_s) == ("stuck", 1, 50 * 60)


def command(site: Site, *arguments: str) -> tuple[int, str]:
    """Exit code and output of ``statelake status``."""
    given = site.settings.jobs
    environ = {
        "STATELAKE__ROOT": site.settings.root,
        "STATELAKE__JOBS__MODULES": json.dumps(given.modules),
        "STATELAKE__JOBS__PARAMETERS": json.dumps(given.parameters),
    }
    done = in_a_new_process("status", *arguments, cwd=site.directory, PATH="/nonexistent", **environ)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.mark.long
@pytest.mark.spark
def test_the_command_reports_never_ran_fine_stuck_and_unpublished(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: CheckpointCoordinator, attempt: object) -> None:
        raise RuntimeError("killed after the commit")

    with dg.DagsterInstance.ephemeral() as instance:
        site = Site(tmp_path, instance)
        assert command(site)[0] == 2
        site.run()
        code, text = command(site)
        assert (code, "pairs: no" in text) == (0, True), text
        site.arrive("b", [(1, 8), (1, 10)])
        assert command(site, "--stuck-minutes", "1")[0] == 0
        (tmp_path / "feed" / "half.parquet").write_bytes(b"PAR1 and no footer")
        (tmp_path / "feed" / "c.parquet.tmp").write_bytes(b"PAR1")
        code, text = command(site)
        assert "half.parquet has no Parquet footer yet" in text, text
        assert "c.parquet.tmp is being copied" in text, text
        assert command(site, JOB, "--stuck-minutes", "0")[0] == 1
        with monkeypatch.context() as patched:
            patched.setattr(CheckpointCoordinator, "publish", die)
            site.run(raise_on_error=False)
        code, text = command(site, JOB, "--json")
        shown = json.loads(text)
        assert (code, shown["state"], shown["unpublished"], shown["head_id"]) == (1, "unpublished", [4], 4)
        assert command(site, "no_such_job")[0] == 2


def test_settings_that_are_wrong_are_no_state_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATELAKE__SPARK__SPRAK", "x")
    done = CliRunner().invoke(app, ["status"])
    assert done.exit_code == 2
    assert "sprak" in done.stderr


SVG = "{http://www.w3.org/2000/svg}"


def drawn(markdown: str) -> tuple[list[str], str]:
    """The paths of an image, and all its text."""
    match = re.fullmatch(r"!\[[^]]*\]\(data:image/svg\+xml;base64,([^)]*)\)", markdown)
    assert match is not None
    tree = ElementTree.fromstring(base64.b64decode(match[1]))
    text = " ".join(t for node in tree.iter(f"{SVG}text") for t in node.itertext())
    return [path.attrib["d"] for path in tree.iter(f"{SVG}path")], text


def test_a_bar_is_as_high_as_its_share_and_nothing_is_drawn_for_nothing() -> None:
    [path], text = drawn(bars("a <b>", [10, 0, 5]))
    assert [float(h) for h in re.findall(r"v-([0-9.]+)", path)] == [100, 50]
    assert text == "a <b> 3 in all, most 10"


def test_very_many_values_share_bars() -> None:
    [path], text = drawn(bars("groups", [1] * 1000))
    assert path.count("M") == 125
    assert "1,000 in all, most 8" in text


@pytest.mark.parametrize("values", [[], [0, 0]], ids=str)
def test_nothing_is_a_picture_too(values: list[float]) -> None:
    paths, _ = drawn(bars("empty", values))
    assert paths == [""]


def test_lines_have_gaps_and_scales_of_their_own() -> None:
    paths, text = drawn(lines("t", {"a": [1, None, 2], "b": [1000, 500, 0]}, ends=("from", "to")))
    assert [path.count("M") for path in paths] == [2, 1]
    assert "a: 2, most 2" in text
    assert "b: 0, most 1,000" in text
    assert "from → to" in text


def test_a_history_shows_durations_lag_and_the_size_of_the_state() -> None:
    path = [
        replace(row(i), durations_ms={"plan": 500, "execute": 1000 * i}, clock_ms=9000, watermark_ms=1000 * i)
        for i in range(1, 4)
    ]
    paths, text = drawn(durations_and_lag(path))
    assert len(paths) == 2
    assert "seconds: 3.50, most 3.50" in text
    assert "event-time lag, s: 6, most 8" in text
    picture, sizes = state_sizes(path)
    assert sizes == [(1, 1), (2, 2), (3, 3)]
    assert "checkpoint 1 → 3" in drawn(picture)[1]
    assert durations_and_lag([]) == ""


WARN, ERROR = dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR


def letters_row(
    number: int, *, rows_in: int = 6, refused: int = 0, kind: str = "checkpoint", sent: int = 0
) -> CheckpointRow:
    letters = [DataFile(f"write_id=w{number}/letters", 1, refused, 0)] if refused else []
    position = json.dumps({"letters": sent})
    return checkpoint(
        number,
        number - 1 or None,
        kind=kind,
        rows_in=rows_in,
        rows_refused=refused,
        dead_letters=letters,
        sources=[SourceProgress(LETTERS, position, position, 0, None)] if sent else [],
    )


def checked(monkeypatch: pytest.MonkeyPatch, path: list[CheckpointRow]) -> dg.AssetCheckResult:
    monkeypatch.setattr(checks, "read_history", lambda root, job: SimpleNamespace(path=path))
    return run_check()


def run_check() -> dg.AssetCheckResult:
    letters_check = checks._dead_letters(
        DagsterJob(registered=RegisteredJob(job=StatefulJob("refusing")), settings=Settings())
    )
    result = letters_check()
    assert isinstance(result, dg.AssetCheckResult)
    return result


@pytest.mark.parametrize(
    ("path", "passed", "severity", "counts"),
    [
        ([], True, WARN, (0, 0, 0)),
        ([letters_row(1)], True, WARN, (0, 0, 6)),
        ([letters_row(1, refused=2), letters_row(2)], False, WARN, (2, 0, 6)),
        (
            [letters_row(1), letters_row(2, refused=6), letters_row(3, kind="compaction")],
            False,
            ERROR,
            (6, 6, 6),
        ),
        ([letters_row(1, refused=2), letters_row(2, sent=1)], False, WARN, (1, 0, 6)),
        ([letters_row(1, refused=2), letters_row(2, sent=2)], True, WARN, (0, 0, 6)),
    ],
)
def test_the_check_warns_of_letters_and_fails_where_all_rows_are_refused(
    monkeypatch: pytest.MonkeyPatch, path: list[CheckpointRow], passed: bool, severity: dg.AssetCheckSeverity,
    counts: tuple[int, int, int],
) -> None:  # fmt: skip
    result = checked(monkeypatch, path)
    assert (result.passed, result.severity) == (passed, severity)
    shown = [result.metadata[name].value for name in ("dead_letters", "rows_refused", "rows_in")]
    assert tuple(shown) == counts
    assert ("statelake dead-letters list refusing" in (result.description or "")) is not passed


def test_a_history_that_cannot_be_read_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(root: str, job: str) -> None:
        raise StorageError("job 'refusing': denied")

    monkeypatch.setattr(checks, "read_history", refuse)
    result = run_check()
    assert (result.passed, result.severity) == (False, WARN)
    assert "denied" in (result.description or "")


def test_the_metadata_of_a_micro_batch_counts_late_rows() -> None:
    late = [
        SourceProgress(name, "", "", 6, None, behind_watermark=behind)
        for name, behind in (("a", 2), ("b", 0), ("c", 1))
    ]
    rows = tree([letters_row(1), replace(letters_row(2), sources=late)])
    shown = [checkpoint_metadata(one, None, rows) for one in rows.values()]
    assert [one["behind_watermark"] for one in shown] == [0, 3]
    assert "behind_watermark_by_source" not in shown[0]
    assert shown[1]["behind_watermark_by_source"].value == {"a": 2, "c": 1}


def test_the_metadata_of_a_micro_batch_counts_rows_that_break_rules() -> None:
    counts = [ExpectationCount(name, "v > 0", "drop", 6, broken) for name, broken in (("a", 2), ("b", 1))]
    rows = tree([letters_row(1), replace(letters_row(2), expectations=counts)])
    shown = [checkpoint_metadata(one, None, rows) for one in rows.values()]
    assert "expectations" not in shown[0]
    assert shown[1]["rows_that_break_rules"] == 3
    assert "| a | v > 0 | drop | 6 | 2 |" in shown[1]["expectations"].value


def test_the_metadata_of_a_micro_batch_counts_what_waits_by_then() -> None:
    rows = tree([letters_row(1, refused=3), letters_row(2, refused=1), letters_row(3, sent=2)])
    shown = [checkpoint_metadata(one, None, rows) for one in rows.values()]
    assert [one["dead_letters"] for one in shown] == [3, 4, 2]
    assert [one["rows_refused"] for one in shown] == [3, 1, 0]
    assert [one["refused_share"] for one in shown] == [0.5, round(1 / 6, 4), 0.0]


def test_a_strained_job_is_a_warning_and_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    of_job = DagsterJob(registered=RegisteredJob(job=StatefulJob("refusing")), settings=Settings())
    strained = JobStatus("refusing", "strained", head_id=1, strains=("its fullest subtask", "data waits"))
    monkeypatch.setattr(checks, "status_of", lambda _: strained)
    verdict = checks.verdict_on(of_job)
    assert (verdict.passed, verdict.severity) == (False, WARN)
    assert verdict.description == "its fullest subtask; data waits"
    with dg.DagsterInstance.ephemeral() as instance, dg.build_sensor_context(instance) as context:
        asked = automation._watch(of_job)(context)
        assert isinstance(asked, dg.SensorResult)
        assert not asked.run_requests
        monkeypatch.setattr(checks, "status_of", lambda _: JobStatus("refusing", "stuck", head_id=1))
        asked = automation._watch(of_job)(context)
        assert isinstance(asked, dg.SensorResult)
        assert len(asked.run_requests or []) == 1


@pytest.mark.parametrize(
    ("options", "hours"), [(JobOptions(), 3.0), (JobOptions(limits=HealthLimits(timedelta(hours=9))), 9.0)]
)
def test_lag_is_judged_by_the_schedule_unless_limits_are_given(
    monkeypatch: pytest.MonkeyPatch, options: JobOptions, hours: float
) -> None:
    given: dict[str, HealthLimits] = {}
    monkeypatch.setattr(job_health, "status_of_history", lambda *_, limits, **__: given.update(limits=limits))
    monkeypatch.setattr(job_health, "read_history", lambda *_: None)
    registered = RegisteredJob(job=StatefulJob("refusing"), cron="*/30 * * * *")
    job_health.status_of(DagsterJob(registered=registered, settings=Settings(), options=options))
    assert given["limits"].lag == timedelta(hours=hours)
