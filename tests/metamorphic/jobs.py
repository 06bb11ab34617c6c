"""The jobs of the suite in one table, each with rows for its sources: all of ``jobs``, ``examples`` and
the templates, and small ones that have each operator, kind of state, source and sink between them.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from importlib.util import module_from_spec, spec_from_file_location
from itertools import accumulate, chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark import cloudpickle

from examples import broadcast_rules, columns, word_count
from jobs import count_window_average, daily_delays, flights
from state_engine import (
    ChangeFormat,
    DeltaSink,
    DeltaSource,
    DeltaStateTable,
    FileSink,
    FileSource,
    ForeachBatchSink,
    OutputTag,
    PythonDataSource,
    RowKind,
    Session,
    Sliding,
    SqlSink,
    SqlStateTable,
    StatefulJob,
    Tumbling,
    Types,
    avg,
    count,
    max_,
    min_,
    sum_,
)
from state_engine.cli import init
from tests.faults.workloads import Kept, RowsAsJson
from tests.kafka.topics import Topics
from tests.metamorphic import operators
from tests.metamorphic.functions import (
    HOUR_MS,
    JOIN_MS,
    Hours,
    Judged,
    Lines,
    Lists,
    Paid,
    Raw,
    Reminds,
    Running,
    Types_,
    UpTo,
    by_zone,
    running_sum,
)
from tests.microbatch.ttl_jobs import OPERATIONS, SEEN, Keeps, TtlSettings
from tests.support.changes import TOTAL, Totals, applied, totals_of
from tests.support.changes import history as changes_of
from tests.support.postgres import PASSWORD_ENV

Values = dict[str, Any]
Rows = dict[str, list[Values]]
"""By source, in the order of their time."""
START = datetime(2026, 1, 5, 9, tzinfo=UTC)
GAP = timedelta(minutes=4)
BOUND, SHORT_BOUND = timedelta(minutes=1), timedelta(milliseconds=20)
"""How late rows come; the second one beside times to live of ``TTL_MS``."""
EVENT = "at timestamp, k string, what string, n bigint"
TIMED: dict[str, Any] = {"event_time": "at", "max_out_of_orderness": BOUND}
SPAN = timedelta(minutes=70)
SERVER = "database"
"""File of a directory with the URL of a server's database."""
DEFAULT = "default"
"""The clean-up of expired entries that an engine has by itself."""


@dataclass(frozen=True)
class Case:
    """A job, and the rows that come in.

    Attributes:
        build: the job in a directory, with a way to clean up what expired; a source reads ``in/<its name>``.
        rows: by source, made by chance.
        time: column that rows are sorted by. Empty: they come as they are made.
        bound: how far behind that rows come.
        any_arrival: whether another order of arrival within the bound gives the same.
        in_order: the job asks for an order across its sources that files may break: its rows come in it.
        first: sources whose rows are all there before the others'.
        by_arrival: states that depend on the order of arrival while rows come.
        left_by_arrival: states that do so in the end, too: what nobody reads any more goes as its key has a row.
        by_cut: sinks that depend on cuts, as the guide says, and why.
        cut: whether the rows may come in several steps.
        start: the first clock; the last one is ``days`` later.
        span: so long rows come by the clock, which stands for each step as far behind the step before; None: the clock
            stands while rows come.
        outages: sources that may be down while rows come; what they owe comes afterwards.
        parallelism: of all runs; None: of each another.
        topics: those of a broker that the job reads and writes.
        partitions: of the topics that it reads; the records of a key are in one.
        plainly: what its tables hold in the end, by a plain program over the rows; tables that it leaves out may hold
            anything.
    """

    build: Callable[[Path, str], StatefulJob]
    rows: Callable[[random.Random], Rows]
    time: str = "at"
    bound: timedelta = BOUND
    any_arrival: bool = False
    by_arrival: tuple[str, ...] = ()
    left_by_arrival: tuple[str, ...] = ()
    in_order: bool = False
    first: tuple[str, ...] = ()
    by_cut: Mapping[str, str] = field(default_factory=dict)
    cut: bool = True
    start: datetime = START
    days: int = 3
    drain: bool = True
    span: timedelta | None = None
    outages: tuple[str, ...] = ()
    parallelism: int | None = None
    topics: Topics | None = None
    partitions: int = 1
    plainly: Callable[[Rows], Mapping[str, list[Values]]] = lambda rows: {}


