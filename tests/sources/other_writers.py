"""Files as other programs write them: spreadsheets, Python, pandas, Arrow, polars, DuckDB, jq, Hive and Spark.

A writer says which values the program keeps, so that what was put in is known: nothing of a file is read back here.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tests.sources.other_values import Rows

Holds = Callable[[str, Any], bool]
"""Whether a program keeps a value of a type (DDL), so that it can be known again in its file."""


def _everything(_ddl: str, _value: Any) -> bool:
    return True


def _null_is_no_text(ddl: str, value: Any) -> bool:
    """Programs that write null and empty text alike."""
    return not (ddl == "string" and value == "")


@dataclass(frozen=True)
class Writer:
    """A program that writes one file.

    Attributes:
        format: of ``FileSource``.
        write: rows to a path.
        options: of ``FileSource``.
        holds: which values it keeps.
        nulls: whether it writes them.
        nested: whether it writes lists and structs.
        suffix: of its files.
    """

    format: str
    write: Callable[[Rows, Path, SparkSession], None]
    options: Mapping[str, str] = field(default_factory=dict)
    holds: Holds = _everything
    nulls: bool = True
    nested: bool = False
    suffix: str = ""


# --- text, cell by cell


def _cell(value: Any) -> str:
    """A value as Python's programs write it by hand."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, date):
        return value.isoformat()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _by_csv_module(
    *, encoding: str = "utf-8", upper: bool = False, backwards: bool = False, **dialect: Any
) -> Any:
    def write(rows: Rows, path: Path, _spark: SparkSession) -> None:
        names = list(reversed(rows.kinds)) if backwards else list(rows.kinds)
        with path.open("w", encoding=encoding, newline="") as file:
            writer = csv.writer(file, **dialect)
            writer.writerow(names)
            for row in rows.rows:
                cells = [_cell(row[name]) for name in names]
                shown = [
                    c.upper() if upper and isinstance(row[n], bool) else c
                    for n, c in zip(names, cells, strict=True)
                ]
                writer.writerow(shown)

    return write


def _hive_text(rows: Rows, path: Path, _spark: SparkSession) -> None:
    lines = ["\x01".join("\\N" if v is None else _cell(v) for v in row.values()) for row in rows.rows]
    path.write_text("".join(f"{line}\n" for line in lines), newline="")


def _hive_holds(ddl: str, value: Any) -> bool:
    return ddl != "string" or not (set(value) & set('\n\r\\"') or value == "")


# --- JSON


def _json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _json_value(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_json_value(one) for one in value]
    return _cell(value) if isinstance(value, date | datetime) else value


class _Exact(json.JSONEncoder):
    """Decimals as numbers with all their digits."""

    def iterencode(self, o: Any, _one_shot: bool = False) -> Any:
        yield self._text(o)

    def _text(self, value: Any) -> str:
        if isinstance(value, Decimal):
            return format(value, "f")
        if isinstance(value, dict):
            return "{" + ", ".join(f"{json.dumps(k)}: {self._text(v)}" for k, v in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(self._text, value)) + "]"
        return json.dumps(value, ensure_ascii=self.ensure_ascii)


def _json_lines(*, ascii_only: bool = True, backwards: bool = False, nulls: bool = True) -> Any:
    def write(rows: Rows, path: Path, _spark: SparkSession) -> None:
        names = list(reversed(rows.kinds)) if backwards else list(rows.kinds)
        with path.open("w", newline="") as file:
            for row in rows.rows:
                values = {n: _json_value(row[n]) for n in names if nulls or row[n] is not None}
                file.write(json.dumps(values, cls=_Exact, ensure_ascii=ascii_only) + "\n")

    return write


def _json_array(rows: Rows, path: Path, _spark: SparkSession) -> None:
    texts = [json.dumps(_json_value(row), cls=_Exact) for row in rows.rows]
    path.write_text("[\n  " + ",\n  ".join(texts) + "\n]\n", newline="")


def _by_jq(rows: Rows, path: Path, _spark: SparkSession) -> None:
    _json_array(rows, path, _spark)
    lines = subprocess.run(["jq", "-c", ".[]", str(path)], capture_output=True, check=True).stdout
    path.write_bytes(lines)


