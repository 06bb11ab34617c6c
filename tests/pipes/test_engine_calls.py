"""What goes to a launched process and comes back is the same on the other side, and nothing but JSON on its way."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from state_engine.core.checkpoints.checkpoint import DataFile, StagedSink
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.errors import (
    ConfigurationError,
    InvariantError,
    MissingPackageError,
    PartitionOrderError,
    StatelakeError,
    StorageError,
    UserFunctionError,
    from_wire,
    to_wire,
)
from state_engine.microbatch.reports import BatchReport, CompactionReport, OperatorReport, RunReport
from state_engine.microbatch.subtask.subtask_spec import SubtaskReport
from state_engine.operations.head_operations import RestoreReport
from state_engine.pipes import reporting, run_for_dagster
from state_engine.pipes.engine_calls import EngineCall, Message
from state_engine.pipes.reporting import launched_run
from state_engine.replay.backfill import BackfillReport
from state_engine.state_tables.base import TableReport

OPERATOR = OperatorReport(
    "sums", 3, 2, 1, 2, 4, 512, {7: 3}, {"event_time": 9}, {}, {"v_total": None},
    [SubtaskReport(0, rows_in=1), SubtaskReport(1, rows_in=2)],
)  # fmt: skip
TABLE = TableReport("balance", "delta_state", "file:///data/balance", 3, 1)
BATCH = BatchReport(
    3, 5, 1, {"out": 2}, 1024, {"sums": OPERATOR}, 1.25, {"plan": 0.1}, 4, "2013-03-08", 2, tables=[TABLE]
)  # fmt: skip
RUN = RunReport(
    "sums", [], False, [1, 2], [CompactionReport(2, 4, {"sums": 1}, {}, {})], ["a.csv"], {"x": "/x"}
)
SINK = StagedSink("out", "delta", "file:/out", "id", "k string", [DataFile("a.parquet", 9, 2, 0)])
MOVE = RestoreReport(CheckpointKind.PROMOTE, 7, 3, [2, 3], [SINK], 8)
BACKFILL = BackfillReport(
    "sums", "stop", "b", None, ["d1"], [], {"d1": 2}, ["d2"], [], MOVE, {"out": 1}, {"out": 2}
)


def travelled(thing: Any) -> Any:
    return json.loads(json.dumps(thing))


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (Message.of_batch(BATCH), Message(batch=BATCH)),
        (Message.of_end(RUN), Message(ran=RUN)),
        (Message.of_end(BACKFILL), Message(backfilled=BACKFILL)),
    ],
)
def test_reports_arrive_as_they_were(sent: Message, received: Message) -> None:
    assert Message.from_payload(travelled(sent.to_payload())) == received


def test_files_of_subtasks_and_batches_of_the_end_stay_there() -> None:
    long = SubtaskReport(0, rows_in=1, changelog=[DataFile("x", 1, 1, 0)] * 10_000)
    wide = OperatorReport.of("sums", [long])
    batch = BatchReport(1, 1, 0, {}, 1, {"sums": wide}, 1.0, {}, 1)
    assert len(json.dumps(Message.of_batch(batch).to_payload())) < 2_000
    ended = Message.of_end(RunReport("sums", [batch] * 100, True, [])).ran
    assert ended is not None
    assert ended.batches == []


@pytest.mark.parametrize(
    "error",
    [
        UserFunctionError(
            job="sums", operator="sums", cause="TypeError: no", key="k", traceback_text="line 1"
        ),
        InvariantError("it would break", ["contiguous: a gap"]),
        StorageError("the disk is full", path="/x"),
        PartitionOrderError("run 2013-03-08 first"),
        MissingPackageError("install it"),
    ],
)
def test_errors_arrive_with_class_text_and_details(error: StatelakeError) -> None:
    message = Message.from_payload(travelled(Message(failure=to_wire(error)).to_payload()))
    assert message is not None
    assert message.failure is not None
    again = from_wire(message.failure)
    assert (type(again), str(again)) == (type(error), str(error))
    assert {k: list(v) if isinstance(v, tuple) else v for k, v in vars(error).items()} == vars(again)


def test_a_call_arrives_as_it_was_and_others_are_left_alone() -> None:
    call = EngineCall(
        job="sums", method="backfill", arguments={"start": "d1", "parameters": {"a": "b"}, "end": None}
    )
    assert EngineCall.from_extras(travelled({"other": 1, **call.to_extras()})) == call
    assert EngineCall.from_extras({"other": 1}) is None
    for payload in ("text", None, {"rows": 1}, [1]):
        assert Message.from_payload(payload) is None


@pytest.mark.parametrize("given", [{"format": 1, "job": "a"}, {"job": "a"}, 7])
def test_another_version_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="the same version of statelake"):
        EngineCall.from_extras({"statelake": given})
    with pytest.raises(ConfigurationError, match="the same version of statelake"):
        Message.from_payload({"statelake": given})


def test_no_other_method_can_be_called() -> None:
    other: Any = "vacuum"
    with pytest.raises(ConfigurationError, match="method"):
        EngineCall.from_extras(EngineCall(job="sums", method=other).to_extras())


def test_a_process_that_nobody_launched_hears_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"no run of Dagster launched this process.*`statelake run`"):
        run_for_dagster([])


def test_a_launched_process_without_pipes_does_not_run_unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "find_spec", lambda name: None)
    with launched_run() as launched:
        assert launched is None
    monkeypatch.setenv("DAGSTER_PIPES_CONTEXT", "given")
    with pytest.raises(MissingPackageError, match=r'pip install "statelake\[pipes\]"'), launched_run():
        pass


def test_the_launched_side_imports_no_dagster() -> None:
    code = "import state_engine.pipes, dagster_pipes, sys; print('dagster' in sys.modules, 'pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "False"
