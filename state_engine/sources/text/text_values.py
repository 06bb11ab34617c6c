"""What a text says as a value of a declared type: the one rule for CSV fields, JSON values and letters.

A text is the value that was written, or it is refused: no digit is lost, nothing is cut or completed, and neither the
clock nor the zone of the process has a say. What JSON has as text, number, list or object is read by ``json_reader``; a
number keeps the text that it was written with. Values are normal, as ``TypeInformation`` has them. ``text_columns``
reads whole columns.
"""

from __future__ import annotations

import binascii
import json
import math
import re
import unicodedata
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Context, Decimal, InvalidOperation
from operator import itemgetter
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from state_engine.core.errors import ValueTypeError
from state_engine.core.names import is_unicode
from state_engine.core.types.ddl import ddl_text
from state_engine.core.types.every_type import DictType, ListType, StructType, TypeInformation
from state_engine.sources.text.date_patterns import ZONE, DatePattern, microseconds, zone_of

_EPOCH, _EPOCH_UTC = date(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE = re.compile(r"[+-]?\d{1,400}", re.ASCII).fullmatch
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII).fullmatch
_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ]00:00(?::00(?:\.0+)?)?)?", re.ASCII).fullmatch
_TIME = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?[ ]?("
    + ZONE
    + ")?)?",
    re.ASCII,
).fullmatch
_AS_TEXT = "declare the column as string, and convert it in a transform"
"""The way out wherever a text is not what a type asks for."""
_WIDER = f"declare a wider type, or {_AS_TEXT}"
_NO_DATE = (
    'it is not a date such as "2026-01-02", between the years 1 and 9999: set the option dateFormat of its source, or '
    + _AS_TEXT
)
_NO_TIME = (
    'it is not a time such as "2026-01-02T03:04:05Z", between the years 1 and 9999: set the option timestampFormat (of '
    "timestamp_ntz timestampNTZFormat) of its source, or " + _AS_TEXT
)
_SPECIAL = ("nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity")
_MOST_DIGITS = 1074
"""Behind the point, of a number that a double is exactly."""
_EXACT = Context(prec=1500)
"""Enough for each double, and as many digits behind its point."""
_MOST_KEYS = 1000
"""Different sets of keys whose fields are remembered."""

Missing = Literal["null", "refuse"]
"""What a declared column is that is not there."""
Further = Literal["ignore", "refuse"]
"""What is done about a column that is not declared."""
Reader = Callable[[Any], Any]
"""Gives the value that something is, or raises ValueTypeError."""


@dataclass(frozen=True)
class NameRules:
    """Rules for names of a file that are not the declared ones."""

    missing: Missing = "null"
    further: Further = "ignore"


@dataclass(frozen=True)
class TextRules:
    """What a text means where that is a matter of choice.

    Attributes:
        zone: of times without one; None refuses them, and has a time with a zone be UTC where the type has none.
        date_pattern, timestamp_pattern, timestamp_ntz_pattern: of texts; None for ISO 8601.
        numbers: what a JSON number means for a date or an instant: ``seconds`` since 1970 for an instant, and nothing
            for a date; or ``days`` since 1970 for a date, and nothing for an instant.
        names: for names of a header or of an object that are not the declared ones.
    """

    zone: tzinfo | None = UTC
    date_pattern: DatePattern | None = None
    timestamp_pattern: DatePattern | None = None
    timestamp_ntz_pattern: DatePattern | None = None
    numbers: Literal["seconds", "days"] = "seconds"
    nan: str = "NaN"
    positive_inf: str = "Inf"
    negative_inf: str = "-Inf"
    names: NameRules = field(default_factory=NameRules)


class JsonNumber(str):
    """A number of JSON, as it was written."""

    __slots__ = ()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueTypeError(f"the key {twice!r} is there twice in one object")
    return made


def json_decoder(*, control_characters: bool = False) -> json.JSONDecoder:
    """Decodes JSON; numbers keep their text, and a key that is there twice is a ValueTypeError."""
    return json.JSONDecoder(
        parse_int=JsonNumber,
        parse_float=JsonNumber,
        parse_constant=JsonNumber,
        object_pairs_hook=_object,
        strict=not control_characters,
    )