def arrivals(case: Case, rows: Rows, rng: random.Random) -> Rows:
    """The rows in an order of arrival that is within the bound."""
    if not case.time or case.in_order:
        return rows
    late_s = case.bound.total_seconds()
    return {
        name: sorted(of_source, key=lambda row: row[case.time] + timedelta(seconds=rng.uniform(0, late_s)))
        for name, of_source in rows.items()
    }


# -- rows --------------------------------------------------------------------------------------------------------------


def events(rng: random.Random, steps_ms: tuple[int, ...] = (1_000, 9_000, 50_000)) -> list[Values]:
    """Rows of ``EVENT``, each at a time of its own."""
    at, made = START, []
    for _ in range(40):
        at += timedelta(milliseconds=rng.choice(steps_ms))
        made.append(
            {"at": at, "k": rng.choice("abcd"), "what": rng.choice(OPERATIONS), "n": rng.randrange(20)}
        )
    return made


def of_events(*sources: str, **options: Any) -> Callable[[random.Random], Rows]:
    return lambda rng: {name: events(rng, **options) for name in sources or ("events",)}


def quiet_events(*sources: str, steps_s: tuple[int, ...]) -> Callable[[random.Random], Rows]:
    """Rows of ``EVENT`` for ``SPAN``, with long gaps; the last one of each source comes at its end."""

    def rows(rng: random.Random) -> Rows:
        made: Rows = {}
        for source in sources:
            seconds = list(accumulate(rng.choices(steps_s, k=200)))
            times = [START + timedelta(seconds=s) for s in seconds if s < SPAN.total_seconds() - 60] + [
                START + SPAN
            ]
            made[source] = [
                {"at": at, "k": rng.choice("abcd"), "what": source, "n": rng.randrange(20)} for at in times
            ]
        return made

    return rows


def accounts(rng: random.Random) -> Rows:
    """What is done to a table: an update has the row before it, too."""
    names = ("id", "owner", "amount")
    changes = changes_of(rng.randrange(10**6), 30)
    return {"accounts": [{"kind": kind.name, **dict(zip(names, row, strict=True))} for kind, row in changes]}


def typed(rng: random.Random) -> Rows:
    far = [
        date(1, 1, 1),
        date(1500, 2, 28),
        date(1582, 10, 10),
        date(1883, 11, 18),
        date(2026, 3, 29),
        date(9999, 12, 31),
    ]
    made = []
    for n in range(24):
        day = rng.choice(far)
        at = datetime(max(day.year, 2), 7, 1, 12, tzinfo=UTC) + timedelta(microseconds=rng.randrange(10**9))
        price = Decimal(rng.randrange(-(10**20), 10**20)).scaleb(-6)
        made.append(
            {"k": rng.choice("ab"), "day": day, "at": at, "price": price, "raw": rng.randbytes(3), "seq": n}
        )
    return {"items": made}


