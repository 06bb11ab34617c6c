"""The guide to clusters: what it shows runs, and the application for Kubernetes is what its operator takes."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from state_engine.core.errors import ConfigurationError, InvalidNameError
from state_engine.machine.settings import Settings
from state_engine.spark.kubernetes import spark_application
from state_engine.spark.session import needed_options
from tests.support.guides import GUIDES, code_blocks

GUIDE = GUIDES / "clusters.md"
QUANTITY = re.compile(r"^\d+[kmgt]$")


def rendered() -> dict[str, Any]:
    """The application that the guide makes."""
    (block,) = (b for b in code_blocks(GUIDE, "python") if "spark_application" in b)
    names: dict[str, Any] = {"print": lambda _: None}
    exec(block, names)
    application: dict[str, Any] = yaml.safe_load(names["text"])
    return application


def test_an_application_has_what_the_operator_asks_for() -> None:
    """The fields and their types are those of ``sparkoperator.k8s.io/v1beta2``."""
    application = rendered()
    assert application["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
    assert application["kind"] == "SparkApplication"
    assert application["metadata"] == {"name": "sums", "namespace": "default"}
    spec = application["spec"]
    assert set(spec) == {
        "type", "pythonVersion", "mode", "image", "mainApplicationFile", "sparkVersion", "restartPolicy", "sparkConf",
        "driver", "executor",
    }  # fmt: skip
    assert (spec["type"], spec["mode"], spec["pythonVersion"]) == ("Python", "cluster", "3")
    assert spec["mainApplicationFile"] == "local:///opt/jobs/main.py"
    assert spec["restartPolicy"] == {"type": "Never"}
    assert spec["executor"]["instances"] == 4
    for part in (spec["driver"], spec["executor"]):
        assert isinstance(part["cores"], int)
        assert QUANTITY.match(part["memory"])
        assert part["env"] == [{"name": "PYSPARK_PYTHON", "value": "/usr/bin/python3"}]
        assert part["envFrom"] == [{"secretRef": {"name": "lake-keys"}}]
    assert spec["driver"]["serviceAccount"] == "spark"


def test_an_application_has_the_options_of_a_session_as_texts() -> None:
    options = rendered()["spec"]["sparkConf"]
    assert all(isinstance(value, str) for value in options.values())
    assert needed_options().items() <= options.items()
    assert options["spark.kubernetes.allocation.batch.size"] == "4"


def test_no_text_leads_out_of_its_place() -> None:
    strange = 'a"b\n  type: Never\n#: {x}'
    text = spark_application("my_job", image=strange, main="local:///m.py", options={"spark.x": strange})
    spec = yaml.safe_load(text)["spec"]
    assert spec["image"] == spec["sparkConf"]["spark.x"] == strange
    assert yaml.safe_load(text)["metadata"]["name"] == "my-job"
    assert "envFrom" not in spec["driver"]


def test_what_cannot_be_an_application_is_refused() -> None:
    with pytest.raises(InvalidNameError):
        spark_application("My Job", image="i", main="m")
    with pytest.raises(ConfigurationError, match="at least 1"):
        spark_application("sums", image="i", main="m", executors=0)


def test_settings_of_the_guide_are_settings() -> None:
    for text in code_blocks(GUIDE, "toml"):
        assert Settings(**tomllib.loads(text)).spark.options["spark.pyspark.python"]


def test_the_session_of_the_guide_is_one_that_the_engine_takes(spark: SparkSession) -> None:
    from state_engine.spark.session import check_session

    (block,) = (b for b in code_blocks(GUIDE, "python") if "def session" in b)
    names: dict[str, Any] = {}
    exec(block, names)
    made = names["session"](spark.sparkContext.master)
    assert made.sparkContext is spark.sparkContext
    check_session(made)