def text_reader(kind: TypeInformation, rules: TextRules) -> Reader:
    """What reads a text as a value of a type without parts; an empty one is null, unless the type holds texts.

    Example:
        >>> from state_engine.core.types.type_parsing import to_type
        >>> text_reader(to_type("decimal(9,2)", parameter="p"), TextRules())("1.50")
        Decimal('1.50')
    """
    read = _scalar_reader(kind, rules)
    if pa.types.is_string(kind.arrow):
        return read
    if pa.types.is_binary(kind.arrow):
        return lambda text: text.encode("utf-8", "surrogateescape")
    return lambda text: read(text) if text else None


def json_reader(kind: TypeInformation, rules: TextRules) -> Reader:
    """What reads a value that ``json_decoder`` gave; None is null.

    Example:
        >>> from state_engine.core.types.type_parsing import to_type
        >>> kind = to_type("at date, price decimal(9,2)", parameter="p")
        >>> value = json_decoder().decode('{"at": "2026-01-02", "price": 1.50, "new": 7}')
        >>> json_reader(kind, TextRules())(value)
        (datetime.date(2026, 1, 2), Decimal('1.50'))
    """
    read = _json_reader(kind, rules)
    return lambda value: None if value is None else read(value)


def _json_reader(kind: TypeInformation, rules: TextRules) -> Reader:
    if isinstance(kind, StructType):
        return _record_reader(kind, rules)
    if isinstance(kind, ListType):
        element = json_reader(kind.element, rules)
        return lambda value: list(map(element, _of(value, list, "a list")))
    if isinstance(kind, DictType):
        key, each = text_reader(kind.key, rules), json_reader(kind.value, rules)
        return lambda value: _map(_of(value, dict, "an object"), key, each)
    p, arrow = pa.types, kind.arrow
    read = _scalar_reader(kind, rules)
    if p.is_string(arrow):
        return lambda value: read(value if type(value) is str else json_text(value))
    if p.is_boolean(arrow):
        return lambda value: _of(value, bool, "true or false")
    if p.is_integer(arrow):
        return lambda value: read(_of(value, JsonNumber, "a number"))
    if p.is_decimal(arrow):
        return lambda value: read(_of(value, str, "a number"))
    if p.is_floating(arrow):
        return lambda value: read(value) if type(value) is JsonNumber else _special(value, read)
    if p.is_binary(arrow):
        return _base64
    number = _json_time(kind, rules)
    return lambda value: number(value) if type(value) is JsonNumber else read(_of(value, str, "a text"))


