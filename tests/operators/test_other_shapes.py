"""An operator whose declaration means its stored state otherwise is refused before it misreads, and both are named."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from state_engine import (
    CountTumblingWindowAssigner,
    FileSource,
    ProcessWindowFunction,
    Session,
    Sliding,
    StatefulJob,
    Tumbling,
    count,
)
from state_engine.core.errors import StateMigrationError
from state_engine.testing import CollectSink, run_in_memory

ROW = "k string, s string, v bigint, at timestamp"
GIVEN = {"left": [("a", "x", 1, datetime(1970, 1, 1, tzinfo=UTC))]}
Use = Callable[[Any, Any], Any]
"""An operator of a keyed stream with a row, and of another one where it asks for it."""


def use(method: str, *given: Any, **asked: Any) -> Use:
    return lambda left, _: getattr(left, method)(*given, **asked, uid="it")


def join(method: str = "join", **asked: Any) -> Use:
    return lambda left, right: getattr(left, method)(right(), **asked, uid="it")


def counted(windows: Any, **asked: Any) -> Use:
    return lambda left, _: left.window(windows, **asked).aggregate(n=count(), uid="it")


def once(**asked: Any) -> Use:
    return use("drop_duplicates", **asked)


def more(one: Any, other: Any) -> Any:
    return max(one, other, key=lambda row: row.v)


class Listed(ProcessWindowFunction):
    """Needs all rows of a window."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield len(list(elements))


SCD2, FUNNEL = partial(use, "scd2", valid_from="at"), partial(use, "sequence", "a", "b", by="s")
LAST: dict[str, Any] = {"keep": "last", "sequence": "v"}
NEAR: dict[str, Any] = {"within": (-3, 5)}
CASES: dict[str, tuple[Use, list[Use], str]] = {
    "first": (once(within=5), [once(within=6), once(within=5, emit="final"), once(within=5, lateness=3)], ""),
    "all": (once(), [once(keep="last")], ""),
    "last": (once(**LAST), [once(**(LAST | {"sequence": "at"}))], ""),
    "silence": (
        use("silent", after="1 h"),
        [use("silent", after="2 h"), use("silent", after="1 h", lateness="1 min")],
        "",
    ),
    "over": (use("over", n=count(last="1 h")), [use("over", n=count(last="2 h"))], r"over rows last \[3600000\]"),
    "sequence": (FUNNEL(within=10), [FUNNEL(within=20)], r"sequence \['a', 'b'\] by s within 10 "),
    "versions": (SCD2(), [SCD2(untracked="last", tracked=["s"]), SCD2(lateness=5)], "versions of rows"),
    "interval join": (
        join(**NEAR),
        [join(**NEAR | other) for other in ({"within": (-3, 6)}, {"how": "left"}, {"lateness": 3})],
        "'interval join -3 to 5, inner, lateness 0'",
    ),
    "regular join": (join(), [join(how="left"), join(within="1 h")], "'regular join, inner'"),
    "as-of join": (
        join("join_asof"),
        [join("join_asof", **other) for other in ({"tolerance": 5}, {"emit": "at_once"}, {"lateness": 1})],
        "'as-of join, any age, final, lateness 0'",
    ),
    "size": (
        counted(Tumbling(10)), [counted(Tumbling(20))], r"'tumbling 10 \+0 UTC final lateness 0', and 'tumbling 20 "
    ),
    "longer lateness": (
        counted(Tumbling(10)), [counted(Tumbling(10), lateness=5)], "final lateness 0', and .*final lateness 5'"
    ),
    "shorter lateness": (
        counted(Sliding(10, every=5), lateness=5), [counted(Sliding(10, every=5))],
        "final lateness 5', and .*final lateness 0'",
    ),
    "emission": (
        counted(Session(6), lateness=5), [counted(Session(6), lateness=5, emit="changes")],
        "session 6 final lateness 5', and 'session 6 changes lateness 5'",
    ),
}  # fmt: skip
WINDOWED: dict[str, Callable[[Any], Any]] = {
    "time": lambda keyed: keyed.window(Tumbling(10)),
    "count": lambda keyed: keyed.window(CountTumblingWindowAssigner.of(5)),
    "count and ttl": lambda keyed: keyed.count_window(5, ttl="1 h"),
}


def kept(windowed: Callable[[Any], Any], method: str, *given: Any, **asked: Any) -> Use:
    return lambda left, _: use(method, *given, **asked)(windowed(left), None)


for name, windowed in WINDOWED.items():  # a window that kept something else is not read as if it had all
    CASES[f"what windows of {name} keep"] = (
        kept(windowed, "aggregate", n=count()),
        [kept(windowed, "process", Listed(), int), kept(windowed, "reduce", more)],
        "",
    )
    CASES[f"the best of windows of {name}"] = (
        kept(windowed, "top_n", 1, by="v"),
        [kept(windowed, "top_n", 2, by="v"), kept(windowed, "top_n", 1, by="v", ascending=True)],
        "",
    )


def job_of(build: Use) -> StatefulJob:
    job = StatefulJob("changed")

    def keyed(name: str) -> Any:
        return job.source(name, FileSource(f"/{name}", schema=ROW), event_time="at").key_by("k")

    build(keyed("left"), lambda: keyed("right")).sink("out", CollectSink())
    return job


@pytest.mark.parametrize(("before", "others", "shapes"), CASES.values(), ids=CASES)
def test_state_of_another_shape_is_refused(before: Use, others: list[Use], shapes: str) -> None:
    with run_in_memory(job_of(before)) as run:
        run.process(GIVEN)
        for after in others:
            run.restart(job_of(after))
            with pytest.raises(
                StateMigrationError, match=f"was written by .*{shapes}.*misread it.*another uid"
            ):
                run.process(GIVEN)
