"""Settings: file under environment, origins, masks, and errors that name the key."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from state_engine.core.errors import SettingsError
from state_engine.machine.settings import MASK, LoadedSettings, load, load_settings


def loaded(tmp_path: Path, toml: str | None = None, **environ: str) -> LoadedSettings:
    if toml is not None:
        (tmp_path / "statelake.toml").write_text(toml)
    return load(environ=environ, directory=tmp_path)


def shown(result: LoadedSettings) -> dict[str, tuple[str, str]]:
    return {row.key: (row.value, row.origin) for row in result.rows()}


def test_without_file_and_variables_everything_is_default(tmp_path: Path) -> None:
    result = loaded(tmp_path)
    assert result.settings.root == str(tmp_path / ".statelake/state")
    assert result.settings.spark.master == "local[*]"
    assert result.settings.jobs.modules == []
    assert {origin for _, origin in shown(result).values()} == {"default"}


def test_the_environment_wins_over_the_file_and_both_are_named(tmp_path: Path) -> None:
    toml = 'root = "s3a://bucket/state"\n[spark]\nmaster = "local[2]"\ndriver_memory = "1g"\n'
    result = loaded(tmp_path, toml, STATELAKE__SPARK__MASTER="local[7]")
    rows = shown(result)
    file = str(tmp_path / "statelake.toml")
    assert rows["root"] == ("s3a://bucket/state", file)
    assert rows["spark.driver_memory"] == ("1g", file)
    assert rows["spark.master"] == ("local[7]", "$STATELAKE__SPARK__MASTER")
    assert rows["spark.jars_dir"] == ("not set", "default")


def test_a_relative_root_is_below_its_file_and_otherwise_below_the_directory(tmp_path: Path) -> None:
    elsewhere = tmp_path / "etc"
    elsewhere.mkdir()
    (elsewhere / "prod.toml").write_text('root = "state"\n')
    environ = {"STATELAKE_CONFIG": "etc/prod.toml"}
    assert load(environ=environ, directory=tmp_path).settings.root == str(elsewhere / "state")
    environ["STATELAKE__ROOT"] = "other"
    assert load(environ=environ, directory=tmp_path).settings.root == str(tmp_path / "other")


def test_spark_options_keep_their_names_however_they_are_written(tmp_path: Path) -> None:
    toml = (
        '[spark.options]\n"spark.sql.ansi.enabled" = true\nspark.sql.shuffle.partitions = 3\n'
        '"spark.executor.cores" = 2\n'
    )
    result = loaded(
        tmp_path,
        toml,
        STATELAKE__SPARK__OPTIONS='{"spark.executor.memoryOverhead": "1g"}',
        **{"STATELAKE__SPARK__OPTIONS__spark.executor.cores": "5"},
    )
    assert result.settings.spark.options == {
        "spark.sql.ansi.enabled": "true",
        "spark.sql.shuffle.partitions": "3",
        "spark.executor.cores": "5",
        "spark.executor.memoryOverhead": "1g",
    }
    assert shown(result)["spark.options.spark.executor.cores"][1].startswith("$")
    assert shown(result)["spark.options.spark.sql.shuffle.partitions"][1].endswith("statelake.toml")


def test_job_parameters_have_types_and_modules_may_be_a_list(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        "[jobs.parameters.plane_delays]\nminimum = 3\n",
        STATELAKE__JOBS__MODULES="jobs, mine.jobs",
        STATELAKE__JOBS__PARAMETERS__PLANE_DELAYS__RATIO="0.5",
        STATELAKE__JOBS__PARAMETERS__PLANE_DELAYS__NAME="text",
    ).settings
    assert settings.jobs.modules == ["jobs", "mine.jobs"]
    assert settings.jobs.parameters == {"plane_delays": {"minimum": 3, "ratio": 0.5, "name": "text"}}


SECRETS = """
[spark.options]
"spark.hadoop.fs.s3a.secret.key" = "hunter2"
"spark.hadoop.auth.TOKEN" = "hunter2"
"spark.ssl.keyPassword" = "hunter2"
"spark.app.note" = "visible"
[jobs.parameters.a]
api_token = "hunter2"
limit = 5
"""


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    result = loaded(tmp_path, SECRETS)
    assert "hunter2" not in str(result.rows())
    rows = shown(result)
    assert rows["spark.options.spark.app.note"][0] == "visible"
    assert rows["jobs.parameters.a.limit"][0] == "5"
    assert sum(value == MASK for value, _ in rows.values()) == 4


def test_an_error_does_not_repeat_a_secret(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, '[storage]\nendpoint = "https://me:hunter2@store"\n')
    assert "storage.endpoint" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("toml", "key", "nearest"),
    [
        ('roots = "x"', "roots", "root"),
        ('[spark]\nmastr = "x"', "spark.mastr", "spark.master"),
        ('[sprak]\nmaster = "x"', "sprak", "spark"),
        ('driver_memory = "1g"', "driver_memory", "spark.driver_memory"),
    ],
)
def test_an_unknown_key_names_the_nearest_valid_one(
    tmp_path: Path, toml: str, key: str, nearest: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, toml)
    assert f"no setting '{key}': did you mean '{nearest}'?" in str(caught.value)
    assert "statelake.toml" in str(caught.value)


def test_an_unknown_variable_is_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"\$STATELAKE__SPARK__DRIVERMEMORY.*spark\.driver_memory"):
        loaded(tmp_path, STATELAKE__SPARK__DRIVERMEMORY="1g")


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ("[spark]\nmaster = 5", "spark.master"),
        ('[spark]\ndriver_memory = "lots"', "spark.driver_memory"),
        ("spark = 5", "spark"),
        ("root = ", "TOML"),
    ],
)
def test_a_wrong_value_names_file_and_key(tmp_path: Path, toml: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, toml)
    assert "statelake.toml" in str(caught.value)
    assert expected in str(caught.value)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="STATELAKE_CONFIG names"):
        loaded(tmp_path, STATELAKE_CONFIG="missing.toml")


def test_load_settings_takes_the_directory_and_environment_it_is_given(tmp_path: Path) -> None:
    settings = load_settings(environ={"STATELAKE__ROOT": "here"}, directory=tmp_path)
    assert settings.root == str(tmp_path / "here")


@pytest.mark.parametrize(
    "content",
    [
        b"root = " + b"[" * 5000 + b"]" * 5000,
        b"[" + b".".join([b"a"] * 5000) + b"]\nb = 1\n",
        b"[jobs.parameters." + b".".join([b"a"] * 3000) + b"]\nb = 1\n",
        b"root = 'caf\xe9'",
        b"\xff\xfe\x00",
        b"root = 1" + b"0" * 6000,
        b"root = 1\nroot = 2",
        b"spark = 3",
        b"[spark]\noptions = [1]",
        b"[storage]\nendpoint = 9e999",
        b"[local_copies]\nmax_size = -1",
        b"[jobs]\nmodules = {a = 1}",
    ],
    ids=itertools.count(),
)
def test_whatever_stands_in_the_file_is_an_error_of_settings(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "statelake.toml").write_bytes(content)
    with pytest.raises(SettingsError):
        load(environ={}, directory=tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("JOBS__PARAMETERS", "[" * 100_000),
        ("__".join(["JOBS"] * 2000), "1"),
        ("SPARK__OPTIONS", "[1, 2]"),
        ("STORAGE", "[]"),
        ("LOGGING__LEVEL", "1" * 5000),
    ],
    ids=itertools.count(),
)
def test_whatever_stands_in_a_variable_is_an_error_of_settings(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(SettingsError):
        load(environ={f"STATELAKE__{name}": text}, directory=tmp_path)