def versions(rng: random.Random) -> Rows:
    made = []
    for lsn in range(30):
        changed = START + timedelta(seconds=lsn // 2)
        op = rng.choice("iuuud")
        made.append(
            {"op": op, "id": rng.choice("xyz"), "city": rng.choice("ABC"), "changed": changed, "lsn": lsn}
        )
    return {"customers": made}


def orders_again(rng: random.Random) -> Rows:
    seconds = rng.sample(range(120), 40)
    days = [START + rng.randrange(2) * timedelta(days=1) + timedelta(seconds=n) for n in seconds]
    return {"orders": [{"id": rng.choice("ab"), "at": at, "cents": n} for n, at in enumerate(sorted(days))]}


def clicks(rng: random.Random) -> Rows:
    minutes = [rng.choice([1, 8]) * n for n in range(40)]
    return {
        "clicks": [
            {"user": rng.choice(["ann", "bob"]), "at": START + timedelta(minutes=m), "page": "/"}
            for m in sorted(minutes)
        ]
    }


def payments(rng: random.Random) -> Rows:
    return {
        "payments": [
            {
                "id": n,
                "account": rng.choice("ab"),
                "cents": rng.randrange(-80, 100),
                "at": START + timedelta(seconds=n // 2),
            }
            for n in range(40)
        ]
    }


def scores(rng: random.Random) -> Rows:
    points = rng.sample(range(100), 40)
    return {"scores": [row | {"points": p} for row, p in zip(events(rng), points, strict=True)]}


def sales(rng: random.Random) -> Rows:
    return {"sales": [{"shop": rng.choice("abc"), "cents": rng.randrange(900)} for _ in range(30)]}


def lines(rng: random.Random) -> Rows:
    return {"lines": [{"text": " ".join(rng.choices(["to", "be", "or", "not"], k=3))} for _ in range(12)]}


def judged_payments(rng: random.Random) -> Rows:
    of = {"customer": "abc", "country": ["NO", "SE"]}
    made = [
        {"id": n, **{c: rng.choice(v) for c, v in of.items()}, "amount": rng.randrange(200)}
        for n in range(20)
    ]
    return {
        "payments": made,
        "rules": [{"country": c, "limit": rng.randrange(150)} for c in ("NO", "SE", "NO")],
    }


def pairs(rng: random.Random) -> Rows:
    return {"pairs": [{"key": rng.randrange(3), "value": rng.randrange(9)} for _ in range(25)]}


def departures(rng: random.Random) -> Rows:
    """Made-up rows of the feed; the flights that left are in the order of their departure."""
    made, hour = [], datetime(2013, 1, 1, 10, tzinfo=UTC)
    for n in range(60):
        hour += timedelta(hours=rng.choice((0, 0, 1, 3)))
        delay = rng.choice((None, -3, 0, 20, 40))
        made.append(
            {
                "time_hour": hour, "minute": n % 60, "dep_time": None if delay is None else 600, "dep_delay": delay,
                "arr_delay": None if delay is None else delay + rng.randrange(-5, 9), "carrier": "UA", "flight": n,
                "tailnum": rng.choice("abc"), "origin": rng.choice(["EWR", "JFK"]), "dest": "LAX",
            }
        )  # fmt: skip
    return {"flights": sorted(made, key=_departed)}


def _departed(row: Values) -> datetime:
    minutes = row["minute"] + (row["dep_delay"] or 0)
    return row["time_hour"] + timedelta(minutes=minutes)


# -- jobs --------------------------------------------------------------------------------------------------------------


def read(directory: Path, source: str, schema: str = EVENT, files: Any = "json") -> FileSource:
    return FileSource(str(directory / "in" / source), schema=schema, format=files)


def delta(directory: Path, name: str = "out", **options: Any) -> DeltaSink:
    return DeltaSink(str(directory / "out" / name), **options)


def database(directory: Path) -> dict[str, Any]:
    """The database of SQL sinks: the one that a file of the directory names, or else a file of SQLite."""
    out, server = directory / "out", directory / SERVER
    out.mkdir(parents=True, exist_ok=True)
    if server.exists():
        return {"url": server.read_text(), "password_env": PASSWORD_ENV}
    return {"url": f"sqlite:///{out / 'tables.db'}"}


def every_state(
    by_event_time: bool, on_read: bool, shows_expired: bool
) -> Callable[[Path, str], StatefulJob]:
    """All kinds of state, timers, expiry and refused rows; and a second operator behind."""

    def build(directory: Path, cleanup: str) -> StatefulJob:
        job = StatefulJob("every_state", on_error="dead_letter")
        timed = TIMED | {"max_out_of_orderness": SHORT_BOUND}
        source = job.source("events", read(directory, "events"), **timed)
        keeps = Keeps(TtlSettings(on_read, shows_expired, by_event_time, cleanup))
        seen = source.key_by("k").process(keeps, uid="keeps", output_type=SEEN)
        seen.sink("seen", delta(directory, "seen"))
        columns_ = "k string, n bigint, seen string"
        listed = seen.key_by("k").process(Lists(), uid="lists", output_type=columns_)
        listed.sink("listed", FileSink(str(directory / "out" / "listed")))
        return job

    return build


def hours(*order_by: str) -> Callable[[Path, str], StatefulJob]:
    """A union of two sources of different formats, in windows."""

    def build(directory: Path, cleanup: str) -> StatefulJob:
        job, late = StatefulJob("hours"), OutputTag("late", EVENT)
        timed = TIMED | {"late_to": late, "order_by": order_by}
        web = job.source("web", read(directory, "web", files="parquet"), **timed)
        shop = job.source("shop", read(directory, "shop", files="csv"), **timed)
        columns_ = "k string, at bigint, sum bigint"
        sums = web.union(shop).key_by("k").process(Hours(), uid="hours", output_type=columns_)
        sums.sink("sums", SqlSink(table="sums", **database(directory)))
        sums.get_side_output(late).sink("late", delta(directory, "late"))
        return job

    return build


def windows(directory: Path, cleanup: str) -> StatefulJob:
    """Sessions that change, slides that run along, and hours of sessions that have ended."""
    job = StatefulJob("windows")
    by_key = job.source("events", read(directory, "events"), **TIMED).key_by("k")
    sums: dict[str, Any] = {"rows": count(), "sum": sum_("n")}
    sessions = by_key.window(Session(GAP), lateness="10 min", emit="changes").aggregate(
        **sums, uid="sessions"
    )
    sessions.sink("sessions", delta(directory, "sessions", key=["k", "window_start"]))
    slides = by_key.window(Sliding("5 min", every="2 min"), emit="running").aggregate(**sums, uid="slides")
    slides.sink("slides", delta(directory, "slides", key=["k", "window_start"]))
    visits = by_key.window(Session(GAP), lateness="10 min").aggregate(n=count(), uid="visits")
    hours = visits.key_by("k").window(Tumbling("1 h")).aggregate(visits=count(), most=max_("n"), uid="hours")
    hours.sink("hours", FileSink(str(directory / "out" / "hours")))
    return job


def silent(**time: Any) -> Callable[[Path, str], StatefulJob]:
    """Two sources, of which one may be silent while the other is not; joined, and in windows of both."""

    def build(directory: Path, cleanup: str) -> StatefulJob:
        job = StatefulJob("silent")
        orders = job.source("orders", read(directory, "orders"), **TIMED, **time)
        paid = job.source("payments", read(directory, "payments", files="parquet"), **TIMED, **time)
        met = (
            orders.connect(paid)
            .key_by("k", "k")
            .process(Paid(), uid="paid", output_type="k string, ordered bigint, paid bigint")
        )
        met.sink("met", delta(directory, "met"))
        columns_ = "k string, at bigint, sum bigint"
        sums = orders.union(paid).key_by("k").process(Hours(), uid="hours", output_type=columns_)
        sums.sink("sums", FileSink(str(directory / "out" / "sums")))
        return job

    return build


def operators_of_two(directory: Path, cleanup: str) -> StatefulJob:
    job, timed = StatefulJob("operators"), TIMED | {"order_by": ["at"]}
    orders = job.source("orders", read(directory, "orders"), **timed)
    paid = job.source("payments", read(directory, "payments", files="parquet"), **timed)
    streams = operators.streams(orders, paid)
    for name, results in streams.items():
        results.sink(name, delta(directory, name))
    operators.best(streams["met"]).publish(DeltaStateTable(str(directory / "out" / "best")), name="best")
    return job


def joined(directory: Path, cleanup: str) -> StatefulJob:
    job = StatefulJob("joined")
    orders = job.source("orders", DeltaSource(str(directory / "in" / "orders")), **TIMED)
    paid = job.source("payments", read(directory, "payments", files="parquet"), **TIMED)
    both = orders.connect(paid).key_by("k", "k")
    met = both.process(Paid(), uid="paid", output_type="k string, ordered bigint, paid bigint")
    met.sink("met", delta(directory, "met"))
    met.publish_state("orders", DeltaStateTable(str(directory / "out" / "waiting"), deletion_vectors=False))
    return job


def from_delta(directory: Path, cleanup: str) -> StatefulJob:
    """What a Delta table gives, in the order in which it came there."""
    job = StatefulJob("from_delta")
    rows = job.source("events", DeltaSource(str(directory / "in" / "events")), **TIMED)
    columns_ = "k string, n bigint, seen string"
    named = rows.map(lambda row: (row.k, f"{row.what} {row.n}"), output_type=SEEN, uid="names")
    named.key_by("k").process(Lists(), uid="lists", output_type=columns_).sink(
        "listed", delta(directory, "listed")
    )
    return job


def reminded(directory: Path, cleanup: str) -> StatefulJob:
    job = StatefulJob("reminded")
    rows = job.source("events", read(directory, "events", files="parquet"))
    reminds = rows.key_by("k").process(
        Reminds(), uid="reminds", output_type="k string, what string, n bigint, at bigint"
    )
    reminds.sink("said", FileSink(str(directory / "out" / "said"), "csv"))
    return job


def ordered_broadcast(directory: Path, cleanup: str) -> StatefulJob:
    job = StatefulJob("ordered_broadcast")
    rows = job.source("events", read(directory, "events"), event_time="at")
    factors = job.source("factors", read(directory, "factors"), event_time="at")
    judged = rows.key_by("k").connect(factors.broadcast(Judged.FACTORS), ordered=True)
    sums = judged.process(Judged(), uid="judged", output_type="k string, what string, sum bigint")
    sums.sink("sums", delta(directory, "sums"))
    return job


def operator_state(directory: Path, cleanup: str) -> StatefulJob:
    job = StatefulJob("operator_state")
    rows = job.source("events", read(directory, "events", files="parquet"))
    rows.process(Kept(), uid="kept", output_type="k string, n bigint").sink(
        "kept_rows", delta(directory, "kept")
    )
    return job


def raw_state(*, of_subtask: bool) -> Callable[[Path, str], StatefulJob]:
    """A data source in Python, states in bytes, and a function as the sink."""

    def build(directory: Path, cleanup: str) -> StatefulJob:
        job, file = StatefulJob("raw_state"), directory / "in" / "events" / "rows.json"
        rows = job.source("events", PythonDataSource(Lines, {"file": str(file)}), **TIMED)
        kept = rows.key_by("k").process(
            Raw(of_subtask=of_subtask), uid="raw", output_type="k string, n bigint, sum bigint"
        )
        kept.sink("kept", ForeachBatchSink(RowsAsJson(directory / "out" / "kept"), name="as_json"))
        return job

    return build


def changed_table(directory: Path, cleanup: str) -> StatefulJob:
    """The change data feed of a table, summed up, in a table of last rows and one of another program."""
    job = StatefulJob("changed_table")
    source = DeltaSource(str(directory / "in" / "accounts"), changes=True, starting_version=0)
    totals = job.source("accounts", source).key_by("owner").process(Totals(), uid="totals", output_type=TOTAL)
    totals.sink("totals", delta(directory, "totals", key=["owner"]))
    totals.sink("totals_sql", SqlSink(table="totals", **database(directory), key=["owner"]))
    return job


def aggregates(directory: Path, cleanup: str) -> StatefulJob:
    """Declared aggregates over columns, a function over columns, and Flink's aggregations."""
    job = StatefulJob("aggregates")
    rows = job.source("events", read(directory, "events", files="parquet"))
    by_k = rows.key_by("k")
    declared = {"rows": count(), "sum": sum_("n"), "mean": avg("n"), "least": min_("n"), "last": max_("at")}
    by_k.aggregate(**declared, uid="declared").sink("declared", delta(directory, "declared"))
    by_k.process(Running(), uid="running", output_type="k string, sum bigint").sink(
        "running", delta(directory, "running")
    )
    by_k.max_by("n", uid="most").sink("most", FileSink(str(directory / "out" / "most")))
    total = by_k.map(
        lambda row: (row.k, row.n), output_type=Types.TUPLE([Types.STRING(), Types.LONG()]), uid="pairs"
    )
    summed = total.key_by(lambda pair: pair[0], key_type=Types.STRING()).reduce(
        lambda a, b: (a[0], a[1] + b[1]), uid="summed"
    )
    summed.sink("summed", SqlSink(table="summed", **database(directory)))
    return job


def zones(directory: Path, cleanup: str) -> StatefulJob:
    """DataFrame code that goes by options of a session, before a key and to a sink."""
    job = StatefulJob("zones")
    columns_ = "at timestamp, k string, what string, n bigint"
    rows = job.source("events", read(directory, "events", columns_, files="csv"), **TIMED).transform(by_zone)
    rows.sink("rows", delta(directory, "rows"))
    by_hour = rows.key_by("hour", "day").aggregate(
        rows=count(), sum=sum_("n"), texts=max_("text"), uid="by_hour"
    )
    by_hour.sink("by_hour", delta(directory, "by_hour", key=["hour", "day"]))
    return job


def types(files: str) -> Callable[[Path, str], StatefulJob]:
    def build(directory: Path, cleanup: str) -> StatefulJob:
        job = StatefulJob("types")
        schema = "k string, day date, at timestamp, price decimal(38,6), raw binary, seq bigint"
        rows = job.source("items", read(directory, "items", schema, files), order_by=["seq"])
        kept = "k string, day date, at timestamp, price decimal(38,6), raw binary"
        before = rows.key_by("k").process(Types_(), uid="types", output_type=kept)
        before.sink("before", delta(directory, "before"))
        before.sink("files", FileSink(str(directory / "out" / "files")))
        return job

    return build


def history(directory: Path, cleanup: str) -> StatefulJob:
    """A feed of changes as a table of versions, one of last rows, and counts that take back."""
    job = StatefulJob("history")
    schema = "op string, id string, city string, changed timestamp, lsn bigint"
    feed = ChangeFormat.columns(op="op", insert=["i"], update=["u"], delete=["d"], sequence="lsn")
    rows = job.source("customers", read(directory, "customers", schema), format=feed)
    rows.sink("latest", delta(directory, "latest", key=["id"], sequence=["lsn"]))
    rows.sink("latest_sql", SqlSink(table="latest", **database(directory), key=["id"], sequence=["lsn"]))
    versions_ = rows.key_by("id").scd2(valid_from="changed", uid="versions")
    table = SqlStateTable(table="versions", **database(directory))
    versions_.publish_state("versions", table, name="shown", map_key="valid_from")
    return job


def top(directory: Path, cleanup: str) -> StatefulJob:
    job = StatefulJob("top")
    rows = job.source("scores", read(directory, "scores", f"{EVENT}, points bigint"))
    best = rows.key_by("k").top_n(3, by="points", uid="best")
    best.publish_state("top", DeltaStateTable(str(directory / "out" / "top")), map_key="rank")
    return job


def elements(directory: Path, cleanup: str) -> StatefulJob:
    """A source in memory, one with a state, and a state from a function."""
    job = StatefulJob("elements")
    numbers = job.from_collection([(n * n % 7, n) for n in range(30)], "k bigint, n bigint", name="numbers")
    running = numbers.key_by("k").map_with_state(
        running_sum, state_type=int, output_type="k bigint, sum bigint", uid="running"
    )
    running.sink("running", delta(directory, "running"))
    counted = job.source("counter", UpTo(20), output_type=Types.LONG(), max_rows_per_batch=20)
    counted.filter(lambda n: n % 3 > 0).sink("counted", delta(directory, "counted"))
    return job


# -- jobs, examples and templates --------------------------------------------------------------------------------------


@contextmanager
def _project_of(template: str) -> Iterator[Path]:
    """A project of a template, in a directory of its own: its modules make their first files as they are imported."""
    templates, before = Path(init.__file__).with_name("templates"), list(sys.path)
    with TemporaryDirectory() as directory:
        for part in ("common", template):
            shutil.copytree(templates / part, directory, dirs_exist_ok=True)
        sys.path.insert(0, directory)
        try:
            yield Path(directory)
        finally:
            sys.path[:] = before
            for name in ("arrive", "events"):
                sys.modules.pop(name, None)


def template(name: str, module: str, *outputs: str) -> Callable[[Path, str], StatefulJob]:
    with _project_of(name) as project:
        # not by the name of the module, which other projects in this process have, too
        spec = spec_from_file_location(f"template_{module}", project / f"{module}.py")
        assert spec is not None
        assert spec.loader is not None
        loaded = sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(loaded)
    cloudpickle.register_pickle_by_value(loaded)

    def build(directory: Path, cleanup: str) -> StatefulJob:
        (source,) = loaded.build("nowhere", *outputs).sources
        made: StatefulJob = loaded.build(
            directory / "in" / source, *(str(directory / "out" / o) for o in outputs)
        )
        return made

    return build


def example(module: Any) -> Callable[[Path, str], StatefulJob]:
    def build(directory: Path, cleanup: str) -> StatefulJob:
        made: StatefulJob = module.build(directory / "in")
        return made

    return build


def of_flights(directory: Path, cleanup: str) -> StatefulJob:
    return flights.build(directory / "in" / "flights", directory / "out")


def of_days(directory: Path, cleanup: str) -> StatefulJob:
    return daily_delays.build(directory / "in" / "flights", directory / "out")


def averages(directory: Path, cleanup: str) -> StatefulJob:
    source = read(directory, "pairs", "key bigint, value bigint", "parquet")
    return count_window_average.build(source, delta(directory))


# -- results by plain programs -----------------------------------------------------------------------------------------


def hours_of(rows: Rows) -> Mapping[str, list[Values]]:
    sums: Counter[tuple[str, int]] = Counter()
    for row in chain(*rows.values()):
        end = (at_ms(row) // HOUR_MS + 1) * HOUR_MS - 1
        sums[row["k"], end] += row["n"]
    return {"sums": [{"k": k, "at": end, "sum": total} for (k, end), total in sums.items()]}


def windows_of(rows: Rows) -> Mapping[str, list[Values]]:
    """Sessions, slides of five minutes, and sessions by the hour in which they end."""
    sessions: list[tuple[str, list[Values]]] = []
    slides: dict[tuple[str, datetime], list[Values]] = {}
    for k in sorted({row["k"] for row in rows["events"]}):
        times: list[Values] = []
        for row in sorted((row for row in rows["events"] if row["k"] == k), key=at_ms):
            if times and row["at"] - times[-1]["at"] <= GAP:
                times.append(row)
            else:
                sessions.append((k, times := [row]))
            first = row["at"] - timedelta(
                seconds=at_ms(row) // 1000 % 120, microseconds=row["at"].microsecond
            )
            for start in (first - timedelta(minutes=m) for m in (0, 2, 4)):
                if row["at"] < start + timedelta(minutes=5):
                    slides.setdefault((k, start), []).append(row)
    of_hours: dict[tuple[str, datetime], list[int]] = {}
    for k, inside in sessions:
        last = inside[-1]["at"] + GAP - timedelta(milliseconds=1)
        of_hours.setdefault((k, last.replace(minute=0, second=0, microsecond=0)), []).append(len(inside))
    return {
        "sessions": [_window(k, s[0]["at"], s[-1]["at"] + GAP, **_sums(s)) for k, s in sessions],
        "slides": [_window(k, at, at + timedelta(minutes=5), **_sums(s)) for (k, at), s in slides.items()],
        "hours": [
            _window(k, at, at + timedelta(hours=1), visits=len(n), most=max(n))
            for (k, at), n in of_hours.items()
        ],
    }


def _window(k: str, start: datetime, end: datetime, **results: int) -> Values:
    return {"k": k, "window_start": start, "window_end": end, **results}


def _sums(rows: list[Values]) -> dict[str, int]:
    return {"rows": len(rows), "sum": sum(row["n"] for row in rows)}


def met(rows: Rows) -> Mapping[str, list[Values]]:
    """Pairs of an order and a payment near it, and those that find nobody."""
    pairs_, paid, lonely = [], list[Values](), list[Values]()
    for order in rows["orders"]:
        near = [
            p for p in rows["payments"] if p["k"] == order["k"] and abs(at_ms(p) - at_ms(order)) <= JOIN_MS
        ]
        pairs_ += [(order["k"], order["n"], payment["n"]) for payment in near]
        paid += near
        lonely += [] if near else [order]
    pairs_ += [(order["k"], order["n"], None) for order in lonely]
    pairs_ += [(payment["k"], None, payment["n"]) for payment in rows["payments"] if payment not in paid]
    return {"met": [dict(zip(("k", "ordered", "paid"), pair, strict=True)) for pair in pairs_]}


def met_and_hours(rows: Rows) -> Mapping[str, list[Values]]:
    return {**met(rows), **hours_of(rows)}


def totals_of_owners(rows: Rows) -> Mapping[str, list[Values]]:
    changes = [(RowKind[c["kind"]], (c["id"], c["owner"], c["amount"])) for c in rows["accounts"]]
    totals = [{"owner": owner, "total": total} for owner, total in applied(totals_of(changes))]
    return {"totals": totals, "totals_sql": totals}


def at_ms(row: Values) -> int:
    return int(row["at"].timestamp() * 1000)


ONCE_A_BATCH = "a function over columns that gives a row for each key of a micro-batch (guide of columns)"
TIMERS_OF_SESSIONS = ("sessions._timers", "visits._timers")
"""A session has a timer for the end that it had when it was new; it waits even if the session has grown."""
IN_MINUTES = (1_000, 90_000, 200_000)
IN_MILLISECONDS: dict[str, Any] = {"rows": of_events(steps_ms=(1, 5, 10, 40)), "bound": SHORT_BOUND}
CASES: dict[str, Case] = {
    "every state, clock": Case(every_state(False, False, False), **IN_MILLISECONDS),
    "every state, event time": Case(every_state(True, False, False), **IN_MILLISECONDS),
    "every state, on read": Case(every_state(True, True, False), **IN_MILLISECONDS),
    "every state, shown once": Case(every_state(True, False, True), **IN_MILLISECONDS),
    "hours": Case(hours(), of_events("web", "shop", steps_ms=IN_MINUTES), any_arrival=True, plainly=hours_of),
    "hours in order": Case(
        hours("at"), of_events("web", "shop", steps_ms=IN_MINUTES), any_arrival=True, plainly=hours_of
    ),
    "windows": Case(
        windows, of_events(steps_ms=IN_MINUTES), any_arrival=True, by_arrival=TIMERS_OF_SESSIONS, plainly=windows_of
    ),
    "operators": Case(
        operators_of_two, of_events("orders", "payments", steps_ms=IN_MINUTES), any_arrival=True,
        left_by_arrival=("of_time.versions",), plainly=operators.plainly,
    ),
    "joined": Case(joined, of_events("orders", "payments", steps_ms=IN_MINUTES), any_arrival=True, plainly=met),
    "from Delta": Case(from_delta, of_events()),
    "reminded": Case(reminded, of_events()),
    "ordered broadcast": Case(ordered_broadcast, of_events("events", "factors"), in_order=True),
    "operator state": Case(operator_state, of_events()),
    "aggregates": Case(aggregates, of_events()),
    "zones": Case(zones, of_events()),
    "types of Parquet": Case(types("parquet"), typed, time="", in_order=True),
    "history": Case(history, versions, time="changed", any_arrival=True),
    "top": Case(top, scores, any_arrival=True),
    "elements": Case(elements, lambda rng: {}, time=""),
    "raw state of key groups": Case(raw_state(of_subtask=False), of_events()),
    "raw state of subtasks": Case(raw_state(of_subtask=True), of_events(), parallelism=3),
    "changed table": Case(changed_table, accounts, time="", plainly=totals_of_owners),
    "idle sources": Case(
        silent(idle_after="12 min"),
        quiet_events("orders", "payments", steps_s=(20, 100, 1500)), any_arrival=True, span=SPAN, plainly=met_and_hours,
    ),
    "outages": Case(
        silent(watermark="clock", clock_delay="30 min", stale_after="10 min"),
        quiet_events("orders", "payments", steps_s=(20, 100, 400)), any_arrival=True, span=SPAN, plainly=met_and_hours,
        outages=("payments",),
    ),
    "template dedup": Case(template("dedup", "dedup", "orders", "late"), orders_again, any_arrival=True, days=4),
    "template sessions": Case(
        template("sessions", "sessions", "sessions", "late"), clicks, any_arrival=True, by_arrival=TIMERS_OF_SESSIONS
    ),
    "template ledger": Case(template("ledger", "ledger", "booked", "refused"), payments, in_order=True),
    "template minimal": Case(template("minimal", "totals", "totals"), sales, time=""),
    "example word_count": Case(example(word_count), lines, time=""),
    "example broadcast_rules": Case(example(broadcast_rules), judged_payments, time="", first=("rules",)),
    "example columns": Case(example(columns), sales, time="", by_cut={"records": ONCE_A_BATCH}),
    "job count_window_average": Case(averages, pairs, time=""),
    "job flights": Case(of_flights, departures, time="", in_order=True),
    "job daily_delays": Case(
        of_days, departures, time="", cut=False, start=datetime(2013, 1, 9, tzinfo=UTC), drain=False
    ),
}  # fmt: skip
"""By name."""

for module in (columns, word_count, broadcast_rules):
    cloudpickle.register_pickle_by_value(module)  # workers cannot import the examples