def _jq_holds(ddl: str, value: Any) -> bool:
    """Numbers are doubles to it."""
    number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return "decimal" not in ddl and not (number and (abs(value) > 1e15 or 0 < abs(value) < 1e-5))


# --- pandas, Arrow, polars, DuckDB


def _frame(rows: Rows) -> pd.DataFrame:
    frame = pd.DataFrame(rows.rows, columns=list(rows.kinds), dtype=object)
    for name, kind in rows.kinds.items():
        if kind.ddl in ("bigint", "int", "smallint"):
            frame[name] = frame[name].astype("Int64")
    return frame


def _pandas_csv(rows: Rows, path: Path, _spark: SparkSession) -> None:
    _frame(rows).to_csv(path, index=False)


def _arrow_csv(rows: Rows, path: Path, _spark: SparkSession) -> None:
    pacsv.write_csv(rows.arrow, path, pacsv.WriteOptions(quoting_style="all_valid"))


def _polars(rows: Rows) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(rows.arrow))


def _polars_csv(rows: Rows, path: Path, _spark: SparkSession) -> None:
    _polars(rows).write_csv(path, quote_style="necessary")


def _polars_json(rows: Rows, path: Path, _spark: SparkSession) -> None:
    _polars(rows).write_ndjson(path)


def _polars_parquet(rows: Rows, path: Path, _spark: SparkSession) -> None:
    _polars(rows).write_parquet(path)


def _by_duckdb(how: str) -> Any:
    def write(rows: Rows, path: Path, _spark: SparkSession) -> None:
        with duckdb.connect() as connection:
            connection.register("written", rows.arrow)
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute(f"COPY written TO '{path}' ({how})")

    return write


def _pandas_parquet(rows: Rows, path: Path, _spark: SparkSession) -> None:
    rows.arrow.to_pandas(types_mapper=pd.ArrowDtype).to_parquet(path, index=False)


def _arrow_parquet(**options: Any) -> Any:
    def write(rows: Rows, path: Path, _spark: SparkSession) -> None:
        pq.write_table(rows.arrow, path, **options)

    return write


def _wide_arrow(rows: Rows, path: Path, _spark: SparkSession) -> None:
    """Types of Arrow that mean the same."""
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    schema = pa.schema([(f.name, wide.get(f.type, f.type)) for f in rows.arrow.schema])
    table = rows.arrow.cast(schema)
    for place, one in enumerate(schema):
        if one.type == pa.large_string():
            table = table.set_column(place, one.name, table[one.name].dictionary_encode())
    pq.write_table(table, path)


def _int96_holds(ddl: str, value: Any) -> bool:
    """Nanoseconds of 64 bits, before they are split into days and a rest."""
    return "timestamp" not in ddl or 1700 < value.year < 2200


def _no_local_time(ddl: str, value: Any) -> bool:
    return ddl != "timestamp_ntz"


