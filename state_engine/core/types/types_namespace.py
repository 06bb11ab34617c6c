"""``Types``: declared types under the names that PyFlink gives them.

Each method makes the type whose Python values a PyFlink function sees, so a function that is ported by changing its
imports gets back what it got before. Wherever PyFlink takes a type, any other spelling that ``to_type`` knows may
stand, too (``Types.LIST(int)``). Mirrors ``pyflink.common.Types``.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.every_type import (
    BigIntegerType,
    BooleanType,
    BytesType,
    CharType,
    DateType,
    DecimalType,
    DictType,
    FloatType,
    InstantType,
    IntegerType,
    ListType,
    PickledType,
    StringType,
    StructType,
    TimestampType,
    TimeType,
    TypeInformation,
)
from state_engine.core.types.type_information import TypeLike
from state_engine.core.types.type_parsing import to_type


class Types:
    """Factory of type information, as PyFlink's ``Types``; nested types and fields accept None.

    Example:
        >>> Types.ROW_NAMED(["carrier", "delays"], [Types.STRING(), Types.LIST(Types.INT())])
        TypeInformation(struct<carrier: string, delays: list<item: int32>>)
        >>> Types.TUPLE([Types.LONG(), Types.DOUBLE()]).normalise([1, 2])
        (1, 2.0)
    """

    @staticmethod
    def STRING() -> TypeInformation:
        """Text: str."""
        return StringType()

    @staticmethod
    def BYTE() -> TypeInformation:
        """Whole numbers of 8 bits, signed: int."""
        return IntegerType(pa.int8())

    @staticmethod
    def BOOLEAN() -> TypeInformation:
        """True or False: bool."""
        return BooleanType()

    @staticmethod
    def SHORT() -> TypeInformation:
        """Whole numbers of 16 bits: int."""
        return IntegerType(pa.int16())

    @staticmethod
    def INT() -> TypeInformation:
        """Whole numbers of 32 bits: int."""
        return IntegerType(pa.int32())

    @staticmethod
    def LONG() -> TypeInformation:
        """Whole numbers of 64 bits: int."""
        return IntegerType(pa.int64())

    @staticmethod
    def FLOAT() -> TypeInformation:
        """Floating-point numbers, rounded to 32 bits: float."""
        return FloatType(pa.float32())

    @staticmethod
    def DOUBLE() -> TypeInformation:
        """Floating-point numbers of 64 bits: float."""
        return FloatType(pa.float64())

    @staticmethod
    def CHAR() -> TypeInformation:
        """Text of one character: str."""
        return CharType()

    @staticmethod
    def BIG_INT() -> TypeInformation:
        """Whole numbers of up to 38 digits: int."""
        return BigIntegerType()

    @staticmethod
    def BIG_DEC() -> TypeInformation:
        """Decimals with 20 digits before the point and 18 after it: Decimal. Others: ``pa.decimal128(38, scale)``."""
        return DecimalType(38, 18)

    @staticmethod
    def INSTANT() -> TypeInformation:
        """Points in time, to the microsecond: Instant."""
        return InstantType()

    @staticmethod
    def SQL_DATE() -> TypeInformation:
        """Calendar dates: date."""
        return DateType()

    @staticmethod
    def SQL_TIME() -> TypeInformation:
        """Times of day: time."""
        return TimeType()

    @staticmethod
    def SQL_TIMESTAMP() -> TypeInformation:
        """Local date-times, to the microsecond: datetime without a time zone."""
        return TimestampType(None)

    @staticmethod
    def PICKLED_BYTE_ARRAY(*, allow_pickle: bool = False) -> TypeInformation:
        """Any object, as a pickle. Raises ConfigurationError without ``allow_pickle=True``; it says why."""
        return PickledType(allow_pickle=allow_pickle)

    @staticmethod
    def ROW(field_types: Sequence[TypeLike]) -> TypeInformation:
        """Rows whose fields are named ``f0``, ``f1``, …: Row."""
        return Types.ROW_NAMED([f"f{i}" for i in range(len(field_types))], field_types)

    @staticmethod
    def ROW_NAMED(field_names: Sequence[str], field_types: Sequence[TypeLike]) -> TypeInformation:
        """Rows with these field names: Row. Raises ConfigurationError where a name or a type is missing."""
        if len(field_names) != len(field_types):
            raise ConfigurationError(
                f"ROW_NAMED: {len(field_names)} field_names and {len(field_types)} field_types are given"
            )
        return StructType(field_names, _fields(field_types), "row")

    @staticmethod
    def TUPLE(field_types: Sequence[TypeLike]) -> TypeInformation:
        """Tuples with a type for each place: tuple."""
        return StructType([f"f{i}" for i in range(len(field_types))], _fields(field_types))

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeLike) -> TypeInformation:
        """Lists of numbers, booleans or characters: list; of bytes: bytes. Raises ConfigurationError for others."""
        element = to_type(element_type, parameter="element_type")
        if element == Types.BYTE():
            return BytesType()
        return ListType(_one_of(element, _PRIMITIVE, "PRIMITIVE_ARRAY"))

    @staticmethod
    def BASIC_ARRAY(element_type: TypeLike) -> TypeInformation:
        """Lists of numbers, booleans, characters or text: list. Raises ConfigurationError for others."""
        element = to_type(element_type, parameter="element_type")
        return ListType(_one_of(element, (*_PRIMITIVE, StringType), "BASIC_ARRAY"))

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeLike) -> TypeInformation:
        """Lists of anything: list."""
        return ListType(to_type(element_type, parameter="element_type"))

    @staticmethod
    def MAP(key_type_info: TypeLike, value_type_info: TypeLike) -> TypeInformation:
        """Dicts: dict."""
        key = to_type(key_type_info, parameter="key_type_info")
        return DictType(key, to_type(value_type_info, parameter="value_type_info"))

    @staticmethod
    def LIST(element_type_info: TypeLike) -> TypeInformation:
        """Lists: list."""
        return ListType(to_type(element_type_info, parameter="element_type_info"))


_PRIMITIVE: tuple[type, ...] = (IntegerType, FloatType, BooleanType, CharType)


def _fields(field_types: Sequence[TypeLike]) -> list[TypeInformation]:
    return [to_type(kind, parameter=f"field_types[{i}]") for i, kind in enumerate(field_types)]


def _one_of(element: TypeInformation, allowed: tuple[type, ...], what: str) -> TypeInformation:
    if type(element) in allowed:
        return element
    raise ConfigurationError(f"{what} holds no {element}; use OBJECT_ARRAY or LIST")
