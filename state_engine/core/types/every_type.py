"""All types of keys, states and outputs, to be imported from one place.

| kind | class | in Python | stored as |
|---|---|---|---|
| whole numbers of 8 to 64 bits | ``IntegerType`` | int | bigint |
| floating-point numbers | ``FloatType`` | float | double |
| decimals | ``DecimalType`` | Decimal | decimal(38, scale) |
| whole numbers of 38 digits | ``BigIntegerType`` | int | decimal(38, 0) |
| booleans | ``BooleanType`` | bool | boolean |
| text, one character | ``StringType``, ``CharType`` | str | string |
| bytes | ``BytesType`` | bytes | binary |
| dates | ``DateType`` | date | date |
| points in time, local date-times | ``TimestampType`` | datetime | timestamp, timestamp_ntz |
| points in time | ``InstantType`` | Instant | timestamp |
| times of day | ``TimeType`` | time | bigint: microseconds since midnight |
| lists, dicts | ``ListType``, ``DictType`` | list, dict | array, map |
| records | ``StructType`` | tuple, Row, NamedTuple, dataclass | struct |
| pickled objects, by opt-in only | ``PickledType`` | any | binary |

Every stored form is a native type of Delta, which any reader of Delta knows.
"""

from state_engine.core.types.composite_types import DictType, ListType, StructType
from state_engine.core.types.logical_types import BigIntegerType, CharType, InstantType, TimeType
from state_engine.core.types.pickled_type import PickledType
from state_engine.core.types.scalar_types import (
    BooleanType,
    BytesType,
    DateType,
    DecimalType,
    FloatType,
    IntegerType,
    StringType,
    TimestampType,
)
from state_engine.core.types.type_information import TypeInformation

__all__ = [
    "BigIntegerType",
    "BooleanType",
    "BytesType",
    "CharType",
    "DateType",
    "DecimalType",
    "DictType",
    "FloatType",
    "InstantType",
    "IntegerType",
    "ListType",
    "PickledType",
    "StringType",
    "StructType",
    "TimeType",
    "TimestampType",
    "TypeInformation",
]