def _finite(ddl: str, value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


# --- Spark


def _whole_milliseconds(ddl: str, value: Any) -> bool:
    """Spark writes no more of an instant, or of a local time, into text."""
    return not isinstance(value, datetime) or value.microsecond % 1000 == 0


def _by_spark(format_: str, options: Mapping[str, str]) -> Any:
    """A writer of one file, by Spark of another program."""

    def write(rows: Rows, path: Path, spark: SparkSession) -> None:
        session = spark.newSession()
        session.conf.set("spark.sql.session.timeZone", "UTC")
        for name, value in options.items():
            if name.startswith("spark."):
                session.conf.set(name, value)
        own = {name: value for name, value in options.items() if not name.startswith("spark.")}
        frame = session.createDataFrame(rows.arrow).coalesce(1)
        directory = path.with_name(f"_written_{path.name}")
        frame.write.format(format_).options(**own).save(str(directory))
        (part,) = (one for one in directory.iterdir() if one.name.startswith("part-"))
        part.rename(path)
        shutil.rmtree(directory)

    return write


_HEADER = {"header": "true"}
_PAIRS: dict[str, Writer] = {
    "python csv": Writer("csv", _by_csv_module(), _HEADER, _null_is_no_text),
    "python csv, other order": Writer(
        "csv", _by_csv_module(backwards=True, lineterminator="\n"), _HEADER, _null_is_no_text
    ),
    "a spreadsheet": Writer(
        "csv",
        _by_csv_module(upper=True, delimiter=";", encoding="utf-8-sig"),
        {**_HEADER, "sep": ";"},
        _null_is_no_text,
    ),
    "a spreadsheet, tabs": Writer(
        "csv", _by_csv_module(dialect="excel-tab"), {**_HEADER, "sep": "\t"}, _null_is_no_text
    ),
    "a spreadsheet, UTF-16": Writer(
        "csv",
        _by_csv_module(encoding="utf-16"),
        {**_HEADER, "encoding": "UTF-16", "multiLine": "true"},
        _null_is_no_text,
    ),
    "python csv, all quoted": Writer("csv", _by_csv_module(quoting=csv.QUOTE_ALL), _HEADER, nulls=False),
    "pandas csv": Writer("csv", _pandas_csv, _HEADER, _null_is_no_text),
    "arrow csv": Writer("csv", _arrow_csv, _HEADER),
    "polars csv": Writer("csv", _polars_csv, _HEADER),
    "duckdb csv": Writer("csv", _by_duckdb("FORMAT csv, HEADER, FORCE_QUOTE *"), _HEADER),
    "hive text": Writer(
        "csv", _hive_text, {"sep": "\x01", "nullValue": "\\N", "quote": "", "multiLine": "false"}, _hive_holds
    ),
    "python json": Writer("json", _json_lines(), nested=True),
    "python json, other order": Writer(
        "json", _json_lines(ascii_only=False, backwards=True, nulls=False), nested=True
    ),
    "python json array": Writer("json", _json_array, {"multiLine": "true"}, nested=True),
    "polars json": Writer("json", _polars_json, nested=True, holds=_finite),
    "duckdb json": Writer("json", _by_duckdb("FORMAT json"), nested=True),
    "pandas parquet": Writer("parquet", _pandas_parquet, nested=True),
    "arrow parquet": Writer("parquet", _arrow_parquet(), nested=True),
    "arrow parquet, old": Writer(
        "parquet",
        _arrow_parquet(use_deprecated_int96_timestamps=True, compression="gzip", version="1.0"),
        nested=True,
        holds=_int96_holds,
    ),
    "arrow parquet, new": Writer(
        "parquet",
        _arrow_parquet(
            version="2.6",
            data_page_version="2.0",
            compression="zstd",
            store_decimal_as_integer=True,
            use_dictionary=False,
        ),
        nested=True,
    ),
    "arrow parquet, wide types": Writer("parquet", _wide_arrow),
    "polars parquet": Writer("parquet", _polars_parquet, nested=True),
    "duckdb parquet": Writer("parquet", _by_duckdb("FORMAT parquet"), nested=True),
}


def writers() -> dict[str, Writer]:
    """All programs by name; jq is the machine's, and may be missing."""
    rfc = {"escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
    own = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
    corrected = {
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    }
    old = {
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.outputTimestampType": "INT96",
        "spark.sql.parquet.writeLegacyFormat": "true",
    }
    spark_writers = {
        "spark csv": Writer("csv", _by_spark("csv", {**_HEADER, **rfc}), _HEADER, _whole_milliseconds),
        "spark csv, its own escapes": Writer(
            "csv",
            _by_spark("csv", {**_HEADER, **own}),
            {**_HEADER, "escape": "\\"},
            lambda d, v: _whole_milliseconds(d, v) and not (d == "string" and "\\" in v),
        ),
        "spark json": Writer("json", _by_spark("json", {}), holds=_whole_milliseconds, nested=True),
        "spark parquet": Writer("parquet", _by_spark("parquet", corrected), nested=True),
        "spark parquet, old calendar": Writer(
            "parquet", _by_spark("parquet", old), nested=True, holds=_no_local_time
        ),
    }
    return {**_PAIRS, "jq": Writer("json", _by_jq, nested=True, holds=_jq_holds), **spark_writers}
