# mypy: disable-error-code="import-not-found"
"""Runs one query of Nexmark as Flink SQL, and prints the seconds that it took, or its results.

Needs PyFlink, which cannot share an environment with PySpark: ``benchmarks.nexmark.on_flink`` starts this file with the
Python of ``.venv-flink``. It must import nothing else of this project. Results of a query that changes are its table
at the end; where only the time counts they go nowhere, because files take inserts only.

Usage: flink_program.py QUERY time|results PARALLELISM DIRECTORY JARS
"""

import json
import sys
import time
from collections import Counter
from typing import Any

from pyflink.common import Configuration, RowKind
from pyflink.table import EnvironmentSettings, TableEnvironment

COLUMNS = {
    "persons": "id BIGINT, name STRING, `at` TIMESTAMP(6)",
    "auctions": "id BIGINT, seller BIGINT, `at` TIMESTAMP(6)",
    "bids": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, `at` TIMESTAMP(6), extra STRING",
}
OF_WINDOW = "GROUP BY {}, window_start, window_end"
SAME_WINDOW = "a.window_start = b.window_start AND a.window_end = b.window_end"


def tumbling(table: str) -> str:
    return f"TABLE(TUMBLE(TABLE {table}, DESCRIPTOR(t), INTERVAL '10' SECOND))"


def first_by(key: str, order: str, number: int, columns: str) -> str:
    ranked = f"SELECT *, ROW_NUMBER() OVER (PARTITION BY {key} ORDER BY {order}) AS place FROM bids"
    return f"SELECT {columns} FROM ({ranked}) WHERE place <= {number}"


COUNTS = (
    "SELECT auction, COUNT(*) AS n, window_start, window_end FROM "
    "TABLE(HOP(TABLE bids, DESCRIPTOR(t), INTERVAL '2' SECOND, INTERVAL '10' SECOND)) "
    "GROUP BY auction, window_start, window_end"
)
QUERIES = {
    "q5": (
        f"SELECT a.auction, a.n, a.window_start, a.window_end FROM ({COUNTS}) a "
        f"JOIN (SELECT MAX(n) AS n, window_start, window_end FROM ({COUNTS}) GROUP BY window_start, window_end) b "
        f"ON {SAME_WINDOW} AND a.n >= b.n"
    ),
    "q7": (
        f"SELECT a.auction, a.price, a.bidder, a.`at`, a.extra FROM (SELECT * FROM {tumbling('bids')}) a "
        f"JOIN (SELECT MAX(price) AS price, window_start, window_end FROM {tumbling('bids')} "
        f"GROUP BY window_start, window_end) b ON {SAME_WINDOW} AND a.price = b.price"
    ),
    "q8": (
        f"SELECT a.id, a.name, a.window_start FROM (SELECT id, name, window_start, window_end FROM "
        f"{tumbling('persons')} {OF_WINDOW.format('id, name')}) a JOIN (SELECT seller, window_start, window_end FROM "
        f"{tumbling('auctions')} {OF_WINDOW.format('seller')}) b ON {SAME_WINDOW} AND a.id = b.seller"
    ),
    "q11": (
        "SELECT bidder, window_start, window_end, COUNT(*) AS n FROM TABLE(SESSION(TABLE bids PARTITION BY bidder, "
        f"DESCRIPTOR(t), INTERVAL '10' SECOND)) {OF_WINDOW.format('bidder')}"
    ),
    "q18": first_by("bidder, auction", "t DESC", 1, "auction, bidder, price, channel, url, `at`, extra"),
    "q19": first_by("auction", "price DESC", 10, "auction, place, bidder, price, `at`"),
}
CHANGES = ("q18", "q19")


def environment(parallelism: str, directory: str, jars: str) -> TableEnvironment:
    configuration = Configuration()
    for name, value in {
        "parallelism.default": parallelism,
        "pipeline.jars": jars,
        "state.backend.type": "hashmap",
        "execution.checkpointing.interval": "2 s",
        "execution.checkpointing.dir": f"file://{directory}/checkpoints",
        "table.local-time-zone": "UTC",
        "taskmanager.memory.process.size": "4g",
    }.items():
        configuration.set_string(name, value)
    settings = (
        EnvironmentSettings.new_instance().with_configuration(configuration).in_streaming_mode().build()
    )
    return TableEnvironment.create(settings)


def files(path: str) -> str:
    options = "'connector' = 'filesystem', 'format' = 'parquet', 'parquet.utc-timezone' = 'true'"
    return f"WITH ({options}, 'path' = '{path}')"


def table_at_the_end(rows: Any) -> list[list[Any]]:
    table: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        gone = row.get_row_kind() in (RowKind.UPDATE_BEFORE, RowKind.DELETE)
        table[tuple(value if isinstance(value, int) else str(value) for value in row)] += -1 if gone else 1
    return [list(row) for row in table.elements()]


def main(query: str, what: str, parallelism: str, directory: str, jars: str) -> None:
    tables = environment(parallelism, directory, jars)
    for name, columns in COLUMNS.items():
        # readers take files in any order: no row may be late
        tables.execute_sql(
            f"CREATE TABLE {name} ({columns}, t AS CAST(`at` AS TIMESTAMP(3)), "
            f"WATERMARK FOR t AS t - INTERVAL '1' DAY) {files(f'file://{directory}/{name}')}"
        )
    if what == "results":
        with tables.execute_sql(QUERIES[query]).collect() as rows:
            print(json.dumps({"rows": table_at_the_end(rows)}))
        return
    started = time.perf_counter()
    place = (
        "WITH ('connector' = 'blackhole')" if query in CHANGES else files(f"file://{directory}/{query}-flink")
    )
    tables.execute_sql(f"CREATE TABLE results {place} AS {QUERIES[query]}").wait()
    print(json.dumps({"seconds": time.perf_counter() - started}))


if __name__ == "__main__":
    main(*sys.argv[1:])
