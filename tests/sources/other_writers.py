"""Files as others write them: spreadsheets, languages, pandas, Arrow, polars, DuckDB, jq, databases, Hive and Spark.

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
from datetime import date, datetime, timedelta, timezone
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
    *, encoding: str = "utf-8", upper: bool = False, backwards: bool = False, before: str = "", **dialect: Any
) -> Any:
    def write(rows: Rows, path: Path, _spark: SparkSession) -> None:
        names = list(reversed(rows.kinds)) if backwards else list(rows.kinds)
        with path.open("w", encoding=encoding, newline="") as file:
            file.write(before)
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


def _postgres_cell(value: Any) -> str:
    """As ``COPY … (FORMAT csv, HEADER)`` writes a value: null is nothing, and an empty text is quoted."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        text = (
            value.replace(tzinfo=None).isoformat(" ").rstrip("0").rstrip(".")
            if value.microsecond
            else (value.replace(tzinfo=None).isoformat(" "))
        )
        return f"{text}+00" if value.tzinfo else text
    text = _cell(value)
    if isinstance(value, str) and (not text or set(text) & set(',"\n\r') or text == "\\."):
        return '"' + text.replace('"', '""') + '"'
    return text


def _postgres_csv(rows: Rows, path: Path, _spark: SparkSession) -> None:
    names = [f'"{name}"' if set(name) & set(',"') else name for name in rows.kinds]
    lines = [",".join(names), *(",".join(map(_postgres_cell, row.values())) for row in rows.rows)]
    path.write_text("".join(f"{line}\n" for line in lines), newline="")


def _postgres_holds(ddl: str, value: Any) -> bool:
    """Truth is ``t`` or ``f`` there, which a test of refused forms has."""
    return ddl != "boolean"


def _mysql_cell(value: Any) -> str:
    """As ``INTO OUTFILE … FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '"'`` writes it."""
    if value is None:
        return "\\N"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    text = _cell(value)
    return text.replace("T", " ").removesuffix("+00:00") if isinstance(value, datetime) else text


def _mysql_csv(rows: Rows, path: Path, _spark: SparkSession) -> None:
    lines = [",".join(map(_mysql_cell, row.values())) for row in rows.rows]
    path.write_text("".join(f"{line}\n" for line in lines), newline="")


def _mysql_holds(ddl: str, value: Any) -> bool:
    """Truth is a number there, and a line end has an escape of its own."""
    return ddl != "boolean" and not (isinstance(value, str) and "\n" in value) and _finite(ddl, value)


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


