"""Where rows are read, routed and run: one table of the policy, and the session carries its limits."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from state_engine.sources.rows import DriverRows, SparkRows, rows_of
from state_engine.spark.engine_session import EngineSession
from state_engine.spark.no_spark import NO_SPARK
from state_engine.spark.placement import NO_LIMITS, USUAL, Limits, Placement, limits_of, placement_of

SMALL = Limits(stored_bytes=100, rows=10, held_bytes=1_000, readers=3)
MANY = 10**12
CASES: list[tuple[str, dict[str, Any], Placement]] = [
    ("nothing", {}, Placement.DRIVER),
    ("files up to the limit", {"stored_bytes": 100}, Placement.DRIVER),
    ("larger files", {"stored_bytes": 101}, Placement.SHUFFLE),
    ("rows up to the limit", {"rows": 10, "held_bytes": 1_000}, Placement.DRIVER),
    ("more rows", {"rows": 11}, Placement.SHUFFLE),
    ("wider rows", {"rows": 10, "held_bytes": 1_001}, Placement.SHUFFLE),
    ("few rows that Spark has", {"rows": 1, "held": False}, Placement.SHUFFLE),
    ("few subtasks read for themselves", {"rows": 11, "readable": True, "subtasks": 3}, Placement.READERS),
    ("more subtasks do not", {"rows": 11, "readable": True, "subtasks": 4}, Placement.SHUFFLE),
    ("nor what costs to read again", {"rows": 11, "subtasks": 3}, Placement.SHUFFLE),
    ("the driver before readers", {"rows": 10, "readable": True, "subtasks": 3}, Placement.DRIVER),
]


@pytest.mark.parametrize(("facts", "place"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_policy(facts: dict[str, Any], place: Placement) -> None:
    assert placement_of(SMALL, **facts) is place
    assert placement_of(NO_LIMITS, **facts | {"held": True}) is Placement.DRIVER


@pytest.mark.parametrize(
    ("total", "cores", "of_a_task"),
    [(0, 2, 2**22), (2**24, 2, 2**23), (2**24 + 1, 2, 2**23 + 1), (MANY, 2, 2**27)],
)
def test_what_a_task_reads(total: int, cores: int, of_a_task: int) -> None:
    assert USUAL.bytes_of_a_task(total, cores) == of_a_task


def test_the_session_carries_the_limits(spark: SparkSession) -> None:
    user, usual = spark.newSession(), spark.newSession()
    own = EngineSession(user)
    assert limits_of(own) is USUAL
    vars(user)["limits"] = SMALL
    assert limits_of(own) is limits_of(own.newSession()) is SMALL
    own.renew()
    assert limits_of(own) is limits_of(EngineSession(own)) is SMALL
    assert limits_of(usual) is limits_of(EngineSession(usual)) is USUAL
    assert limits_of(NO_SPARK) is NO_LIMITS
    few, many = pa.table({"n": range(10)}), pa.table({"n": range(11)})
    assert isinstance(rows_of(few, own), DriverRows)
    assert isinstance(rows_of(many, own), SparkRows)
    assert isinstance(rows_of(many, usual), DriverRows)
