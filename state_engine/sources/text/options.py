"""The options of a reader of CSV or JSON: Spark's names, checked when they are given.

Each option has an effect, is what we do anyway, or is refused with the way out: none is passed over. Defaults
that differ from Spark's: decision 0092.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from state_engine.core.choices import check_once, unknown_option
from state_engine.core.errors import ConfigurationError
from state_engine.sources.text.date_patterns import date_pattern, zone_of
from state_engine.sources.text.text_values import NameRules, TextRules

TextFormat = Literal["csv", "json"]
_COMPRESSIONS = ("none", "uncompressed", "gzip", "bzip2", "deflate", "zstd", "lz4", "snappy")


@dataclass(frozen=True)
class TextOptions:
    """How text files are taken apart.

    Attributes:
        multi_line: whether a record may go over several lines.
        header: whether the first record of a CSV file names its columns.
        by_position: whether CSV columns go by their position all the same.
        separator, quote, comment: of CSV; an empty ``quote`` or ``comment`` is none.
        escape: stands before a quote inside quotes; empty where a quote is doubled.
        null_value: a CSV field with this text is null; None has only an empty one without quotes be null.
        empty_value: the text that an empty CSV field in quotes is.
        strip_left, strip_right: whether blanks around CSV fields are taken off.
        control_characters: whether JSON texts may hold them as they are.
    """

    encoding: str = "utf-8"
    rules: TextRules = field(default_factory=TextRules)
    multi_line: bool = True
    header: bool = False
    by_position: bool = False
    separator: str = ","
    quote: str = '"'
    escape: str = ""
    comment: str = ""
    null_value: str | None = None
    empty_value: str = ""
    strip_left: bool = False
    strip_right: bool = False
    control_characters: bool = False

    @property
    def splittable(self) -> bool:
        """Whether every line end of a file ends a record, whatever was before it."""
        return not self.multi_line and "\n".encode(self.encoding) == b"\n"


def text_options(format_: TextFormat, given: Mapping[str, Any], rules: NameRules) -> TextOptions:
    """Options, checked.

    Args:
        rules: for names of a file that are not the declared ones.
    """
    options = TextOptions(multi_line=format_ == "csv", rules=TextRules(names=rules))
    names = (*_EFFECTS[format_], *_EFFECTS["both"], *_SETTLED, *_REFUSED)
    others = {other: name for other, name in _OTHER_NAMES.items() if name in names}
    known = {name.lower(): name for name in names} | others
    given_as: dict[str, str] = {}
    for name, value in sorted(given.items()):
        spelled = known.get(name.lower())
        if spelled is None:
            taken = [one for one in (*names, *others) if one not in _REFUSED]
            raise unknown_option(name, taken, what=f"FileSource: a reader of {format_}")
        if spelled in _REFUSED:
            raise ConfigurationError(f"FileSource: the option {name!r} {_REFUSED[spelled]}")
        if spelled in _SETTLED:
            _check_settled(name, value, _SETTLED[spelled])
            continue
        check_once(given_as.setdefault(spelled, name), name, what="FileSource")
        effect = _EFFECTS[format_].get(spelled) or _EFFECTS["both"][spelled]
        try:
            options = effect(options, value)
        except ValueError as error:
            raise ConfigurationError(f"FileSource: the option {name}={value!r}: {error}") from None
    if options.escape == options.quote:
        options = replace(options, escape="")
    _check_dialect(options)
    return options


def _check_settled(name: str, value: Any, expected: tuple[str, ...]) -> None:
    if expected and str(value).lower() not in expected:
        raise ConfigurationError(
            f"FileSource: the option {name}={value!r} is not for a FileSource, which has {' or '.join(expected)}: "
            "leave it out"
        )


def _check_dialect(options: TextOptions) -> None:
    marks = {
        "sep": options.separator,
        "quote": options.quote,
        "escape": options.escape,
        "comment": options.comment,
    }
    given = [mark for mark in marks.values() if mark]
    if len(set(given)) < len(given):
        raise ConfigurationError(f"FileSource: {marks} must be different characters")


# -- values of options -------------------------------------------------------------------------------------------------


def _flag(value: Any) -> bool:
    small = str(value).lower()
    if small not in ("true", "false"):
        raise ValueError("it must be true or false")
    return small == "true"


def _separator(value: Any) -> str:
    text = str(value).replace("\\t", "\t").replace("\\\\", "\\")
    if not text:
        raise ValueError("a separator of no character separates nothing")
    return _without_line_ends(text)


def _character(value: Any) -> str:
    text = str(value)
    if len(text) > 1:
        raise ValueError("it must be a single character, or empty for none")
    return "" if text == "\0" else _without_line_ends(text)


def _without_line_ends(text: str) -> str:
    if "\n" in text or "\r" in text:
        raise ValueError("a line end ends a record, and can be nothing else")
    return text


def _encoding(value: Any) -> str:
    try:
        name = codecs.lookup(str(value)).name
        "\n".encode(name)
    except (LookupError, TypeError, ValueError):
        raise ValueError(
            "there is no such encoding; use UTF-8, UTF-16, ISO-8859-1 or windows-1252, for example"
        ) from None
    return name


def _english(options: TextOptions, value: Any) -> TextOptions:
    if str(value).replace("_", "-").lower().split("-")[0] != "en":
        raise ValueError(
            "names of months and days, and numbers, are read in English only: declare such columns as string, and "
            "convert them in a transform"
        )
    return options


def _line_end(options: TextOptions, value: Any) -> TextOptions:
    if value not in ("\n", "\r\n", "\r"):
        raise ValueError(
            "lines end with \\n, \\r\\n or \\r, which are all read anyway: convert such files before"
        )
    return options


def _compression(options: TextOptions, value: Any) -> TextOptions:
    if str(value).lower() not in _COMPRESSIONS:
        raise ValueError(f"there is no such compression; known are {list(_COMPRESSIONS)}")
    raise ValueError("a file says by the end of its name how it is compressed, for example .gz: leave it out")


def _enforced(options: TextOptions, value: Any) -> TextOptions:
    return replace(options, by_position=_flag(value))


def _sets(name: str, convert: Callable[[Any], Any] = str) -> Callable[[TextOptions, Any], TextOptions]:
    return lambda options, value: replace(options, **{name: convert(value)})


def _rules(name: str, convert: Callable[[Any], Any] = str) -> Callable[[TextOptions, Any], TextOptions]:
    return lambda options, value: replace(options, rules=replace(options.rules, **{name: convert(value)}))


def _pattern(option: str, name: str) -> Callable[[TextOptions, Any], TextOptions]:
    return _rules(name, lambda value: date_pattern(str(value), option=option))


_EFFECTS: dict[str, dict[str, Callable[[TextOptions, Any], TextOptions]]] = {
    "both": {
        "encoding": _sets("encoding", _encoding),
        "multiLine": _sets("multi_line", _flag),
        "lineSep": _line_end,
        "compression": _compression,
        "locale": _english,
        "timeZone": _rules("zone", lambda value: zone_of(str(value))),
        "dateFormat": _pattern("dateFormat", "date_pattern"),
        "timestampFormat": _pattern("timestampFormat", "timestamp_pattern"),
        "timestampNTZFormat": _pattern("timestampNTZFormat", "timestamp_ntz_pattern"),
    },
    "csv": {
        "sep": _sets("separator", _separator),
        "quote": _sets("quote", _character),
        "escape": _sets("escape", _character),
        "comment": _sets("comment", _character),
        "header": _sets("header", _flag),
        "enforceSchema": _enforced,
        "nullValue": _sets("null_value"),
        "emptyValue": _sets("empty_value"),
        "nanValue": _rules("nan"),
        "positiveInf": _rules("positive_inf"),
        "negativeInf": _rules("negative_inf"),
        "ignoreLeadingWhiteSpace": _sets("strip_left", _flag),
        "ignoreTrailingWhiteSpace": _sets("strip_right", _flag),
    },
    "json": {"allowUnquotedControlChars": _sets("control_characters", _flag)},
}
"""By format, the options that change what is read."""
_OTHER_NAMES = {"charset": "encoding", "delimiter": "sep"}
_SETTLED: dict[str, tuple[str, ...]] = {
    "inferSchema": ("false",),
    "preferDate": ("true", "false"),
    "samplingRatio": ("1", "1.0"),
    "columnPruning": ("true", "false"),
    "recursiveFileLookup": ("true",),
    "ignoreCorruptFiles": ("false",),
    "ignoreMissingFiles": ("false",),
    "enableDateTimeParsingFallback": ("false",),
    "allowNonNumericNumbers": ("true",),
    "allowSingleQuotes": ("false",),
    "allowUnquotedFieldNames": ("false",),
    "allowNumericLeadingZeros": ("false",),
    "allowBackslashEscapingAnyCharacter": ("false",),
    "allowComments": ("false",),
    "dropFieldIfAllNull": ("false",),
    "primitivesAsString": ("false",),
    "prefersDecimal": ("true", "false"),
    "mode": ("permissive", "failfast"),
    "unescapedQuoteHandling": ("stop_at_delimiter",),
    "maxCharsPerColumn": (),
    "maxColumns": (),
}
"""Options of Spark that can only ask for what a FileSource does anyway, and how; without values, any."""
REFUSED_OF_FILES = {
    "pathGlobFilter": "is not read: use pattern= of FileSource",
    "modifiedBefore": "is not read: a FileSource consumes each file once",
    "modifiedAfter": "is not read: a FileSource consumes each file once",
}
"""Options of Spark that no FileSource takes, whatever its format, and the way out."""
_REFUSED = {
    **REFUSED_OF_FILES,
    "columnNameOfCorruptRecord": "is not needed: set on_error='dead_letter' on the job to keep what does not fit",
    "charToEscapeQuoteEscaping": "is not read: the character of 'escape' escapes itself",
}
"""Options of Spark that a FileSource does not take, and the way out."""
