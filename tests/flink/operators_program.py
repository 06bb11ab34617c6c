# mypy: disable-error-code="import-not-found"
"""Operators of Flink's SQL over the rows of two files, printed as JSON; run by the Python of ``.venv-flink``.

It must import nothing else of this project. The watermark moves behind every row. Results of a query that changes
are its table at the end.

Usage: operators_program.py LEFT RIGHT BOUND_MS QUERY…
"""

import json
import sys
from collections import Counter
from typing import Any

from pyflink.common import Configuration, RowKind
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.table import StreamTableEnvironment

OPTIONS = {
    "parallelism.default": "1",
    "pipeline.auto-watermark-interval": "0 ms",
    "table.local-time-zone": "UTC",
    "taskmanager.memory.process.size": "2g",
}
SO_FAR = "PARTITION BY k ORDER BY t"
PAIRS = "l.k, l.v, l.ms, r.k, r.v, r.ms"
IN_TIME = "l.k = r.k AND r.t BETWEEN l.t - INTERVAL '0.009' SECOND AND l.t + INTERVAL '0.005' SECOND"
STEPS = "DEFINE a AS a.v < 0, b AS b.v > 3"
MATCH = (
    "SELECT k, a_at, b_at FROM l MATCH_RECOGNIZE (PARTITION BY k ORDER BY t MEASURES a.ms AS a_at, b.ms AS b_at "
    "ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN ({}) WITHIN INTERVAL '0.020' SECOND {})"
)


def over(frame: str) -> str:
    """Count and sum of each row's span."""
    span = f"OVER ({SO_FAR} {frame} AND CURRENT ROW)"
    return f"SELECT k, v, ms, COUNT(*) {span}, SUM(v) {span} FROM l"


def first_by(order: str, number: int) -> str:
    """The first rows of each key."""
    ranked = f"SELECT k, v, ms, ROW_NUMBER() OVER (PARTITION BY k ORDER BY {order}) AS place FROM l"
    return f"SELECT k, v, ms FROM ({ranked}) WHERE place <= {number}"


QUERIES = {
    "over time": over("RANGE BETWEEN INTERVAL '0.020' SECOND PRECEDING"),
    "over rows": over("ROWS BETWEEN 3 PRECEDING"),
    "over all": over("RANGE BETWEEN UNBOUNDED PRECEDING"),
    "first": first_by("t ASC", 1),
    "last": first_by("t DESC", 1),
    "top": first_by("v DESC", 3),
    "strict": MATCH.format("a b", STEPS),
    "relaxed": MATCH.format("a x*? b", STEPS),
    **{
        f"{how} join".lower(): f"SELECT {PAIRS} FROM l {how} JOIN r ON {IN_TIME}"
        for how in ("INNER", "LEFT", "RIGHT", "FULL")
    },
    "as of": f"SELECT {PAIRS} FROM l LEFT JOIN r FOR SYSTEM_TIME AS OF l.t ON l.k = r.k",
}


def table_of(rows: Any) -> list[list[Any]]:
    """The table that changes lead to."""
    table: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        gone = row.get_row_kind() in (RowKind.UPDATE_BEFORE, RowKind.DELETE)
        table[tuple(row)] += -1 if gone else 1
    return [list(row) for row in table.elements()]


def main(left: str, right: str, bound_ms: str, *queries: str) -> None:
    configuration = Configuration()
    for name, value in OPTIONS.items():
        configuration.set_string(name, value)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    environment.set_parallelism(1)
    tables = StreamTableEnvironment.create(environment)
    # Flink's DDL takes one millisecond less than its class of bounded out-of-orderness
    behind = (int(bound_ms) + 1) / 1000
    for name, path, key in (("l", left, ""), ("r", right, "PRIMARY KEY (k) NOT ENFORCED, ")):
        tables.execute_sql(
            f"CREATE TABLE {name} (k STRING, v BIGINT, ms BIGINT, t AS TO_TIMESTAMP_LTZ(ms, 3), {key}"
            f"WATERMARK FOR t AS t - INTERVAL '{behind:.3f}' SECOND) "
            f"WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')"
        )
    results = {}
    for query in queries:
        with tables.execute_sql(QUERIES[query]).collect() as rows:
            results[query] = table_of(rows)
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