class FieldNames:
    """Takes the declared fields out of objects: by their exact name, else by one that differs in case only."""

    def __init__(self, names: tuple[str, ...], rules: NameRules) -> None:
        self.names, self._rules = names, rules
        self._plans: dict[tuple[str, ...], Callable[[dict[str, Any]], tuple[Any, ...]]] = {}

    def values(self, value: Any) -> tuple[Any, ...]:
        """The values of the fields; None where there is none. Raises ValueTypeError where it is no such object."""
        if not isinstance(value, dict):
            raise ValueTypeError(f"{short(value)} is not an object with the fields {list(self.names)}")
        keys = tuple(value)
        plan = self._plans.get(keys)
        return (plan or self._planned(keys))(value)

    def _planned(self, keys: tuple[str, ...]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
        given = given_names(keys, self.names, self._rules, what="the object")
        names = [given.get(name) for name in self.names]
        plan: Callable[[dict[str, Any]], tuple[Any, ...]]
        if None in names or len(names) < 2:
            plan = lambda value: tuple([None if name is None else value[name] for name in names])  # noqa: E731
        else:
            plan = itemgetter(*names)
        if len(self._plans) >= _MOST_KEYS:
            self._plans.clear()
        self._plans[keys] = plan
        return plan


def _record_reader(kind: StructType, rules: TextRules) -> Reader:
    fields = FieldNames(kind.names, rules.names)
    readers = [json_reader(one, rules) for one in kind.types]

    def read(value: Any) -> tuple[Any, ...]:
        parts = []
        for name, part, each in zip(kind.names, fields.values(value), readers, strict=True):
            try:
                parts.append(each(part))
            except ValueTypeError as error:
                raise ValueTypeError(f"field '{name}': {error}") from None
        return tuple(parts)

    return read


def given_names(
    there: Sequence[str], declared: Sequence[str], rules: NameRules, *, what: str, inside: str = ""
) -> dict[str, str]:
    """By declared name the one that gives it: the same, else one that differs in case only; others are left out.

    Args:
        inside: of the fields of a record, its column and a dot, for messages.

    Raises:
        ValueTypeError: two could give a declared one; or none does, and one looks like it or is not UTF-8; or the rules
            refuse a declared one that is not there, or one that is not declared.

    Example:
        >>> given_names(["ID", "city"], ["id", "zip"], NameRules(), what="the file")
        {'id': 'ID'}
    """
    alike: dict[str, list[str]] = {}
    for name in there:
        alike.setdefault(name.lower(), []).append(name)
    names: dict[str, str] = {}
    for name in declared:
        several = alike.get(name.lower(), [])
        if len(several) > 1:
            raise ValueTypeError(
                f"the columns {several} differ in the case of letters only, or not at all, and '{inside}{name}' is "
                "declared: rename all but one"
            )
        if several:
            names[name] = several[0]
    absent = [name for name in declared if name not in names]
    if absent:
        _refuse_near(there, absent, what, inside)
    taken = set(names.values())
    further = [name for name in there if name not in taken]
    if absent and rules.missing == "refuse":
        lacking = ", ".join(repr(inside + name) for name in absent)
        raise ValueTypeError(
            f"{what} has no column {lacking}, which missing='refuse' of its FileSource asks for; it has {further} that "
            "are not declared. Add or rename the column there, or set missing='null'"
        )
    if further and rules.further == "refuse":
        unknown = ", ".join(repr(inside + name) for name in further)
        raise ValueTypeError(
            f"{what} has {unknown} besides the declared columns, which further='refuse' of its FileSource refuses. "
            "Declare them in the schema, remove them there, or set further='ignore'"
        )
    return names


def _refuse_near(there: Sequence[str], absent: Sequence[str], what: str, inside: str) -> None:
    """Refuse names that look like declared ones that are not there, and such as nobody can read."""
    for name in there:
        if not is_unicode(name):
            raise ValueTypeError(
                f"{what} has a column {name!r}, whose name is not UTF-8, and none '{inside}{absent[0]}': set the "
                "option encoding"
            )
    bare = {_bare(name): name for name in there}
    for name in absent:
        near = bare.get(_bare(name))
        if near is None:
            continue
        if _unmarked(near).lower() == _unmarked(name).lower():
            raise ValueTypeError(
                f"{what} has a column {near!r}, which differs from '{inside}{name}' in blanks only: "
                "rename it there, or declare it as it is. The options ignoreLeadingWhiteSpace and "
                "ignoreTrailingWhiteSpace take blanks off the fields of CSV"
            )
        raise ValueTypeError(
            f"{what} has a column {near!a}, which differs from {inside + name!a} only in the characters "
            "that its letters are made of: rename it there, or declare it as it is"
        )


def _unmarked(name: str) -> str:
    """A name without blanks and byte-order marks around it."""
    return name.strip().strip("\ufeff").strip()


def _bare(name: str) -> str:
    """What names that look alike have in common: of one letter that Unicode has in several forms, one."""
    return unicodedata.normalize("NFKC", _unmarked(name)).casefold()


def json_text(value: Any) -> str:
    """A value of JSON as text again, without blanks; numbers as they were written."""
    if isinstance(value, JsonNumber):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json_text(name)}:{json_text(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def short(value: Any) -> str:
    """A value for messages; no more of it than a reader needs."""
    text = repr(value) if type(value) is str else json_text(value)
    return text if len(text) <= 80 else text[:77] + "..."


# -- types without parts -----------------------------------------------------------------------------------------------


def _scalar_reader(kind: TypeInformation, rules: TextRules) -> Reader:
    p, arrow = pa.types, kind.arrow
    if p.is_string(arrow):
        return lambda text: text if text.isascii() else _text(text)
    if p.is_boolean(arrow):
        return _boolean
    if p.is_integer(arrow):
        return lambda text: _whole(text, kind)
    if p.is_floating(arrow):
        special = {rules.nan: math.nan, rules.positive_inf: math.inf, rules.negative_inf: -math.inf}
        return lambda text: _floating(text, kind, special)
    if p.is_decimal(arrow):
        return lambda text: _decimal(text, kind)
    if p.is_date(arrow):
        return lambda text: _date(text, rules)
    if p.is_timestamp(arrow):
        aware = arrow.tz is not None
        pattern = rules.timestamp_pattern if aware else rules.timestamp_ntz_pattern
        return lambda text: _timestamp(text, pattern, rules.zone, aware=aware)
    if p.is_binary(arrow):
        return _base64
    raise ValueTypeError(f"no text says what a value of type {kind} is: declare the column as string")


def _refuse(value: Any, why: str) -> ValueTypeError:
    return ValueTypeError(f"{short(value)}: {why}")


def _of(value: Any, kind: type, name: str) -> Any:
    if isinstance(value, kind):
        return value
    raise _refuse(value, f"it is not {name}: {_AS_TEXT}")


def _map(value: Mapping[str, Any], key: Reader, each: Reader) -> dict[Any, Any]:
    made = {}
    for name, one in value.items():
        try:
            made[key(name)] = each(one)
        except ValueTypeError as error:
            raise ValueTypeError(f"key {name!r}: {error}") from None
    if len(made) < len(value) or None in made:
        raise _refuse(value, "two of its keys are the same value, or one is none")
    return made


def _text(text: str) -> str:
    if not is_unicode(text):
        raise _refuse(text.encode("utf-8", "backslashreplace").decode(), "it is not UTF-8")
    return text


def _boolean(text: str) -> bool:
    small = text.lower()
    if small not in ("true", "false"):
        raise _refuse(text, f"it is neither true nor false: {_AS_TEXT}")
    return small == "true"


def _whole(text: str, kind: TypeInformation) -> int:
    if _WHOLE(text) is None:
        raise _refuse(text, f"it is not a whole number, as {_named(kind)} has them: {_AS_TEXT}")
    return _fitting(text, int(text), kind)  # type: ignore[no-any-return]


def _floating(text: str, kind: TypeInformation, special: Mapping[str, float]) -> float:
    if text in special:
        return special[text]
    if _NUMBER(text) is None:
        if text.lower() in _SPECIAL:
            return float(text)
        raise _refuse(text, f"it is not a number: {_AS_TEXT}")
    number = float(text)
    if kind.arrow == pa.float32():
        with np.errstate(over="ignore"):
            number = float(np.float32(number))
    value: float = _fitting(text, number, kind)
    if math.isinf(value):
        raise _refuse(text, f"it is too large for {_named(kind)}: {_AS_TEXT}")
    if value == 0 and text.lower().split("e")[0].strip("+-0."):
        raise _refuse(text, f"it is too small for {_named(kind)}: {_AS_TEXT}")
    if not _holds(value, text, kind):
        raise _refuse(text, f"{_named(kind)} cannot hold all of its digits: declare decimal")
    return value


def _holds(value: float, text: str, kind: TypeInformation) -> bool:
    """Whether a value has all digits of a number: they are the fewest that name it, or it rounds to them."""
    number = Decimal(text)
    shortest = Decimal(str(np.float32(value)) if kind.arrow == pa.float32() else repr(value))
    if number == shortest or not number:
        return True
    digits = number.as_tuple().exponent
    assert isinstance(digits, int)
    if digits < -_MOST_DIGITS:
        return False
    return Decimal(value).quantize(Decimal(1).scaleb(digits, _EXACT), context=_EXACT) == number


def _decimal(text: str, kind: TypeInformation) -> Decimal:
    if _NUMBER(text) is None:
        raise _refuse(text, f"it is not a decimal: {_AS_TEXT}")
    try:
        return _fitting(text, Decimal(text), kind)  # type: ignore[no-any-return]
    except InvalidOperation:
        raise _refuse(text, f"it does not fit into {_named(kind)}: {_WIDER}") from None


def _fitting(text: str, value: Any, kind: TypeInformation) -> Any:
    try:
        return kind.normalise(value)
    except ValueTypeError as error:
        why = str(error).split(": ")[-1]
        raise _refuse(text, f"it does not fit into {_named(kind)} ({why}): {_WIDER}") from None


def _named(kind: TypeInformation) -> str:
    return f"the type {ddl_text(kind.arrow)}"


def _special(value: Any, read: Reader) -> float:
    """A floating-point number that JSON has to write as text."""
    if isinstance(value, str) and not _NUMBER(value):
        return read(value)  # type: ignore[no-any-return]
    raise _refuse(value, f"it is not a number: {_AS_TEXT}")


def _base64(value: Any) -> bytes:
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise _refuse(value, f"it is not base64: {_AS_TEXT}") from None


def _date(text: str, rules: TextRules) -> date:
    try:
        if rules.date_pattern is not None:
            return rules.date_pattern.moment(text).date()
        match = _DATE(text)
        if match is not None:
            return date(*map(int, match.groups()))
    except ValueError as error:
        raise _refuse(text, f"it is not a date ({error}): {_AS_TEXT}") from None
    raise _refuse(text, _NO_DATE)


def _timestamp(text: str, pattern: DatePattern | None, zone: tzinfo | None, *, aware: bool) -> datetime:
    try:
        at = _iso_time(text) if pattern is None else pattern.moment(text)
        if at is not None:
            return _instant(at, zone) if aware else _local(at, zone)
    except (ValueError, OverflowError) as error:
        why = str(error)
        raise _refuse(
            text, f"it is not a time: {why}" + ("" if "declare" in why else f": {_AS_TEXT}")
        ) from None
    raise _refuse(text, _NO_TIME)


def _iso_time(text: str) -> datetime | None:
    match = _TIME(text)
    if match is None:
        return None
    *numbers, fraction, zone = match.groups()
    year, month, day, hour, minute, second = (int(part or 0) for part in numbers)
    return datetime(
        year, month, day, hour, minute, second, microseconds(fraction or ""), zone_of(zone) if zone else None
    )


def _instant(at: datetime, zone: tzinfo | None) -> datetime:
    if at.tzinfo is None:
        if zone is None:
            raise ValueError("it has no offset from UTC: declare the field as timestamp_ntz")
        at = at.replace(tzinfo=zone)
    return at.astimezone(UTC)


def _local(at: datetime, zone: tzinfo | None) -> datetime:
    if at.tzinfo is None:
        return at
    if zone is None:
        return at.astimezone(UTC).replace(tzinfo=None)
    raise ValueError("it has an offset from UTC: declare the column as timestamp")


def _json_time(kind: TypeInformation, rules: TextRules) -> Reader:
    if pa.types.is_date(kind.arrow):
        return _days if rules.numbers == "days" else _no_days
    if kind.arrow.tz is None or rules.numbers == "days":
        return _no_unit
    return _seconds


def _days(text: str) -> date:
    try:
        return _EPOCH + timedelta(days=int(text))
    except (ValueError, OverflowError):
        raise _refuse(text, f"it is not a number of days between the years 1 and 9999: {_AS_TEXT}") from None


def _no_days(text: str) -> date:
    raise _refuse(text, "it is a number: declare the column as bigint, and convert it in a transform")


def _no_unit(text: str) -> datetime:
    raise _refuse(
        text,
        "it is a number, which does not say its unit: declare the field as bigint, and convert it in a map",
    )


def _seconds(text: str) -> datetime:
    try:
        return _EPOCH_UTC + timedelta(seconds=int(text))
    except (ValueError, OverflowError):
        raise _refuse(
            text,
            "a number in a timestamp is whole seconds since 1970, between the years 1 and 9999: if it is milliseconds, "
            "declare the column as bigint, and convert it by timestamp_millis in a transform",
        ) from None
