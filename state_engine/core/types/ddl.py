"""DDL text: types as one writes them in SQL, read by ``parse_ddl`` and written by ``ddl_text``.

The spellings are Spark's, without Spark. Plays the part of Flink's ``LogicalTypeParser``.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.column_names import storable_names
from state_engine.core.types.every_type import (
    BooleanType,
    BytesType,
    DateType,
    DecimalType,
    DictType,
    FloatType,
    IntegerType,
    ListType,
    StringType,
    StructType,
    TimestampType,
    TypeInformation,
)
from state_engine.core.types.spark_types import spark_type
from state_engine.core.types.walk import walked

_NAMED: dict[str, Any] = {
    **dict.fromkeys(("tinyint", "byte"), lambda: IntegerType(pa.int8())),
    **dict.fromkeys(("smallint", "short"), lambda: IntegerType(pa.int16())),
    **dict.fromkeys(("int", "integer"), lambda: IntegerType(pa.int32())),
    **dict.fromkeys(("bigint", "long"), lambda: IntegerType(pa.int64())),
    **dict.fromkeys(("float", "real"), lambda: FloatType(pa.float32())),
    "double": lambda: FloatType(pa.float64()),
    "boolean": BooleanType,
    "string": StringType,
    "binary": BytesType,
    "date": DateType,
    "timestamp": lambda: TimestampType("UTC"),
    "timestamp_ltz": lambda: TimestampType("UTC"),
    "timestamp_ntz": lambda: TimestampType(None),
    "decimal": lambda: DecimalType(10, 0),
}


_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|[\w.$-]+|[<>(),:])")


def parse_ddl(
    text: str,
    *,
    more: Mapping[str, Callable[[], TypeInformation]] = MappingProxyType({}),
    stored_names: bool = False,
) -> TypeInformation:
    """DDL text: a single type (``bigint``, ``array<string>``) or columns (``a bigint, b string``).

    Args:
        more: names of types beyond SQL's, and what makes them.
        stored_names: whether a field may say under which name it is stored, and what stands for null in it: ```total`
            as `sum` default `0`: bigint``.
    """
    tokens, at = [], 0
    while text[at:].strip():
        token = _TOKEN.match(text, at)
        if not token:
            raise ConfigurationError(f"cannot read the DDL '{text}' at '{text[at:].strip()[:20]}'")
        tokens.append(token.group(1))
        at = token.end()
    if not tokens:
        raise ConfigurationError("the DDL is empty")
    named = {**_NAMED, **more}
    reader = _DdlReader(text, tokens, named, stored_names=stored_names)
    if tokens[0].lower() in (*named, "numeric", "dec", "array", "map", "struct", "varchar", "char") and (
        len(tokens) == 1 or tokens[1] in "<("
    ):
        kind = reader.type()
    else:
        kind = reader.columns(end=None)
    if reader.tokens:
        raise ConfigurationError(f"cannot read the DDL '{text}' from '{reader.tokens[0]}' on")
    return kind


class _DdlReader:
    def __init__(self, text: str, tokens: list[str], named: dict[str, Any], *, stored_names: bool) -> None:
        self.text, self.tokens, self.named, self.stored_names = text, list(tokens), named, stored_names

    def take(self, expected: str | None = None) -> str:
        if not self.tokens or (expected and self.tokens[0] != expected):
            got = self.tokens[0] if self.tokens else "the end"
            raise ConfigurationError(
                f"cannot read the DDL '{self.text}': '{expected or 'a name'}' expected, not {got}"
            )
        return self.tokens.pop(0)

    def accept(self, word: str) -> bool:
        if self.tokens and self.tokens[0].lower() == word:
            self.tokens.pop(0)
            return True
        return False

    def columns(self, end: str | None) -> StructType:
        names, stored, kinds, fills = [], [], [], {}
        while True:
            names.append(self.name())
            stored.append(self.name() if self.stored_names and self.accept("as") else None)
            if self.stored_names and self.accept("default"):
                fills[names[-1]] = self.name()
            self.accept(":")
            kinds.append(self.type())
            if self.accept("not"):
                self.take()
            if self.accept("comment"):
                self.take()
            if not self.accept(","):
                break
        if end:
            self.take(end)
        columns = [at or usual for at, usual in zip(stored, storable_names(names), strict=True)]
        return StructType(names, kinds, "row", stored=columns, fills=fills)

    def name(self) -> str:
        name = self.take()
        return name[1:-1].replace("``", "`") if name.startswith("`") else name

    def type(self) -> TypeInformation:
        name = self.take().lower()
        if name == "array":
            self.take("<")
            inner = ListType(self.type())
            self.take(">")
            return inner
        if name == "map":
            self.take("<")
            key = self.type()
            self.take(",")
            made = DictType(key, self.type())
            self.take(">")
            return made
        if name == "struct":
            self.take("<")
            return self.columns(end=">")
        if name in ("varchar", "char"):
            self.numbers()
            return StringType()
        if name in ("decimal", "numeric", "dec"):
            digits = self.numbers() or [10, 0]
            return DecimalType(digits[0], digits[1] if len(digits) > 1 else 0)
        if name in self.named:
            return typing.cast(TypeInformation, self.named[name]())
        raise ConfigurationError(f"cannot read the DDL '{self.text}': '{name}' is not a type")

    def numbers(self) -> list[int]:
        sizes: list[int] = []
        if self.accept("("):
            sizes.append(int(self.take()))
            while self.accept(","):
                sizes.append(int(self.take()))
            self.take(")")
        return sizes


def ddl_text(kind: pa.DataType) -> str:
    """An Arrow type as DDL; ``parse_ddl`` reads it back.

    Example:
        >>> ddl_text(pa.struct([("key", pa.string()), ("value", pa.list_(pa.int64()))]))
        'struct<`key`: string, `value`: array<bigint>>'
    """
    return walked(
        kind,
        leaf=_leaf_text,
        record=lambda part, texts: record_text([quoted(f.name) for f in part], texts),
        sequence=lambda _, element: list_text(element),
        mapping=lambda _, key, value: map_text(key, value),
    )


def list_text(element: str) -> str:
    return f"array<{element}>"


def map_text(key: str, value: str) -> str:
    return f"map<{key}, {value}>"


def record_text(names: Iterable[str], types: Iterable[str]) -> str:
    return f"struct<{', '.join(f'{name}: {kind}' for name, kind in zip(names, types, strict=True))}>"


def _leaf_text(kind: pa.DataType) -> str:
    name = str(spark_type(kind))
    return {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}.get(name, name)


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever is in it.

    Example:
        >>> quoted("odd `name")
        '`odd ``name`'
    """
    return f"`{name.replace('`', '``')}`"
