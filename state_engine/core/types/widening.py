"""Widening: which numbers may become which others, in values and in keys of maps; and how places in a type are called.

Keys must stay as different as they are, and in the same order, so only numbers in them may be widened. The part of
:mod:`.evolution` that looks at types without fields of their own.
"""

from __future__ import annotations

from state_engine.core.errors import StateMigrationError
from state_engine.core.types.every_type import StructType
from state_engine.core.types.scalar_types import DecimalType, FloatType, IntegerType
from state_engine.core.types.type_information import TypeInformation
from state_engine.core.types.type_text import type_to_text


def compare_key(old: TypeInformation, new: TypeInformation, at: str, changes: list[str]) -> None:
    """Keys must stay as different, and in the same order, as they are: only numbers in them may be widened."""
    if isinstance(old, StructType) and isinstance(new, StructType):
        if old.names != new.names:
            raise StateMigrationError(f"{named(at)}the fields of a key cannot change")
        for name, was, now in zip(old.names, old.types, new.types, strict=True):
            compare_key(was, now, inside(at, name), changes)
    else:
        compare_scalar(old, new, at, changes)


def compare_scalar(old: TypeInformation, new: TypeInformation, at: str, changes: list[str]) -> None:
    """Types without parts must be the same, or a number widened; notes which. Raises StateMigrationError."""
    was, now = type_to_text(old), type_to_text(new)
    if was == now:
        return
    if not _widened(old, new):
        raise StateMigrationError(f"{named(at)}{was} cannot become {now}")
    changes.append(f"'{at or 'value'}' is widened from {was} to {now}")


def _widened(old: TypeInformation, new: TypeInformation) -> bool:
    """Whether every value of the old type is one of the new type, in the same stored form."""
    if type(old) is not type(new):
        return False
    if type(old) in (IntegerType, FloatType):
        return bool(old.arrow.bit_width < new.arrow.bit_width)
    if type(old) is DecimalType:
        return bool(old.arrow.scale == new.arrow.scale and old.arrow.precision < new.arrow.precision)
    return False


def inside(at: str, name: str) -> str:
    """A place inside of another one, as messages call it."""
    return f"{at}.{name}" if at else name


def named(at: str) -> str:
    """The beginning of a message about a place."""
    return f"in '{at}': " if at else ""