def _java_value(value: Any) -> Any:
    """As Jackson writes values with ``JavaTimeModule``: an instant has 0, 3, 6 or 9 digits of a second."""
    if isinstance(value, dict):
        return {name: _java_value(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_java_value(one) for one in value]
    if isinstance(value, datetime):
        digits = 0 if not value.microsecond else 3 if value.microsecond % 1000 == 0 else 9
        text = value.replace(tzinfo=None, microsecond=0).isoformat()
        fraction = f".{value.microsecond:06d}000"[: digits + 1] if digits else ""
        return text + fraction + ("Z" if value.tzinfo else "")
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    return _cell(value) if isinstance(value, date) else value


def _go_value(value: Any) -> Any:
    """As Go's ``encoding/json`` writes values: an instant in the zone that it was made in, with the digits it needs."""
    if isinstance(value, dict):
        return {name: _go_value(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_go_value(one) for one in value]
    if isinstance(value, datetime) and value.tzinfo and 1 < value.year < 9999:
        value = value.astimezone(timezone(timedelta(hours=5, minutes=30)))
        text = value.replace(tzinfo=None).isoformat()
        return (text.rstrip("0") if value.microsecond else text) + "+05:30"
    return _json_value(value)


def _by_language(written: Callable[[Any], Any]) -> Any:
    def write(rows: Rows, path: Path, _spark: SparkSession) -> None:
        texts = [json.dumps(written(row), cls=_Exact, ensure_ascii=False) for row in rows.rows]
        escaped = [text.replace("<", "\\u003c").replace("&", "\\u0026") for text in texts]
        path.write_text("".join(f"{text}\n" for text in escaped), newline="")

    return write


def _jq_holds(ddl: str, value: Any) -> bool:
    """Numbers are doubles to it."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return "decimal" not in ddl and not (number and not (value == 0 or 1e-5 < abs(value) < 1e15))


# --- pandas, Arrow, polars, DuckDB


def _frame(rows: Rows) -> pd.DataFrame:
    frame = pd.DataFrame(rows.rows, columns=list(rows.kinds), dtype=object)
    for name, kind in rows.kinds.items():
        if kind.ddl in ("bigint", "int", "smallint"):
            frame[name] = frame[name].astype("Int64")
    return frame


def _pandas_csv(rows: Rows, path: Path, _spark: SparkSession) -> None:
    _frame(rows).to_csv(path, index=False)


def _pandas_csv_with_index(rows: Rows, path: Path, _spark: SparkSession) -> None:
    _frame(rows).to_csv(path)


def _pandas_csv_holds(ddl: str, value: Any) -> bool:
    """Null, empty text and NaN are alike to it."""
    return _null_is_no_text(ddl, value) and not (isinstance(value, float) and math.isnan(value))


def _pandas_json(rows: Rows, path: Path, _spark: SparkSession) -> None:
    frame = pd.DataFrame([_json_value(row) for row in rows.rows], columns=list(rows.kinds), dtype=object)
    frame.to_json(path, orient="records", lines=True, double_precision=15)


def _pandas_json_holds(ddl: str, value: Any) -> bool:
    """Numbers with a point are rounded by pandas itself."""
    return not isinstance(value, float | Decimal) and "decimal" not in ddl


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


_NARROWER: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int64(): (pa.uint32(), pa.int32(), pa.uint8(), pa.int16(), pa.int8()),
    pa.int32(): (pa.uint16(), pa.int16(), pa.uint8()),
    pa.int16(): (pa.uint8(), pa.int8()),
    pa.float64(): (pa.float32(), pa.int32()),
    pa.decimal128(10, 2): (pa.decimal128(5, 1), pa.decimal128(9, 2), pa.decimal256(10, 2)),
    pa.decimal128(38, 10): (pa.decimal128(18, 10), pa.decimal256(38, 10), pa.int32()),
    pa.date32(): (pa.date64(),),
    pa.timestamp("us", "UTC"): (pa.timestamp("ms", "UTC"), pa.timestamp("us", "Asia/Tokyo")),
    pa.timestamp("us"): (pa.timestamp("ms"),),
    pa.string(): (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())),
    pa.binary(): (pa.large_binary(), pa.binary_view()),
}
"""By type, others whose every value is one of it."""


def _narrowed(column: pa.ChunkedArray, first: int) -> pa.ChunkedArray:
    """A column in another type that holds its values, or as it is; ``first`` says where to begin to look."""
    kinds = _NARROWER.get(column.type, ())
    for place in range(len(kinds)):
        try:
            narrow = column.cast(kinds[(first + place) % len(kinds)])
            if narrow.cast(column.type).equals(column):
                return narrow
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
    return column


def _narrow_arrow(rows: Rows, path: Path, _spark: SparkSession) -> None:
    """The types of the values that happen to be in a file: those of one directory differ."""
    first = rows.rows[0]["id"] if rows.rows else 0
    columns = [_narrowed(one, first + place) for place, one in enumerate(rows.arrow.columns)]
    pq.write_table(pa.table(columns, names=rows.arrow.column_names), path)


_ENCODINGS = {
    pa.int64(): "DELTA_BINARY_PACKED",
    pa.int32(): "DELTA_BINARY_PACKED",
    pa.string(): "DELTA_BYTE_ARRAY",
    pa.binary(): "DELTA_LENGTH_BYTE_ARRAY",
}


def _delta_arrow(rows: Rows, path: Path, _spark: SparkSession) -> None:
    """The newest encodings, several row groups, and another codec for each file."""
    codecs = ("snappy", "gzip", "zstd", "lz4", "none")
    kinds = {field.name: field.type for field in rows.arrow.schema}
    encodings = {
        name: _ENCODINGS[kind] for name, kind in kinds.items() if kind in _ENCODINGS and "." not in name
    }
    pq.write_table(
        rows.arrow, path, use_dictionary=False, column_encoding=encodings, data_page_version="2.0", row_group_size=2,
        compression=codecs[rows.rows[0]["id"] % len(codecs)], write_page_checksum=True, version="2.6",
    )  # fmt: skip


def _pandas_parquet_with_index(rows: Rows, path: Path, _spark: SparkSession) -> None:
    rows.arrow.to_pandas(types_mapper=pd.ArrowDtype).set_index("id").to_parquet(path)


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
        frame = session.createDataFrame(rows.arrow, schema=rows.ddl).coalesce(1)
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
    "a spreadsheet that says its separator": Writer(
        "csv",
        _by_csv_module(delimiter=";", encoding="utf-8-sig", before="sep=;\r\n"),
        {**_HEADER, "sep": ";"},
        _null_is_no_text,
    ),
    "python csv, all quoted": Writer("csv", _by_csv_module(quoting=csv.QUOTE_ALL), _HEADER, nulls=False),
    "pandas csv": Writer("csv", _pandas_csv, _HEADER, _pandas_csv_holds),
    "pandas csv with its index": Writer("csv", _pandas_csv_with_index, _HEADER, _pandas_csv_holds),
    "arrow csv": Writer("csv", _arrow_csv, _HEADER),
    "polars csv": Writer("csv", _polars_csv, _HEADER),
    "duckdb csv": Writer("csv", _by_duckdb("FORMAT csv, HEADER, FORCE_QUOTE *"), _HEADER),
    "hive text": Writer(
        "csv", _hive_text, {"sep": "\x01", "nullValue": "\\N", "quote": "", "multiLine": "false"}, _hive_holds
    ),
    "postgres csv": Writer("csv", _postgres_csv, _HEADER, _postgres_holds),
    "mysql csv": Writer("csv", _mysql_csv, {"escape": "\\", "nullValue": "\\N"}, _mysql_holds),
    "java json": Writer("json", _by_language(_java_value), nested=True),
    "go json": Writer("json", _by_language(_go_value), nested=True, holds=_finite),
    "pandas json": Writer("json", _pandas_json, nested=True, holds=_pandas_json_holds),
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
    "arrow parquet, deltas": Writer("parquet", _delta_arrow, nested=True),
    "arrow parquet, old lists": Writer(
        "parquet", _arrow_parquet(use_compliant_nested_type=False, coerce_timestamps="us"), nested=True
    ),
    "arrow parquet, narrow types": Writer("parquet", _narrow_arrow, nested=True),
    "pandas parquet with its index": Writer("parquet", _pandas_parquet_with_index, nested=True),
    "arrow parquet, wide types": Writer("parquet", _wide_arrow),
    "polars parquet": Writer("parquet", _polars_parquet, nested=True),
    "duckdb parquet, LZ4": Writer(
        "parquet",
        _by_duckdb("FORMAT parquet, ROW_GROUP_SIZE 2048, COMPRESSION lz4_raw"),
        nested=True,
    ),
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
