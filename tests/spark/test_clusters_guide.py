"""The guide to clusters: what it shows runs, and the application for Kubernetes is what its operator takes."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pyspark
import yaml
from pyspark.sql import SparkSession

from state_engine.machine.settings import Settings
from state_engine.spark.session import needed_options
from tests.support.guides import GUIDES, code_blocks

GUIDE = GUIDES / "clusters.md"
QUANTITY = re.compile(r"^\d+[kmgt]$")


def test_the_application_has_what_the_operator_and_a_session_ask_for() -> None:
    """The fields and their types are those of ``sparkoperator.k8s.io/v1beta2``."""
    (block,) = code_blocks(GUIDE, "yaml")
    application = yaml.safe_load(block)
    assert (application["apiVersion"], application["kind"]) == (
        "sparkoperator.k8s.io/v1beta2",
        "SparkApplication",
    )
    spec = application["spec"]
    assert set(spec) == {
        "type", "pythonVersion", "mode", "image", "mainApplicationFile", "sparkVersion", "restartPolicy", "sparkConf",
        "driver", "executor",
    }  # fmt: skip
    assert spec["sparkVersion"] == pyspark.__version__
    assert spec["restartPolicy"] == {"type": "Never"}
    assert all(isinstance(value, str) for value in spec["sparkConf"].values())
    assert needed_options().items() <= spec["sparkConf"].items()
    assert spec["executor"]["instances"] == 4
    for part in (spec["driver"], spec["executor"]):
        assert isinstance(part["cores"], int)
        assert QUANTITY.match(part["memory"])
        assert part["env"] == [{"name": "PYSPARK_PYTHON", "value": spec["sparkConf"]["spark.pyspark.python"]}]
        assert part["envFrom"] == [{"secretRef": {"name": "lake-keys"}}]


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
